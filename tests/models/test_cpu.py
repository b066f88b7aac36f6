import os
import subprocess
import sys

import jaxlib

from mlt_jax.models import cpu


def test_tuning_leaves_the_choices_of_the_user_alone():
    script = "import os; from mlt_jax.models import cpu; cpu.tune(); print(os.environ['XLA_FLAGS'])"

    def flags(**given):
        environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"} | given
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    own = "--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_DOT"
    assert flags(XLA_FLAGS=own) == own
    other = "--xla_force_host_platform_device_count=2"
    added = flags(XLA_FLAGS=other).removeprefix(other).startswith(" --xla_cpu_experimental_ynn_fusion_type=")
    assert added == jaxlib.__version__.startswith("0.10.")


def test_a_machine_has_only_cpus_unless_a_plugin_or_the_user_says_otherwise(monkeypatch):
    for chosen, plugins, alone in [("", [], True), ("", ["cuda"], False), ("cpu", ["cuda"], True), ("cuda", [], False)]:
        monkeypatch.setenv("JAX_PLATFORMS", chosen)
        monkeypatch.setattr(cpu, "entry_points", lambda group, found=plugins: found)
        assert cpu.alone() is alone
