"""VOC and COCO where they usually lie, else their original archives: fetched, checked and unpacked once.

URLs, checksums and the download manager are those of TensorFlow Datasets; TensorFlow is not needed.
"""

import dataclasses
import os
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from filelock import FileLock
from tqdm import tqdm

from mlt_jax.data import coco, voc
from mlt_jax.network import reach
from mlt_jax.processes import say

ARCHIVES = {
    "voc2007": ("VOCtrainval_06-Nov-2007.tar", "VOCtest_06-Nov-2007.tar"),
    "voc2012": ("VOCtrainval_11-May-2012.tar",),
    "coco": ("annotations_trainval2014.zip", "train2014.zip", "val2014.zip"),
}


def home() -> Path:
    """Where archives are fetched to: $MLT_JAX_DATA, else `mlt_jax/data` in the user's cache folder."""
    if given := os.environ.get("MLT_JAX_DATA"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mlt_jax" / "data"


def tfds_home() -> Path:
    """Where TensorFlow Datasets keeps its data."""
    return Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def find(dataset: str, split: str) -> Path | None:
    """The first folder that `load_voc` or `load_coco` can read the split from: in `home()`, or unpacked by TFDS."""
    unpacked = sorted((tfds_home() / "downloads" / "extracted").glob("*"))
    for folder in (home() / dataset, home(), *unpacked):
        if coco.holds(folder, split) if dataset == "coco" else voc.holds(folder, dataset.removeprefix("voc"), split):
            return folder
    return None


def fetch(dataset: str) -> Path:
    """The folder of a data set in `home()`, fetched first where it is not there.

    An archive that is there already, whole, is not fetched again. Processes that ask at once wait for the first. The
    folder appears when it is complete, and then the archives are deleted.

    Raises:
      OSError: it could not be fetched; the message says why and what to put where.
    """
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
    from tensorflow_datasets.core.download.util import DownloadError

    folder, files = home() / dataset, known(dataset)
    manual = home() / "downloads" / "manual"
    try:
        home().mkdir(parents=True, exist_ok=True)
        with FileLock(home() / f"{dataset}.lock"):
            if not folder.exists():
                _fill(folder, files, manual)
    except (OSError, DownloadError, NonMatchingChecksumError, tarfile.TarError, zipfile.BadZipFile) as error:
        wrong = "an archive does not have the checksum that TFDS knows"
        why = wrong if isinstance(error, NonMatchingChecksumError) else " ".join(str(error).split())
        names = " and ".join(files)
        raise OSError(
            f"{dataset}: not in {home()} or {tfds_home()}, and it could not be fetched ({why}); put {names} from "
            f"{next(iter(files.values()))[0].rpartition('/')[0]} into {manual}, or pass --data-dir=FOLDER with "
            + ("annotations, train2014 and val2014" if dataset == "coco" else "VOCdevkit")
        ) from error
    return folder


def known(dataset: str) -> dict[str, tuple[str, Any]]:
    """(URL, what TFDS knows of the file: `size` and `checksum`) of every archive of a data set, by name."""
    from tensorflow_datasets.core.download import checksums
    from tensorflow_datasets.core.utils import tfds_path

    table = checksums.load_url_infos(tfds_path("url_checksums") / ("coco.txt" if dataset == "coco" else "voc.txt"))
    found = {url.rpartition("/")[2]: (url, info) for url, info in table.items()}
    return {name: found[name] for name in ARCHIVES[dataset]}


def _fill(folder: Path, files: dict[str, tuple[str, Any]], manual: Path) -> None:
    """Makes the folder of the archives; whoever calls holds the lock."""
    import tensorflow_datasets as tfds

    downloads, draft = folder.parent / "downloads" / folder.name, folder.with_suffix(".part")
    tfds.display_progress_bar(sys.stderr.isatty())
    # By its name the manager finds a file put there by hand; not every table has names.
    expected = {url: dataclasses.replace(info, filename=name) for name, (url, info) in files.items()}
    shutil.rmtree(draft, ignore_errors=True)
    present = {path.stat().st_size for place in (downloads, manual) for path in place.rglob("*") if path.is_file()}
    _check_space(folder.parent, [info.size for info in expected.values()], present)
    manager = tfds.download.DownloadManager(
        download_dir=downloads, manual_dir=manual, url_infos=expected, force_checksums_validation=True
    )
    try:
        for url, info in expected.items():
            if info.size not in present:
                reach(url)
                say(f"fetching {info.filename} ({info.size / 1e9:.2g} GB) from {url}")
            _unpack(Path(manager.download(url)), draft)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        for half in downloads.rglob("*.tmp.*"):  # the manager leaves them; it cannot go on from one
            shutil.rmtree(half, ignore_errors=True)
    shutil.rmtree(downloads, ignore_errors=True)


def _check_space(folder: Path, sizes: list[int], present: set[int]) -> None:
    """OSError where the archives that are not yet there, and the content of all, about as large, would not fit."""
    need = sum(sizes) + sum(size for size in sizes if size not in present)
    free = shutil.disk_usage(folder).free
    if need > free:
        raise OSError(f"{need / 1e9:.0f} GB needed in {folder}, {free / 1e9:.0f} free")


def _unpack(archive: Path, folder: Path) -> None:
    if tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and newer
            for member in tqdm(tar, desc=f"unpacking {archive.name}", unit="file", disable=None):
                tar.extract(member, folder)
        return
    with zipfile.ZipFile(archive) as box:
        for name in tqdm(box.namelist(), desc=f"unpacking {archive.name}", unit="file", disable=None):
            box.extract(name, folder)
