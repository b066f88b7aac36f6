"""TFDS: the real builders on small archives. Preparation runs in a process of its own, reading in this one."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest
from cocofolder import IMAGES, write_coco
from paths import DATA, ROOT
from PIL import Image

from mlt_jax.data import load_coco, load_tfds, load_voc
from mlt_jax.data.voc import CLASSES

# An interpreter with TensorFlow may prepare for one without, which then shows that reading needs none.
PYTHON = os.environ.get("MLT_JAX_TFDS_PYTHON", sys.executable)
# The archives are ours, so their checksums are not the registered ones; everything else is TFDS as it is.
PREPARE = """
import sys
from tensorflow_datasets.core.download.download_manager import DownloadManager
DownloadManager._register_or_validate_checksums = lambda *args, **kwargs: None
from mlt_jax.data import load_tfds
data = load_tfds(sys.argv[1], sys.argv[2], data_dir=sys.argv[3])
print(len(data.ids), int(data.labels.sum()))
"""


def prepare(name, split, data_dir):
    if sys.executable == PYTHON and find_spec("tensorflow") is None:
        pytest.skip("TFDS preparation needs TensorFlow: pip install 'mlt_jax[tfds]', or set MLT_JAX_TFDS_PYTHON")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [PYTHON, "-c", PREPARE, name, split, data_dir],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [int(word) for word in done.stdout.split()[-2:]]


@pytest.fixture(scope="module")
def devkit():
    if not (DATA / "VOCdevkit").exists():
        pytest.skip(f"real data VOCdevkit not found in {DATA} (set MLT_JAX_DATA)")
    return DATA / "VOCdevkit"


def pack(root, folder, archive):
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w") as tar:
        tar.add(root / folder, folder)


def assert_same(ours, theirs):
    assert (ours.name, ours.ids, ours.classes) == (theirs.name, theirs.ids, theirs.classes)
    np.testing.assert_array_equal(ours.labels, theirs.labels)
    assert (ours.ignore is None) == (theirs.ignore is None)
    if ours.ignore is not None:
        np.testing.assert_array_equal(ours.ignore, theirs.ignore)
    rows = range(min(len(ours.ids), 24))
    with ThreadPoolExecutor(4) as pool:
        for one, other in zip(pool.map(ours.image, rows), pool.map(theirs.image, rows), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def prepared(devkit, tmp_path_factory):
    """A TFDS folder of voc/2012, made by its real builder from the mini VOCdevkit."""
    root = tmp_path_factory.mktemp("tfds")
    manual = root / "downloads" / "manual"
    pack(devkit.parent, "VOCdevkit", manual / "VOCtrainval_11-May-2012.tar")
    # Test images without annotations, as VOC2012 has them.
    test = root / "test" / "VOCdevkit" / "VOC2012"
    (test / "ImageSets" / "Main").mkdir(parents=True)
    (test / "JPEGImages").mkdir()
    (test / "ImageSets" / "Main" / "test.txt").write_text("2013_000001\n")
    shutil.copy(devkit / "VOC2012" / "JPEGImages" / "2008_000042.jpg", test / "JPEGImages" / "2013_000001.jpg")
    pack(root / "test", "VOCdevkit", manual / "VOC2012test.tar")
    assert prepare("voc/2012", "trainval", root) == [480, load_voc(devkit, 2012, "trainval").labels.sum()]
    return root


@pytest.mark.slow
def test_voc2012_through_its_builder_equals_the_devkit(devkit, prepared):
    for split in ("train", "val", "trainval"):
        assert_same(load_tfds("voc/2012", split, data_dir=prepared), load_voc(devkit, 2012, split))
    assert "tensorflow" not in sys.modules


def train_for_a_few_steps(workdir, *flags):
    """Logs and test scores by method of ResNet-50, its ImageNet weights fine-tuned for one epoch on 64 px images."""
    root = ROOT
    weights = f"--pretrained={DATA / 'resnet50_imagenet.npz'}"
    common = ["--backbone=finetune", weights, "--image-size=64", "--batch-size=64", "--epochs=1", "--noise=none"]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(workdir.parent / "compiled"), "XLA_FLAGS": ""}
    command = [sys.executable, root / "experiments" / "run.py", *common, "--seeds=0", f"--workdir={workdir}", *flags]
    env = os.environ | cache | {"PYTHONPATH": str(root)}
    done = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    seed = workdir / "seed0"
    logs = {
        path.parent.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in seed.glob("*/metrics.jsonl")
    }
    for method in logs:
        [weights] = (seed / method).glob("weights.*")
        assert weights.stat().st_size > 90e6
    return logs, json.loads((seed / "results.json").read_text())["test"]


def losses(logs):
    return {method: [entry["train_loss"] for entry in lines] for method, lines in logs.items()}


@pytest.fixture(scope="module")
def from_devkit(devkit, tmp_path_factory):
    splits = ("--train-split=train", "--test-split=val")
    flags = ("--dataset=voc2012", f"--data-dir={devkit.parent}", *splits)
    return train_for_a_few_steps(tmp_path_factory.getbasetemp() / "from_devkit", *flags)


@pytest.mark.slow
def test_resnet50_trains_from_the_jpegs_of_a_folder_as_from_a_devkit(devkit, from_devkit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("folder")
    (folder / "images").symlink_to(devkit / "VOC2012" / "JPEGImages")
    for split in ("train", "val"):
        data = load_voc(devkit, 2012, split)
        rows = [
            ",".join((f"images/{name}.jpg", *map(str, row))) for name, row in zip(data.ids, data.labels, strict=True)
        ]
        (folder / f"{split}.csv").write_text("\n".join([",".join(("image", *data.classes)), *rows]) + "\n")
    flags = ("--dataset=folder", f"--data-dir={folder}", "--train-split=train", "--test-split=val")
    logs, scores = train_for_a_few_steps(tmp_path_factory.getbasetemp() / "from_folder", *flags)
    assert {method: len(lines) for method, lines in logs.items()} == {"Standard": 1, "Reweight": 1}
    assert losses(logs) == losses(from_devkit[0])
    # 4 steps with the head new: far above the share of positives (8 %), where a random ranking would stay.
    assert scores["Reweight"]["mAP"] > 0.12


@pytest.mark.slow
def test_resnet50_trains_through_tfds_as_from_a_devkit(prepared, from_devkit, tmp_path_factory):
    flags = ("--dataset=voc2012", "--source=tfds", f"--data-dir={prepared}", "--train-split=train", "--test-split=val")
    found = train_for_a_few_steps(tmp_path_factory.getbasetemp() / "from_tfds", *flags)
    assert found == from_devkit


def write_annotated_devkit(root, year, splits, values):
    """A devkit of noise images with the annotations that `values` (n, 20), of 1, 0, -1, call for."""
    folder = root / "VOCdevkit" / f"VOC{year}"
    for part in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (folder / part).mkdir(parents=True)
    item = (
        "<object><name>{}</name><pose>Left</pose><truncated>0</truncated><difficult>{}</difficult>"
        "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
    )
    for row, value in enumerate(values):
        objects = "".join(
            item.format(name, int(cell == 0)) for name, cell in zip(CLASSES, value, strict=True) if cell >= 0
        )
        size = "<size><width>40</width><height>30</height><depth>3</depth></size>"
        (folder / "Annotations" / f"{row:06d}.xml").write_text(f"<annotation>{size}{objects}</annotation>")
        pixels = np.random.default_rng(row).integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "JPEGImages" / f"{row:06d}.jpg")
    for split, rows in splits.items():
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{row:06d}\n" for row in rows))
        for column, name in enumerate(CLASSES):
            lines = "".join(f"{row:06d} {values[row, column]:2d}\n" for row in rows)
            (folder / "ImageSets" / "Main" / f"{name}_{split}.txt").write_text(lines)


@pytest.mark.slow
def test_voc2007_through_its_builder_equals_the_devkit(tmp_path):
    values = np.random.default_rng(0).choice([-1, 0, 1], (14, 20), p=[0.8, 0.05, 0.15])
    # Train and val interleave, so that their union is not their concatenation.
    splits = {
        "train": [0, 3, 4, 8],
        "val": [1, 2, 5, 9],
        "trainval": [0, 1, 2, 3, 4, 5, 8, 9],
        "test": [6, 7, 10, 11, 12, 13],
    }
    write_annotated_devkit(tmp_path, 2007, splits, values)
    for archive in ("VOCtrainval_06-Nov-2007.tar", "VOCtest_06-Nov-2007.tar"):
        pack(tmp_path, "VOCdevkit", tmp_path / "tfds" / "downloads" / "manual" / archive)
    prepare("voc/2007", "test", tmp_path / "tfds")
    for split in splits:
        assert_same(load_tfds("voc/2007", split, data_dir=tmp_path / "tfds"), load_voc(tmp_path, 2007, split))


@pytest.mark.slow
def test_coco2014_through_its_builder_equals_the_json(tmp_path):
    manual = tmp_path / "tfds" / "downloads" / "manual"
    manual.mkdir(parents=True)
    archives = {}
    for part in ("train2014", "val2014", "test2014", "test2015"):
        write_coco(tmp_path, part, IMAGES if part == "train2014" else {5: [3], 6: []})
        archives[f"{part}.zip"] = (tmp_path / part).glob("*.jpg")
        instances = tmp_path / "annotations" / f"instances_{part}.json"
        if part.startswith("test"):
            info = instances.rename(tmp_path / "annotations" / f"image_info_{part}.json")
            archives[f"image_info_{part}.zip"] = [info]
    archives["annotations_trainval2014.zip"] = (tmp_path / "annotations").glob("instances_*.json")
    for name, members in archives.items():
        with zipfile.ZipFile(manual / name, "w") as archive:
            for member in members:
                archive.write(member, member.relative_to(tmp_path))
    assert prepare("coco/2014", "train", tmp_path / "tfds") == [3, 5]
    for split in ("train", "val"):
        assert_same(load_tfds("coco/2014", split, data_dir=tmp_path / "tfds"), load_coco(tmp_path, split))


def test_unprepared_data_without_tensorflow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("mlt_jax.data.tfds.find_spec", lambda module: None)
    with pytest.raises(ModuleNotFoundError, match=r"no array records of voc/2012.*tensorflow.*mlt_jax\[tfds\]"):
        load_tfds("voc/2012", "trainval", data_dir=tmp_path)


def test_splits_without_labels_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"split: 'test' is unknown; voc/2012 with labels has 'train', 'val', 'trainval'"
    ):
        load_tfds("voc/2012", "test", data_dir=tmp_path)
    with pytest.raises(ValueError, match="name: 'mnist' is unknown"):
        load_tfds("mnist", "train", data_dir=tmp_path)
