"""VOC and COCO where they usually lie, else their original archives: fetched, checked and unpacked once.

URLs, sizes and checksums are those of TensorFlow Datasets; TensorFlow is not needed. Its download manager is not used:
it cannot go on with half a file, and COCO's have up to 14 GB.
"""

import hashlib
import os
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from filelock import FileLock
from tqdm import tqdm

from mlt_jax.data import coco, voc
from mlt_jax.network import download
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

    An archive that is there already is not fetched again, and half of one is gone on with. Processes that ask at once
    wait for the first. The folder appears when it is complete, and then the archives are deleted.

    Raises:
      OSError: it could not be fetched; the message says why and what to put where.
    """
    folder, files = home() / dataset, known(dataset)
    manual = home() / "downloads" / "manual"
    try:
        home().mkdir(parents=True, exist_ok=True)
        with FileLock(home() / f"{dataset}.lock"):
            if not folder.exists():
                _fill(folder, files, manual)
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        why, names = " ".join(str(error).split()), " and ".join(files)
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
    downloads, draft = folder.parent / "downloads" / folder.name, folder.with_suffix(".part")
    shutil.rmtree(draft, ignore_errors=True)
    places = {name: manual / name if (manual / name).exists() else downloads / name for name in files}
    _check_space(folder.parent, [(places[name], info.size) for name, (_, info) in files.items()])
    try:
        for name, (url, info) in files.items():
            archive = places[name]
            if not archive.exists():
                say(f"fetching {name} ({info.size / 1e9:.2g} GB) from {url}")
                download(url, archive, size=info.size)
            _check_content(archive, info.checksum, keep=archive.parent == manual)
            _unpack(archive, draft)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    shutil.rmtree(downloads, ignore_errors=True)


def _check_space(folder: Path, archives: list[tuple[Path, int]]) -> None:
    """OSError where what is still to come, and the content of all, about as large as they are, would not fit."""

    def came(path: Path) -> int:
        part = path.with_name(f"{path.name}.part")
        return next((each.stat().st_size for each in (path, part) if each.exists()), 0)

    need = sum(2 * size - min(size, came(path)) for path, size in archives)
    free = shutil.disk_usage(folder).free
    if need > free:
        raise OSError(f"{need / 1e9:.0f} GB needed in {folder}, {free / 1e9:.0f} free")


def _check_content(archive: Path, checksum: str, *, keep: bool) -> None:
    """OSError where an archive is not the known one; it is deleted, to be fetched anew, unless it is to be kept."""
    with archive.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() == checksum:
            return
    if not keep:
        archive.unlink()
    raise OSError(f"{archive} does not have the checksum that TFDS knows" + (": replace it" if keep else ""))


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
