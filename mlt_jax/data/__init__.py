"""Data sets by name, their transforms, and batches of them.

data = load("voc2012", data_dir="~/data")                          # the paper's training split
test = load("voc2012", split="voc2007/test", data_dir="~/data")    # and its test split
for batch in batches(data, batch_size=128, epoch=0, seed=1, train=True): ...
"""

from pathlib import Path

from mlt_jax.data.archives import fetch, find
from mlt_jax.data.base import (
    ArrayImages,
    Batch,
    Dataset,
    Files,
    ImageError,
    Views,
    check_split,
    content_hash,
    read_image,
    stamp,
)
from mlt_jax.data.batches import batches, num_batches
from mlt_jax.data.coco import load_coco
from mlt_jax.data.digits import load_digits_scenes
from mlt_jax.data.features import load_features
from mlt_jax.data.folder import load_folder
from mlt_jax.data.tfds import BUILDERS, LABELLED, load_tfds, records
from mlt_jax.data.transforms import augment, view, warp
from mlt_jax.data.voc import load_voc

# What the paper trains on and tests on. VOC2012's own test labels are not public.
DEFAULT_SPLITS = {
    "digits": ("train", "test"),
    "voc2007": ("trainval", "test"),
    "voc2012": ("trainval", "voc2007/test"),
    "coco": ("train", "val"),
    "folder": ("train", "test"),
    "features": ("train", "test"),
}
SOURCES = ("files", "tfds")


def load(
    dataset: str,
    *,
    split: str | None = None,
    data_dir: str | Path | None = None,
    source: str = "files",
    features: str | Path | None = None,
    labels: str | Path | None = None,
    seed: int = 0,
) -> Dataset:
    """A data set by name.

    Args:
      dataset: "digits", "voc2007", "voc2012", "coco", "folder" (images with a CSV file of labels) or "features"
        (SPLIT.npz with `features` and `labels`).
      split: by default the one the paper trains on; "voc2007/test" is a split of another data set.
      data_dir: the folder with VOCdevkit, with COCO's annotations and images, or with SPLIT.csv or SPLIT.npz. Without
        it VOC and COCO are looked for in $MLT_JAX_DATA (else ~/.cache/mlt_jax/data) and in TFDS's folder, and fetched
        where they are in neither.
      source: "files", or "tfds" for VOC and COCO through TensorFlow Datasets (then `data_dir` is that of TFDS).
      features: an npz of precomputed features to use in place of images, with the labels in it or in the npz `labels`;
        or a folder with DATASET_features.npz and DATASET_labels.npz. See `load_features`.
      seed: of the scenes of "digits".
    """
    if dataset not in DEFAULT_SPLITS:
        raise ValueError(f"dataset: {dataset!r} is unknown; pass {', '.join(map(repr, DEFAULT_SPLITS))}")
    if source not in SOURCES:
        raise ValueError(f"source: {source!r} is unknown; pass {' or '.join(map(repr, SOURCES))}")
    split = DEFAULT_SPLITS[dataset][0] if split is None else split
    if split.partition("/")[0] in DEFAULT_SPLITS and "/" in split:
        dataset, _, split = split.partition("/")
    if features is None and dataset == "features":
        features = data_dir
    if features is not None:
        return _load_features(dataset, split, Path(features).expanduser(), labels)
    if dataset == "digits":
        return load_digits_scenes(split, seed=seed)
    if source == "tfds":
        if dataset not in BUILDERS:
            raise ValueError(f"source: TFDS is for {', '.join(BUILDERS)}; leave it out for {dataset!r}")
        return load_tfds(BUILDERS[dataset], split, data_dir=data_dir)
    if data_dir is None and dataset not in BUILDERS:
        raise ValueError(f"data_dir: is missing; pass the folder that holds {dataset} (--data-dir=...)")
    if data_dir is None:
        name = BUILDERS[dataset]
        check_split(split, LABELLED[name], f"{name} with labels")  # before anything is fetched
        data_dir = find(dataset, split)
        if data_dir is None and records(name) is not None:
            return load_tfds(name, split)
        data_dir = data_dir or fetch(dataset)
    if dataset == "coco":
        return load_coco(data_dir, split)
    if dataset == "folder":
        return load_folder(data_dir, split)
    return load_voc(data_dir, dataset.removeprefix("voc"), split)


def _load_features(dataset: str, split: str, features: Path, labels: str | Path | None) -> Dataset:
    coding = "voc" if dataset.startswith("voc") else "01"
    if features.is_dir() and dataset == "features":
        features = features / f"{split}.npz"
    elif features.is_dir():
        own = features / f"{dataset}_labels.npz"
        # COCO's labels are in the file of its features.
        labels = labels or (own if own.exists() or dataset != "coco" else None)
        features = features / f"{dataset}_features.npz"
    return load_features(features, labels_path=labels, split=split, coding=coding)
