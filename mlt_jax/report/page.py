"""The frame of a page: one self-contained file that loads nothing from the network and runs only its own script."""

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from mlt_jax.outputs import atomic

_FOOTER = {
    False: "One file, nothing is loaded from elsewhere.",
    True: "Nothing is loaded but pictures from the folder beside this file.",
}


def page(title: str, subtitle: str, sections: Sequence[str], *, data: Any = None, beside: bool = False) -> str:
    """The HTML text of a page; `sections` are HTML. Only with `data`, its JSON, it has the script of the issues table.

    The content security policy allows this style sheet and this script by their hashes, images in the page itself (with
    `beside` also files where the page lies), and nothing else: markup that slipped into a name could neither run nor
    load anything from elsewhere.
    """
    style, script = (files("mlt_jax.report").joinpath(name).read_text("utf-8") for name in ("style.css", "issues.js"))
    script = script if data is not None else ""
    pictures = "data: 'self' file:" if beside else "data:"
    policy = f"default-src 'none'; img-src {pictures}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    policy += f"; script-src {_hash(script)}" if script else ""
    # In JSON "<" only occurs in strings, where \u003c is the same; so no name can end the element.
    block = "" if data is None else json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title><style>{style}</style></head><body>",
            f'<header class="top"><h1>{escape(title)}</h1><p class="soft">{escape(subtitle)}</p></header>',
            "<main>",
            *(section for section in sections if section),
            f"<footer>Made by mlt_jax. {_FOOTER[beside]}</footer></main>",
            f'<script type="application/json" id="data">{block}</script><script>{script}</script>' if script else "",
            "</body></html>\n",
        ]
    )


def write(path: str | Path, text: str) -> Path:
    """The path, once the file is written there, whole or not at all."""
    with atomic(path, encoding="utf-8") as file:
        file.write(text)
    return Path(path).expanduser()


def section(title: str, intro: str, body: str, *, key: str = "", folded: bool = False) -> str:
    """HTML of a titled part of the page, empty where there is no body, which is HTML; title and intro are text."""
    if not body:
        return ""
    name = f' id="{escape(key)}"' if key else ""
    text = f'<p class="soft">{escape(intro)}</p>' if intro else ""
    before, between, after = ("<details><summary>", "</summary>", "</details>") if folded else ("", "", "")
    return f"<section{name}>{before}<h2>{escape(title)}</h2>{between}{text}{body}{after}</section>"


def tiles(pairs: Sequence[tuple[str, str]]) -> str:
    """HTML of large numbers with a word each."""
    cells = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(word)}</span></div>' for value, word in pairs
    )
    return f'<div class="tiles">{cells}</div>'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
