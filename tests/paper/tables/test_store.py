import gzip

import pytest

from mlt_jax.paper.tables import store
from mlt_jax.paper.tables.plan import Cell


def record(cell, value):
    return {**cell._asdict(), "scores": {"mAP": value}, "seconds": 1.23, "commit": "1234567"}


def test_runs_are_kept_rounded_in_one_file_of_the_same_bytes(tmp_path):
    path, first, second = tmp_path / "cells.jsonl.gz", Cell("voc2007", "(0,0.2)", 0, "GCE"), Cell("coco", "x", 1, "CDR")
    records = {first: record(first, 0.1234567891), second: record(second, 0.5)}
    assert store.read(path, {"epochs": 20}) == {}
    store.write(path, {"epochs": 20}, records)
    before = path.read_bytes()
    found = store.read(path, {"epochs": 20})
    assert found.keys() == records.keys()
    assert found[first]["scores"] == {"mAP": 0.12345679}
    assert found[first]["seconds"] == 1.2
    store.write(path, {"epochs": 20}, dict(reversed(found.items())))
    assert path.read_bytes() == before
    assert len(gzip.decompress(before).splitlines()) == 3


def test_runs_under_other_options_are_not_mixed(tmp_path):
    store.write(tmp_path / "cells.jsonl.gz", {"epochs": 20, "difficult": "skip"}, {})
    with pytest.raises(ValueError, match=r"cells: .* holds runs with other difficult; pass another --cells"):
        store.read(tmp_path / "cells.jsonl.gz", {"epochs": 20, "difficult": "positive"})
