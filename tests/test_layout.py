"""The package's own order: who imports whom, what stays light, and a test file for every module."""

import subprocess
import sys

import grimp
from paths import ROOT

HEAVY = {"flax", "optax", "orbax", "tensorflow", "pandas", "sklearn", "matplotlib"}
LIGHT = ("mlt_jax", "mlt_jax.estimator", "mlt_jax.audit", "mlt_jax.report", "mlt_jax.cli")


def test_every_module_has_its_test_file():
    package = ROOT / "mlt_jax"
    modules = [path.relative_to(package) for path in package.rglob("*.py") if path.name != "__init__.py"]
    tests = [ROOT / "tests" / path.with_name(f"test_{path.name}") for path in modules]
    assert len(tests) > 50
    assert [str(path.relative_to(ROOT)) for path in tests if not path.exists()] == []


def test_no_module_imports_the_package_root():
    assert grimp.build_graph("mlt_jax").find_modules_that_directly_import("mlt_jax") == set()


def test_estimates_audits_pages_and_commands_load_no_heavy_library():
    code = f"import sys, {', '.join(LIGHT)}; print(*{HEAVY} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
