"""Pictures of examples: small ones inside the page, and links to the files beside it."""

import base64
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from PIL import Image
from tqdm import tqdm

_SIDE, _QUALITY = 160, 72
_SHOWN = {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp"}  # what browsers show
_EXTENSIONS = _SHOWN | {".tif", ".tiff"}


class Pictures(NamedTuple):
    """Pictures of examples by row."""

    thumbs: dict[int, str]  # data URIs
    links: dict[int, str]  # addresses of the files, relative to the page
    number: int  # of the examples that were asked for

    def __str__(self) -> str:
        """A sentence: which pictures are in the page, which are loaded, and which are neither."""
        size = sum(map(len, self.thumbs.values())) / 1e6
        loaded = len(self.links.keys() - self.thumbs)
        parts = [f"{len(self.thumbs):,} of {self.number:,} are in the page ({size:.1f} MB)"]
        if loaded:
            parts.append(f"{loaded:,} are loaded from the image folder")
        if missing := self.number - len(self.thumbs) - loaded:
            parts.append(f"{missing:,} are not shown")
        original = " A click shows the original, as long as the image folder stays where it is." if self.links else ""
        return f"Pictures: {'; '.join(parts)}.{original}"


def pictures(rows: Iterable[int], image: Callable[[int], Any], *, beside: str | Path, embed: float = 4.0) -> Pictures:
    """The pictures of these examples: the first ones up to `embed` MB in the page, those in files by links as well.

    Args:
      image: maps a row to a path, a (h, w) or (h, w, 3) uint8 array, or None; what cannot be read is left out.
      beside: folder of the page, to which links are relative.
    """
    thumbs: dict[int, str] = {}
    links: dict[int, str] = {}
    size, asked, root = 0, list(dict.fromkeys(rows)), Path(beside).expanduser().absolute()
    for row in tqdm(asked, desc="pictures", disable=None, leave=False):
        source = image(row)
        in_file = isinstance(source, str | Path)
        if size < 1e6 * embed:
            uri = _thumbnail(source)
            if uri is None:
                continue
            size += len(uri)
            if size <= 1e6 * embed:
                thumbs[row] = uri
        elif source is not None and not in_file:
            break  # arrays cannot be linked, and making them may be slow
        if in_file and Path(source).suffix.lower() in _SHOWN:
            links[row] = quote(Path(os.path.relpath(Path(source).expanduser().absolute(), root)).as_posix())
    return Pictures(thumbs, links, len(asked))


def in_folder(folder: str | Path, ids: Sequence[str]) -> Callable[[int], Path | None]:
    """A function from row to the picture in `folder` (or below it) named like its id, with or without extension.

    The name is the path inside the folder, or of that only the last part, where one picture and one id have it.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise ValueError(f"{root}: there is no such folder of images")
    paths = sorted(path for path in root.rglob("*") if path.suffix.lower() in _EXTENSIONS)
    by_name: dict[str, Path] = {}
    for path in paths:
        inside = path.relative_to(root)
        for name in (str(inside), str(inside.with_suffix(""))):
            by_name.setdefault(name, path)
    bases = Counter(name for path in paths for name in {path.stem, path.name})
    for path in paths:
        for name in (path.name, path.stem):
            if bases[name] == 1:
                by_name.setdefault(name, path)
    asked = Counter(Path(name).name for name in ids)
    if not any(name in by_name or Path(name).name in by_name for name in ids):
        found = f"such as {paths[0].name}" if paths else "none at all"
        raise ValueError(f'{root}: no image is named like an id such as "{ids[0]}"; it holds {len(paths)}, {found}')

    def picture(row: int) -> Path | None:
        base = Path(ids[row]).name
        return by_name.get(ids[row]) or (by_name.get(base) if asked[base] == 1 else None)

    return picture


def _thumbnail(source: Any) -> str | None:
    if source is None:
        return None
    from mlt_jax.data.base import as_rgb  # loads scikit-learn, which a page without pictures does without

    try:
        with Image.fromarray(np.asarray(source)) if not isinstance(source, str | Path) else Image.open(source) as image:
            small = as_rgb(image)
    except Exception:  # a broken file makes Pillow raise many things; the page then goes without that picture
        return None
    small.thumbnail((_SIDE, _SIDE))
    lossless = max(small.size) <= 64
    buffer = BytesIO()
    small.save(buffer, "PNG" if lossless else "JPEG", **({} if lossless else {"quality": _QUALITY}))
    return f"data:image/{'png' if lossless else 'jpeg'};base64,{base64.b64encode(buffer.getvalue()).decode()}"
