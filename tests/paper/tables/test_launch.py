import subprocess
import sys

import pytest

from mlt_jax.paper.tables import launch


def test_local_runs_jobs_in_order():
    seen = []
    launch.local([1, 2, 3], lambda job: job * 10, done=lambda job, result: seen.append((job, result)))
    assert seen == [(1, 10), (2, 20), (3, 30)]


def test_a_result_is_handed_on_before_the_next_job_runs():
    seen = []
    launch.local([1, 2], lambda job: seen.append(f"run {job}"), done=lambda job, _: seen.append(f"done {job}"))
    assert seen == ["run 1", "done 1", "run 2", "done 2"]


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"launcher: ray is not installed; pip install 'mlt_jax\[cluster\]'"):
        launch.ray([1], print, done=print, lost=print)


def test_ray_is_not_loaded_before_it_is_asked_for():
    code = "import sys, mlt_jax.paper.tables.launch; print('ray' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
