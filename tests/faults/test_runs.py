"""`experiments/run.py` in a folder that another run left, or whose files or disk are broken."""

import json
import shutil
import signal
import time

import numpy as np
import pytest

from mlt_jax.config import Config
from mlt_jax.run import run


@pytest.fixture(scope="module")
def finished(features, tmp_path_factory):
    """The folder of a finished run, and its configuration."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(settings(features, folder))
    return folder


def settings(features, workdir, **changes):
    small = dict(dataset="voc2012", features=features, test_split="voc2007/trainval", epochs=2, batch_size=64)
    return Config(**small | dict(seeds=(0,), methods=("Standard",), workdir=workdir) | changes)


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.mark.parametrize("gone", [[], ["seed0/identity.json"], ["seed0/results.json"]], ids=["config", "both", "begun"])
def test_without_config_json_other_noise_is_still_another_run(features, copy, gone):
    for name in ("config.json", *gone):
        (copy / name).unlink()
    with pytest.raises(ValueError, match=r"seed0 holds a run with other rho_pos; pass another --workdir, or --no-resu"):
        run(settings(features, copy, rho_pos=0.3, seeds=(0, 1)))
    assert not (copy / "seed1").exists()


def test_a_seed_that_does_not_say_what_it_is_of_is_refused(features, copy):
    kept = json.loads((copy / "seed0/results.json").read_text())
    del kept["identity"]
    (copy / "seed0/results.json").write_text(json.dumps(kept))
    (copy / "seed0/identity.json").unlink()
    with pytest.raises(ValueError, match="seed0 holds a run that does not say what it is of"):
        run(settings(features, copy))


def test_a_features_file_of_the_same_name_with_other_content_is_other_data(features, copy, tmp_path):
    other = shutil.copytree(features, tmp_path / "other")
    assert run(settings(other, copy))["test"]  # the same content in another place is the same data
    kept = dict(np.load(other / "voc2012_features.npz"))
    kept["features"][5, 1] += 1e-6
    np.savez(other / "voc2012_features.npz", **kept)
    with pytest.raises(ValueError, match="seed0 holds a run with other data"):
        run(settings(other, copy))


def test_more_seeds_and_methods_extend_a_finished_folder(features, copy, capsys):
    before = json.loads((copy / "results.json").read_text())
    found = run(settings(features, copy, seeds=(0, 1), methods=("Standard", "GCE")))
    assert [result["seed"] for result in found["seeds"]] == [0, 1]
    assert found["seeds"][0]["test"]["Standard"] == before["seeds"][0]["test"]["Standard"]
    assert set(found["test"]) == {"Standard", "GCE"}
    whole = run(settings(features, copy.parent / "whole", seeds=(0, 1), methods=("Standard", "GCE")))
    assert found["test"] == whole["test"]
    capsys.readouterr()
    assert run(settings(features, copy))["test"] == before["test"]  # the table is of what was asked; nothing is lost
    assert "seed 0: was finished before" in capsys.readouterr().out
    assert set(json.loads((copy / "seed0/results.json").read_text())["test"]) == {"Standard", "GCE"}


def test_broken_json_is_one_line_and_what_it_says_to_do_helps(features, copy, words, ended):
    expected = json.loads((copy / "results.json").read_text())["test"]
    for name in ("config.json", "seed0/results.json", "seed0/identity.json"):
        whole = (copy / name).read_text()
        (copy / name).write_text(whole[: len(whole) // 2])
        with pytest.raises(ValueError, match=rf"{name}: is no whole JSON file .*; delete it and give the same command"):
            run(settings(features, copy))
        if name == "config.json":
            code, lines = ended(words(copy))
            assert (code, len(lines)) == (2, 1), lines
        (copy / name).unlink()
        assert run(settings(features, copy))["test"] == expected


def test_two_runs_in_one_folder_at_once_are_one_run_and_one_line(words, start, ended, tmp_path):
    first = start(words(tmp_path / "run", "--epochs=200"))
    while not (tmp_path / "run" / "config.json").exists():
        assert first.poll() is None, first.communicate()
        time.sleep(0.01)
    first.send_signal(signal.SIGSTOP)  # however slow the second is to start, the first is at work
    code, [line] = ended(words(tmp_path / "run", "--epochs=200"))
    first.send_signal(signal.SIGCONT)
    assert code == 2
    assert line == f"run.py: workdir: another run is at work in {tmp_path / 'run'}; wait, or pass another --workdir"
    # And Ctrl-C ends the first with one line; the same command goes on.
    log = tmp_path / "run/seed0/Standard/metrics.jsonl"
    while not any(int(path.name) > 1 for path in (log.parent / "checkpoints").glob("*") if path.name.isdigit()):
        assert first.poll() is None, first.communicate()
        time.sleep(0.01)
    first.send_signal(signal.SIGINT)
    _, err = first.communicate()
    assert first.returncode == 130, err
    assert err.splitlines() == ["run.py: interrupted; the same command goes on from what is saved"]
    # Metrics that are shorter than their checkpoint says are not filled with zeros.
    kept = log.read_bytes()
    log.write_bytes(kept[:50])
    code, [line] = ended(words(tmp_path / "run", "--epochs=200"))
    assert code == 2
    assert line.startswith(f"run.py: {log}: has 50 bytes, and had ")
    assert log.read_bytes() == kept[:50]
    log.write_bytes(kept)
    again = start(words(tmp_path / "run", "--epochs=200"))
    out, err = again.communicate()
    assert again.returncode == 0, err
    assert "goes on at epoch" in out
    whole = start(words(tmp_path / "whole", "--epochs=200"))
    whole.communicate()
    logs = [(tmp_path / name / "seed0/Standard/metrics.jsonl").read_bytes() for name in ("run", "whole")]
    assert logs[0] == logs[1]


def test_a_folder_that_may_not_be_written_is_one_line(words, ended, read_only):
    folder, options = read_only
    code, [line] = ended(words(folder / "run"), **options)
    assert code == 2
    assert line.startswith(f"run.py: [Errno 13] Permission denied: '{folder / 'run'}'")
    assert line.endswith("it goes on where it was; or pass another --workdir)")


def test_a_full_disk_is_one_line(words, ended, small_disk):
    folder, options = small_disk
    code, lines = ended(words(folder / "run"), **options)
    assert (code, len(lines)) == (2, 1), lines
    [line] = lines
    assert "free space" in line
    assert str(folder / "run") in line
    assert "it goes on where it was" in line
