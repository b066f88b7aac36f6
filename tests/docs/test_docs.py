import importlib.util

import pytest
from paths import ROOT

import mlt_jax


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("api", ROOT / "docs" / "api.py")
    api = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(api)
    folder = tmp_path_factory.mktemp("api")
    api.main(folder)
    return folder


def test_every_exported_name_is_in_the_reference_with_its_docstring(reference):
    text = (reference / "mlt_jax.html").read_text()
    for name in mlt_jax.__all__:
        assert f'id="{name}"' in text, name
    assert "P(label is right)" in text


def test_every_module_has_a_page_that_the_index_links(reference):
    index = (reference / "index.html").read_text()
    modules = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "mlt_jax").rglob("[a-z]*.py")]
    names = {".".join(module.parts) for module in modules}
    assert len(names) > 30
    for name in names:
        assert f'href="{name}.html"' in index
        assert (reference / f"{name}.html").stat().st_size > 1000
