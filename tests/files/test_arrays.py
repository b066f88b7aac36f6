import numpy as np
import pytest

from mlt_jax.files.arrays import load_npy, load_npz


def test_arrays_come_back(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.array(["a"]))
    assert load_npy(tmp_path / "a.npy").tolist() == [0, 1, 2]
    assert {name: array.tolist() for name, array in load_npz(tmp_path / "a.npz").items()} == {
        "x": [0, 1, 2],
        "y": ["a"],
    }


@pytest.mark.parametrize(("name", "load"), [("a.npy", load_npy), ("a.npz", load_npz)])
def test_whatever_is_wrong_is_one_error_with_the_name_and_the_file_is_closed(tmp_path, name, load):
    path = tmp_path / name
    (np.save if load is load_npy else np.savez)(path, np.arange(100))
    whole = path.read_bytes()
    pickled = np.array([{}], object)
    (np.save if load is load_npy else np.savez)(path, pickled)
    with pytest.raises(ValueError, match=rf"{name}: is no {name[2:]} file of .*(allow_pickle|Object arrays)"):
        load(path)
    for content in (b"", b"PK\x03\x04", whole[:20], whole[:-30], b"\x93NUMPY\x01\x00", whole[:50] + b"x" * 40):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}: is no {name[2:]} file of"):  # an open file would be a warning
            load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / f"none{name}")
