"""The API reference, made from docstrings: `make docs` writes docs/api/index.html and a page per module."""

import importlib
import inspect
import pkgutil
import sys
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any

import mlt_jax
from mlt_jax.report.page import page, section, write


def modules() -> list[str]:
    """Names of all public modules, the package first."""
    found = [entry.name for entry in pkgutil.walk_packages(mlt_jax.__path__, "mlt_jax.")]
    return ["mlt_jax", *(name for name in found if not any(part.startswith("_") for part in name.split(".")))]


def members(module: ModuleType) -> list[tuple[str, Any]]:
    """Public functions and classes, in order of the source; of the package itself, what it exports."""
    if hasattr(module, "__all__"):
        return [(name, getattr(module, name)) for name in module.__all__]
    own = [
        (name, value)
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
    return [(name, value) for name, value in own if inspect.getdoc(value)]


def entry(name: str, value: Any) -> str:
    """One function or class: signature, docstring, and of a class its methods and properties."""
    if isinstance(value, ModuleType):
        return ""
    parts = [_block(name, value)]
    if inspect.isclass(value):
        for inner, method in vars(value).items():
            shown = isinstance(method, property | classmethod) or inspect.isfunction(method)
            if shown and not inner.startswith("_") and getattr(value, inner).__doc__:
                parts.append(_block(f"{name}.{inner}", getattr(value, inner)))
    return section(name, "", "".join(parts), key=name)


def _block(name: str, value: Any) -> str:
    try:
        signature = str(inspect.signature(value))
    except (TypeError, ValueError):
        signature = ""
    return f"<h3><code>{escape(name + signature)}</code></h3><pre>{escape(inspect.getdoc(value) or '')}</pre>"


def main(folder: Path) -> None:
    """Writes the pages."""
    index = []
    for name in modules():
        module = importlib.import_module(name)
        doc = inspect.getdoc(module) or ""
        parts = [section("About", "", f"<pre>{escape(doc)}</pre>"), *(entry(*member) for member in members(module))]
        write(folder / f"{name}.html", page(name, f"mlt_jax {mlt_jax.__version__}", parts))
        index.append(f'<li><a href="{name}.html">{name}</a> <small>{escape(doc.partition(chr(10))[0])}</small></li>')
    body = f"<ul>{''.join(index)}</ul>"
    write(folder / "index.html", page("mlt_jax", "API reference", [section("Modules", "", body)]))
    print(f"{len(index)} modules in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "api")
