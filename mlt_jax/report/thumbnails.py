"""Small pictures inside the page."""

import base64
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

_SIDE, _QUALITY = 160, 72
_MOST, _MOST_BYTES = 600, 4_000_000
_EXTENSIONS = {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"}


def thumbnails(rows: Iterable[int], image: Callable[[int], Any]) -> dict[int, str]:
    """Data URIs of the pictures of these examples by row, the first ones up to 600 pictures or 4 MB.

    `image` maps a row to a path, a (h, w) or (h, w, 3) uint8 array, or None; what cannot be read is left out.
    """
    found: dict[int, str] = {}
    size = 0
    for row in tqdm(list(dict.fromkeys(rows)), desc="thumbnails", disable=None, leave=False):
        uri = _thumbnail(image(row))
        if uri is None:
            continue
        size += len(uri)
        if size > _MOST_BYTES or len(found) == _MOST:
            break
        found[row] = uri
    return found


def in_folder(folder: str | Path, ids: Sequence[str]) -> Callable[[int], Path | None]:
    """A function from row to the picture in `folder` (or below it) named like its id, with or without extension."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise ValueError(f"{root}: there is no such folder of images")
    paths = sorted(path for path in root.rglob("*") if path.suffix.lower() in _EXTENSIONS)
    by_name: dict[str, Path] = {}
    for path in paths:
        inside = path.relative_to(root)
        for name in (path.stem, path.name, str(inside.with_suffix("")), str(inside)):
            by_name.setdefault(name, path)
    if not any(name in by_name or Path(name).name in by_name for name in ids):
        found = f"such as {paths[0].name}" if paths else "none at all"
        raise ValueError(f'{root}: no image is named like an id such as "{ids[0]}"; it holds {len(paths)}, {found}')
    return lambda row: by_name.get(ids[row]) or by_name.get(Path(ids[row]).name)


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
