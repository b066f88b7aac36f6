"""VOC and COCO through TensorFlow Datasets: read without TensorFlow, which only their preparation needs."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mlt_jax.data import coco, voc
from mlt_jax.data.base import Dataset, Pixels, check_split, read_image

BUILDERS = {"voc2007": "voc/2007", "voc2012": "voc/2012", "coco": "coco/2014"}
LABELLED = {"voc/2007": voc.SPLITS, "voc/2012": ("train", "val", "trainval"), "coco/2014": coco.SPLITS}
_SPLITS = {"train": "train", "val": "validation", "trainval": "train+validation", "test": "test"}


def load_tfds(name: str, split: str, *, data_dir: str | Path | None = None) -> Dataset:
    """A split of "voc/2007", "voc/2012" or "coco/2014", equal to what `load_voc` and `load_coco` give for it.

    Examples are in the order of their file names. One pass over the split reads the labels.

    Args:
      split: "train", "val", "trainval" or "test" for VOC (VOC2012's test has no labels), "train" or "val" for COCO.
      data_dir: where TFDS keeps its data (default: $TFDS_DATA_DIR, else ~/tensorflow_datasets). What is not there yet
        is downloaded and prepared as array records, which needs the `[tfds]` extra.
    """
    if name not in BUILDERS.values():
        raise ValueError(f"name: {name!r} is unknown; pass {', '.join(map(repr, BUILDERS.values()))}")
    check_split(split, LABELLED[name], f"{name} with labels")
    source, names = _open(name, split, data_dir)
    classes = tuple(sorted(names))
    column = np.array([classes.index(name) for name in names])
    # Only file names and labels are kept: the encoded images of a whole split need not fit in memory.
    facts = sorted((*_facts(source[row], name), row) for row in range(len(source)))
    facts = [fact for fact in facts if name.startswith("voc") or fact[1]]  # COCO images without annotation are left out
    labels, plain = np.zeros((2, len(facts), len(classes)), np.uint8)
    for example, (_, present, clear, _) in enumerate(facts):
        labels[example, column[list(present)]] = 1
        plain[example, column[list(clear)]] = 1
    difficult = labels > plain
    ids = tuple(Path(file).stem if name.startswith("voc") else file for file, *_ in facts)
    image = _Records(source, tuple(row for *_, row in facts), ids)
    title = f"{name.replace('/', '')}/{split}"
    return Dataset(title, ids, classes, labels, difficult if difficult.any() else None, image)


@dataclass(frozen=True)
class _Records:
    source: Sequence[Any]
    rows: tuple[int, ...]
    ids: tuple[str, ...]

    def __call__(self, row: int) -> Pixels:
        return read_image(self.source[self.rows[row]]["image"], self.ids[row])


def _facts(record: dict[str, Any], name: str) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """(file name, classes present, classes present other than as difficult) of one record."""
    present = record["labels"] if name.startswith("voc") else record["objects"]["label"]
    clear = record["labels_no_difficult"] if name.startswith("voc") else present
    file = record["image/filename"]
    return file.decode() if isinstance(file, bytes) else str(file), tuple(map(int, present)), tuple(map(int, clear))


def _open(name: str, split: str, data_dir: str | Path | None) -> tuple[Sequence[Any], list[str]]:
    """(records with images still encoded, class names in the order of their numbers), prepared first where needed."""
    import tensorflow_datasets as tfds  # takes a second, so only where it is needed

    builder = _prepared(name, data_dir)
    features = builder.info.features
    label = features["labels"].feature if name.startswith("voc") else features["objects"]["label"]
    source = builder.as_data_source(_SPLITS[split], decoders={"image": tfds.decode.SkipDecoding()})
    return source, label.names


def records(name: str, data_dir: str | Path | None = None) -> Any:
    """The builder of array records that TFDS has prepared, or None."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.read_only_builder import builder_from_files

    # From the files alone: COCO's own builder imports TensorFlow before it has read anything.
    with suppress(tfds.core.DatasetNotFoundError):
        builder = builder_from_files(name, **_options(data_dir))
        if tfds.core.FileFormat.ARRAY_RECORD in builder.info.available_file_formats():
            return builder
    return None


def _options(data_dir: str | Path | None) -> dict[str, str]:
    return {} if data_dir is None else {"data_dir": str(Path(data_dir).expanduser())}


def _prepared(name: str, data_dir: str | Path | None) -> Any:
    import tensorflow_datasets as tfds

    if (builder := records(name, data_dir)) is not None:
        return builder
    if missing := [module for module in ("tensorflow", "importlib_resources") if find_spec(module) is None]:
        raise ModuleNotFoundError(
            f"data_dir: {data_dir or 'that of TFDS'} holds no array records of {name}, and preparing them needs "
            f"{' and '.join(missing)}: run pip install 'mlt_jax[tfds]' and the same command again, or unpack the "
            "original archives and drop --source=tfds"
        )
    builder = tfds.builder(name, file_format="array_record", **_options(data_dir))
    builder.download_and_prepare()
    return builder
