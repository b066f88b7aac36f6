import errno
import json

import jax.numpy as jnp
import numpy as np
import pytest

from mlt_jax import TransitionEstimate
from mlt_jax.training import records
from mlt_jax.training.records import Log, claim, owned, read_json, slug, summarize, table, write_json, write_transition


def test_names_become_paths_and_different_names_stay_different():
    assert slug("Reweight-T 97%") == "Reweight-T_97pc"
    names = ["(0,0.2)", "(0,0.6)", "Our estimator (R=1)", "Our estimator", "CSRA+Reweight"]
    assert len({slug(name) for name in names}) == len(names)
    assert not any("/" in slug(name) for name in ["a/b", *names])


def test_json_is_written_whole_and_read_back(tmp_path):
    path = tmp_path / "deep" / "results.json"
    assert read_json(path) is None
    write_json(path, {"a": [1.5, "x"]})
    assert read_json(path) == {"a": [1.5, "x"]}
    assert [file.name for file in path.parent.iterdir()] == ["results.json"]


def test_a_folder_belongs_to_the_configuration_that_claimed_it(tmp_path):
    path = tmp_path / "config.json"
    claim(path, {"epochs": 2, "noise": "ulf"}, remedy="pass another")
    write_json(path, {"epochs": 2, "noise": "ulf", "workers": 3})
    claim(path, {"epochs": 2, "noise": "ulf"}, remedy="pass another")
    with pytest.raises(ValueError, match=r"workdir: .* holds a run with other epochs, noise; pass another"):
        claim(path, {"epochs": 3, "noise": "pml"}, remedy="pass another")


def test_t_is_written_with_class_names_and_the_truth_beside_it(tmp_path):
    T = jnp.array([[[0.9, 0.1], [0.2, 0.8]], [[1.0, 0.0], [0.5, 0.5]]])
    ones = jnp.ones(2, jnp.int32)
    found = TransitionEstimate(T, jnp.array([0.3, 0.4]), jnp.full((2, 2), 0.01), 0 * ones, ones, jnp.ones(2))
    write_transition(tmp_path, found, ["cat", "a,b"], np.asarray(T), name="transition.x")
    np.testing.assert_array_equal(TransitionEstimate.load(tmp_path / "transition.x.npz").T, T)
    rows = (tmp_path / "transition.x.csv").read_text().splitlines()
    assert rows[1] == "cat,0.100000,0.200000,0.010000,0.010000,0.300000,correlation,1,0.100000,0.200000"
    assert rows[2].startswith('"a,b",0.000000,0.500000')
    write_transition(tmp_path, found, ["cat", "dog"], None)
    assert "true_rho" not in (tmp_path / "transition.csv").read_text()


def test_lines_after_the_last_checkpoint_are_cut_off(tmp_path):
    log = Log(tmp_path, start=0, step=0)
    log.write({"epoch": 1, "loss": 0.5}, step=1)
    kept = log.flush()
    log.write({"epoch": 2, "loss": 0.4}, step=2)
    log.close()
    log = Log(tmp_path, start=kept, step=1)
    log.write({"epoch": 2, "loss": 0.3}, step=2)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.3}]
    assert list((tmp_path / "events").glob("events.*"))


def test_lines_that_were_there_at_the_checkpoint_are_not_made_up(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b"{}\n")
    with pytest.raises(ValueError, match=r"metrics.jsonl: has 3 bytes, and had 9 when its checkpoint was written"):
        Log(tmp_path, start=9, step=1)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"{}\n"


def test_a_folder_is_one_run_s_at_a_time_and_a_full_disk_says_what_to_do(tmp_path):
    with owned(tmp_path / "run"), pytest.raises(ValueError, match="another run is at work"), owned(tmp_path / "run"):
        pass
    with pytest.raises(OSError, match="full") as caught, owned(tmp_path / "run"):
        raise OSError(errno.ENOSPC, "full")
    assert "it goes on where it was" in caught.value.__notes__[0]
    with pytest.raises(FileNotFoundError) as caught, owned(tmp_path / "run"):
        raise FileNotFoundError(errno.ENOENT, "no data")
    assert not hasattr(caught.value, "__notes__")


def test_a_summary_is_means_over_seeds_and_its_table_says_them():
    def result(of1, error):
        scores = dict.fromkeys(records.COLUMNS, 0.5) | {"OF1": of1, "epoch": 3}
        errors = {"auto": error, records.NO_NOISE: 4.0}
        return {"seed": 0, "test": {"Standard": scores}, "T_error": errors, "seconds": {"Standard": 2.0}}

    found = summarize([result(0.6, 1.0), result(0.8, 2.0)])
    assert found["test"]["Standard"]["OF1"] == {"mean": pytest.approx(0.7), "std": pytest.approx(0.1)}
    text = table(found, title="A title")
    assert "70.0 ±10.0" in text
    assert "summed error of T: auto 1.50 (T = identity: 4.00)" in text
    assert "seconds per seed: Standard 2.0" in text
    nobody_knows = summarize([result(0.6, 1.0) | {"T_error": {}}])
    assert "error of T" not in table(nobody_knows, title="")


def test_different_names_have_different_folders():
    assert slug("Our estimator (R=1)") == "Our_estimator__R=1_"
    assert len({slug(name) for name in ("GCE é", "GCE è", "A [1]", "A (1)")}) == 4
