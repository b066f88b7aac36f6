import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlt_jax.training.checkpoint import Checkpoints
from mlt_jax.training.step import init_state


def tree(value):
    params = {"w": jnp.full((64, 8), value), "b": jnp.zeros(8)}
    state = init_state(jax.random.key(3), params, {}, optax.adam(1e-3))
    # Not constant: constants compress to nothing, and there would be no large file to harm.
    history = np.random.default_rng(0).uniform(value - 1, value, (2, 500, 8)).astype(np.float32)
    return {"state": state, "history": history}


def value(found):
    return float(found[0]["state"].params["w"][0, 0])


def saved(folder, values):
    checkpoints = Checkpoints(folder)
    for v in values:
        checkpoints.save(tree(v), {"epoch": int(v), "best": 0.1 + 0.2})
    checkpoints.close()


def test_what_is_read_is_what_was_written_bit_for_bit(tmp_path):
    saved(tmp_path, [1.5])
    found, record = Checkpoints(tmp_path).restore(tree(0.0))
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(*((jax.random.key_data(x) if isinstance(x, jax.Array) and
                     jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x) for x in (a, b))), found, tree(1.5)
    )  # fmt: skip
    assert record == {"epoch": 1, "best": 0.1 + 0.2}
    assert jax.random.uniform(found["state"].key) == jax.random.uniform(jax.random.key(3))


def test_a_save_is_of_the_arrays_as_they_were(tmp_path):
    checkpoints, now = Checkpoints(tmp_path), tree(1.0)
    checkpoints.save(now, {})
    now["history"][:] = 7
    checkpoints.close()
    assert Checkpoints(tmp_path).restore(now)[0]["history"].max() <= 1


def test_an_empty_folder_gives_none(tmp_path):
    assert Checkpoints(tmp_path / "new").restore(tree(0.0)) is None


def test_the_last_two_are_kept(tmp_path):
    saved(tmp_path, [1.0, 2.0, 3.0, 4.0])
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["2", "3"]


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))


# When one array cannot be read, tensorstore's threads still report the others to the loop that orbax has closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("harm", [truncate, flip_a_bit, lambda path: path.unlink()])
@pytest.mark.parametrize("which", ["largest", "manifest.ocdbt", "record/metadata"])
def test_a_broken_newest_checkpoint_falls_back_to_the_one_before_with_a_warning(tmp_path, harm, which):
    saved(tmp_path, [1.0, 2.0])
    files = [path for path in (tmp_path / "1").rglob("*") if path.is_file()]
    data = [path for path in files if "/d/" in path.as_posix()]
    harmed = [max(data, key=lambda path: path.stat().st_size)] if which == "largest" else []
    for path in harmed or [path for path in files if path.as_posix().endswith(which)]:
        harm(path)
    checkpoints = Checkpoints(tmp_path)
    with pytest.warns(RuntimeWarning, match="checkpoint 1 is broken and passed over"):
        found = checkpoints.restore(tree(0.0))
    assert value(found) == 1.0
    checkpoints.save(tree(5.0), {})
    checkpoints.close()
    assert value(Checkpoints(tmp_path).restore(tree(0.0))) == 5.0
