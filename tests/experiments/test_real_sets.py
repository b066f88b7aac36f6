import importlib.util
import sys

import numpy as np
import pytest
from paths import DATA, ROOT

SCRIPT = ROOT / "experiments" / "real_sets.py"
REAL = DATA / "real"


@pytest.fixture(scope="module")
def sets():
    spec = importlib.util.spec_from_file_location("real_sets", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["real_sets"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["real_sets"]


def test_rates_are_shares_of_the_cells_that_both_sides_know(sets):
    given = np.array([[1, 0], [0, 0], [1, -1], [1, 1]])
    better = np.array([[1, 1], [0, 1], [0, 1], [-1, 1]])
    rates, positives = sets.rates(given, better)
    assert rates.tolist() == [[0.5, 0], [0, 2 / 3]]
    assert positives.tolist() == [1, 1]


def test_a_rater_is_measured_against_the_two_others_where_they_agree(sets, tmp_path):
    rng = np.random.default_rng(0)
    raters = rng.integers(0, 2, (300, 2, 3)).astype(np.int8)
    np.savez(tmp_path / "emotions_so.npz", raters=raters, features=rng.normal(size=(300, 4)))
    (tasks,) = sets.real_sets(tmp_path).values()
    assert len(tasks) == 3
    agree = raters[:, :, 0] == raters[:, :, 1]
    assert np.array_equal(tasks[2].better, np.where(agree, raters[:, :, 0], -1))
    assert np.array_equal(tasks[2].given, raters[:, :, 2])
    assert tasks[2].scores.shape == (300, 2)


def test_a_folder_without_sets_is_refused(sets, tmp_path):
    with pytest.raises(ValueError, match=r"folder: .* has none of emotions_deu"):
        sets.real_sets(tmp_path)


@pytest.mark.skipif(not (REAL / "captions_voc.npz").is_file(), reason="needs real/captions_voc.npz (MLT_JAX_DATA)")
def test_captions_miss_a_quarter_of_the_classes(sets, tmp_path):
    (tmp_path / "captions_voc.npz").symlink_to(REAL / "captions_voc.npz")
    ((task,),) = sets.real_sets(tmp_path).values()
    assert task.use.all()
    assert np.allclose(task.truth.mean(0), [0.006, 0.270], atol=1e-3)
