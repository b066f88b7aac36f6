"""Sphinx settings; `make docs` builds the pages into docs/_build."""

import enum
import inspect
import re
from typing import Any

import mlt_jax

project = "mlt_jax"
author = "The mlt_jax authors"
release = version = mlt_jax.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
default_role = "py:obj"  # `name` in a docstring links to it where it is documented, and is code everywhere

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # shapes stand in the text

html_theme = "sphinx_book_theme"
html_title = "mlt_jax"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_theme_options = {
    "navbar_persistent": [],  # one search box, at the side, is enough
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
}


def is_record(value: Any) -> bool:
    """Whether a class is a NamedTuple or an enumeration, whose fields are explained by comments."""
    return inspect.isclass(value) and (hasattr(value, "_fields") or issubclass(value, enum.Enum))


def fields_of(value: Any) -> list[str]:
    """An `Attributes:` section made of the comments beside a record's fields."""
    fields: list[str] = []
    for line in inspect.getsource(value).splitlines():
        if found := re.match(r" {4}(\w+)(?:: (.*?)| = .*?)(?:  # (.*))?$", line):
            name, kind, text = found.groups("")
            fields.append(f"  {name} (``{kind}``): {text}" if kind else f"  {name}: {text}")
        elif fields and (more := re.match(r" {4}# (.*)", line)):
            fields[-1] += " " + more[1]
        elif re.match(r" {4}(@|def )", line):
            break
    return ["", "Attributes:", *fields, ""] if fields else []


def escaped(text: str) -> str:
    """Text with `|` and a trailing `_`, which mean something to reStructuredText, escaped outside of `code`."""
    parts = re.split(r"(`+[^`]*`+)", text)
    for k in range(0, len(parts), 2):
        parts[k] = re.sub(r"\||(?<=\w)_(?!\w)", r"\\\g<0>", parts[k])
    return "".join(parts)


def prepare(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Makes reStructuredText of a docstring: special characters, indented blocks as code, fields of records."""
    text, code = [], False
    for k, line in enumerate(lines):
        indented = line.startswith("    ")
        if indented and not code and k and not lines[k - 1].strip() and not text_above(lines, k).startswith(" "):
            text += ["::", ""]
            code = True
        code = code and (indented or not line.strip())
        text.append(line if code else escaped(line))
    if is_record(value) and "Attributes:" not in map(str.strip, lines):
        text += fields_of(value)
    lines[:] = text


def text_above(lines: list[str], k: int) -> str:
    """The last line before line k that is not blank."""
    return next((line for line in reversed(lines[:k]) if line.strip()), "")


def short_signature(app: Any, what: str, name: str, value: Any, options: Any, signature: str, returned: str) -> Any:
    """The signature with `Array` by its public name."""
    return tuple(text and text.replace("jaxlib._jax.Array", "Array") for text in (signature, returned))


def skip_member(app: Any, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out fields, which `prepare` lists, what scikit-learn adds, and in other modules what `mlt_jax` exports."""
    module = app.env.current_document.autodoc_module
    exported = module != "mlt_jax" and any(value is getattr(mlt_jax, other) for other in mlt_jax.__all__)
    added = type(value).__name__ == "_tuplegetter" or re.fullmatch(r"set_\w+_request", name)
    return True if exported or added else None


def setup(app: Any) -> None:
    """Connects them; docstrings are prepared before napoleon reads them."""
    app.connect("autodoc-process-docstring", prepare, priority=400)
    app.connect("autodoc-process-signature", short_signature)
    app.connect("autodoc-skip-member", skip_member)
