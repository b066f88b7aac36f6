import os
import subprocess

from mlt_jax.paper.tables.provenance import commit, machine


def test_the_commit_is_of_the_code_and_says_when_it_was_changed(tmp_path):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    assert commit(tmp_path) == "unknown"
    code, foreign = tmp_path / "code", tmp_path / "venv" / "code"
    for folder in (code, foreign):
        folder.mkdir(parents=True)
        (folder / "a.py").write_text("x = 1\n")
    git("init")
    git("add", "code")
    git("commit", "-m", "first")
    git("tag", "v1")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    commit.cache_clear()
    clean = commit(code)
    assert len(clean) >= 7
    assert head.startswith(clean)
    assert commit(foreign) == "unknown"
    (code / "a.py").write_text("x = 2\n")
    commit.cache_clear()
    assert commit(code) == f"{clean}-dirty"


def test_the_machine_is_named_by_its_cores():
    assert machine().startswith(f"{os.cpu_count()} cores, ")
    assert len(machine().split(", ", 1)[1]) > 2
