import os
import subprocess
import sys

import pytest
from paths import ROOT

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


@pytest.mark.slow
def test_ray_workers_have_the_cpu_settings_of_a_local_run(tmp_path):
    program = tmp_path / "workers.py"
    program.write_text("""
import os
from mlt_jax.models import cpu
from mlt_jax.paper.tables import launch
seen = {}
flags = lambda job: os.environ.get("XLA_FLAGS")
launch.ray([1], flags, done=seen.__setitem__, lost=print, workers=1)
assert cpu.alone()
cpu.tune()
print(seen[1] == os.environ["XLA_FLAGS"], seen)
""")
    env = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    out = subprocess.check_output([sys.executable, str(program)], text=True, env=env)
    assert out.startswith("True"), out
