import re

import pytest
from paths import ROOT

README = ROOT / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_code_in_the_readme_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[block], f"README.md block {block}", "exec"), {})


def test_readme_has_its_first_ten_lines():
    assert len(BLOCKS) >= 2
    assert "mlt_jax.estimate(" in BLOCKS[0]
