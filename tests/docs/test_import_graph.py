import importlib.util

import pytest
from paths import ROOT


@pytest.fixture(scope="module")
def graph():
    spec = importlib.util.spec_from_file_location("import_graph", ROOT / "docs" / "import_graph.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_arrow_points_down(graph):
    found = graph.arrows()
    assert {("audit", "estimator"), ("training", "models"), ("transition", "labels")} <= set(found)
    assert {arrow: found[arrow] for arrow in graph.wrong_way(found)} == {}


def test_the_committed_picture_is_current(graph):
    assert graph.draw(graph.arrows()) == (ROOT / "docs" / "imports.svg").read_text(), "run docs/import_graph.py"


def test_arrows_up_sideways_and_to_the_root_are_named(graph, tmp_path, monkeypatch, capsys):
    good, up, sideways = graph.Arrow("cli", "audit"), graph.Arrow("labels", "audit"), graph.Arrow("data", "models")
    root = graph.Arrow("paper", "")
    found = {good: ["a -> b"], up: ["mlt_jax.labels -> mlt_jax.audit.issues"], sideways: ["c -> d"], root: ["e -> f"]}
    assert graph.wrong_way(found) == [up, sideways, root]
    monkeypatch.setattr(graph, "arrows", lambda: found)
    assert graph.main(tmp_path / "imports.svg") == 1
    said = capsys.readouterr().err
    assert "labels -> audit points the wrong way:\n  mlt_jax.labels -> mlt_jax.audit.issues\n" in said
    assert (tmp_path / "imports.svg").read_text().count("#d00") == 2 * 3


def test_a_room_without_a_layer_is_named(graph):
    with pytest.raises(ValueError, match="attic: in no layer"):
        graph.wrong_way({graph.Arrow("attic", "labels"): ["a -> b"]})
