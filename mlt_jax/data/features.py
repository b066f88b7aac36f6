"""Precomputed features with labels, in npz files."""

import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from mlt_jax.data.base import Dataset
from mlt_jax.data.voc import decode_voc
from mlt_jax.labels import as_labels

# Pooled features of a ResNet are not centred: their mean, 21 long on VOC, lets a head move all logits of a class at
# once. Principal components have lost it, so a constant stands for it: the bias alone learns too slowly.
_MEAN = 20.0


def load_features(
    features_path: str | Path, *, labels_path: str | Path | None = None, split: str | None = None, coding: str = "01"
) -> Dataset:
    """The examples of an npz with `features` (n, d), and their labels.

    Args:
      features_path: the npz. Without `labels_path` it also has `labels` (n, q), and may have `names` and `classes`. Or
        it has several splits: `SPLIT_features`, `SPLIT_labels` as packed bits (`np.packbits(..., axis=1)`),
        `SPLIT_names` and `classes`. With a `scale` the features are principal components as whole numbers; they get a
        constant as last column.
      labels_path: an npz with the labels under the name of the `split` (or `labels`) and with `SPLIT_names` (or
        `names`). Rows are matched by name and keep the order of the features; unmatched rows are left out.
      split: which labels to take.
      coding: "01", "pm1" or "voc" (1 present, 0 only difficult: present, but AP skips it, -1 absent).
    """
    archive = _open(features_path, "features")
    if f"{split}_features" in archive:
        archive = _unpack(archive, features_path, str(split))
    features = _get(archive, features_path, "features")
    names = archive.get("names")
    source = archive if labels_path is None else _open(labels_path, "labels")
    path = labels_path or features_path
    key = split if split is not None and split in source else "labels"
    values = _get(source, path, key, wanted=split or "labels")
    if labels_path is not None:
        features, names, values = _match(
            features, _get(archive, features_path, "names"), values, _names(source, path, key), path
        )
    if len(values) != len(features):
        raise ValueError(f"{path}: {key} has {len(values)} rows, features {len(features)}; pass one label row for each")
    q = values.shape[1] if values.ndim == 2 else 0
    classes = source.get("classes", np.array([f"class{column}" for column in range(q)]))
    features = np.asarray(features, np.float32)
    if features.ndim < 2:
        raise ValueError(f"{features_path}: features: shape {features.shape}; pass (n, d)")
    if not (fine := np.isfinite(features).reshape(len(features), -1).all(1)).all():
        raise ValueError(
            f"{features_path}: features: row {fine.argmin()} is not finite; compute it again or leave it out"
        )
    if coding == "voc" and not (values == -1).any():
        coding = "01"  # VOC marks what is absent by -1
    checked = as_labels(values, coding=coding, classes=list(map(str, classes)), name=f"{path}: {key}")
    ignore = decode_voc(values.astype(np.int8))[1] if coding == "voc" else None
    ids = tuple(map(str, range(len(features)) if names is None else names))
    name = f"{Path(features_path).stem}/{split or 'all'}"
    return Dataset(name, ids, tuple(map(str, classes)), checked.values.astype(np.uint8), ignore, features=features)


def _unpack(archive: dict[str, np.ndarray], path: str | Path, split: str) -> dict[str, np.ndarray]:
    """One split of a file of several, as that of a file of one."""
    classes = _get(archive, path, "classes")
    packed = _get(archive, path, f"{split}_labels")
    if packed.dtype != np.uint8 or packed.shape[1:] != (-(-len(classes) // 8),):
        raise ValueError(
            f"{path}: {split}_labels: {packed.dtype} of shape {packed.shape}; write np.packbits(labels, axis=1)"
        )
    features = archive[f"{split}_features"]
    if "scale" in archive:
        features = np.pad(features * archive["scale"], ((0, 0), (0, 1)), constant_values=_MEAN)
    return {
        "features": features,
        "labels": np.unpackbits(packed, axis=1)[:, : len(classes)],
        "names": _get(archive, path, f"{split}_names"),
        "classes": classes,
    }


def _open(path: str | Path, what: str) -> dict[str, np.ndarray]:
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"{what}: {path} is missing; pass an npz, such as np.savez(path, features=..., labels=...)"
        )
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("one array, without labels")
            return dict(archive)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{what}: {path} cannot be read ({error}); write it with np.savez(path, features=..., labels=...)"
        ) from error


def _get(archive: dict[str, np.ndarray], path: str | Path, key: str, *, wanted: str | None = None) -> np.ndarray:
    if key not in archive:
        raise ValueError(f"{path}: has no {wanted or key!r}, only {', '.join(archive)}; pass another file or split")
    return archive[key]


def _names(archive: dict[str, np.ndarray], path: str | Path, key: str) -> np.ndarray:
    return archive[f"{key}_names"] if f"{key}_names" in archive else _get(archive, path, "names", wanted=f"{key}_names")


def _match(
    features: Shaped[np.ndarray, "n ..."],
    names: Shaped[np.ndarray, " n"],
    values: Shaped[np.ndarray, "m q"],
    labelled: Shaped[np.ndarray, " m"],
    path: str | Path,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    for what, given in (("features", names), ("labels", labelled)):
        (name, times), *_ = Counter(map(str, given)).most_common(1) or [("", 0)]
        if times > 1:
            raise ValueError(f"{path}: {what}: {name!r} stands {times} times among the names; keep one row of each")
    position = {str(name): row for row, name in enumerate(labelled)}
    kept = [row for row, name in enumerate(names) if str(name) in position]
    if not kept:
        raise ValueError(
            f"{path}: has labels for none of the features (first: {names[0]!s}); pass another file or split"
        )
    return features[kept], names[kept], values[[position[str(names[row])] for row in kept]]
