"""ImageNet weights from npz and safetensors files (never pickle), with the preprocessing they were trained with.

Two families: npz with our own names (`stage1.block1.1.conv.kernel`; v1, BGR minus means: the Keras weights), and
safetensors with torchvision's names (`layer1.0.conv1.weight`; v1.5, RGB), as published on the Hugging Face hub.
"""

import hashlib
import json
import os
import re
import zipfile
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mlt_jax.models.base import CAFFE, IMAGENET, Preprocess, PyTree
from mlt_jax.models.resnet import SHAPES, Shape
from mlt_jax.network import reach

_FILE = "model.safetensors"
_PREPROCESS = "preprocess"  # in an npz of ours, as JSON; files without it are those of Keras
_LEAVES = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"}


class Pin(NamedTuple):
    """One version of a repository's `model.safetensors`."""

    revision: str
    sha256: str


# torchvision's first ImageNet weights, which the paper starts from, as timm publishes them. Without a pin the hub's own
# hash is checked.
PINNED = {
    "timm/resnet18.tv_in1k": Pin(
        "bbd144b3e5565108aad885f145491d11bc6ce807", "694f673df6520a3158624e8a89af086f59923ee4cd7436fe5bc3bc71d295ad81"
    ),
    "timm/resnet34.tv_in1k": Pin(
        "1b7b21cca82ff974d341713f777bf740c2db38c4", "0bb82595a564991a9d424708b33f5d843f5aaed7f6c0886ff10849ff97022235"
    ),
    "timm/resnet50.tv_in1k": Pin(
        "78f3ecfdb38e06d9b8397f662e7ab8fee96026fa", "5d061a3c593d795bfe682d9b152bafbcf550579873492def3515b46db1189888"
    ),
}


def imagenet(model: str) -> str | None:
    """The repository of a network's ImageNet weights, at the revision pinned, if any; None for other networks."""
    if not model.startswith("resnet"):
        return None
    name = f"timm/{model}.tv_in1k"
    return f"{name}@{PINNED[name].revision}" if name in PINNED else name


class Weights(NamedTuple):
    """Arrays by path (`stem.conv.kernel`, `stage1_block1.unit1.bn.mean`, `head.bias`), and what goes with them."""

    arrays: dict[str, np.ndarray]
    version: str  # "v1" or "v1.5"
    preprocess: Preprocess
    source: str


def load(source: str | PathLike[str], shape: Shape) -> Weights:
    """Weights of a .npz or .safetensors file, or of a repository of the Hugging Face hub, for a ResNet of `shape`."""
    path, preprocess = Path(source).expanduser(), IMAGENET
    if not path.exists():
        if path.suffix in (".npz", ".safetensors"):
            raise FileNotFoundError(f"pretrained: no file {str(source)!r}; check the path")
        path, preprocess = download(str(source))
    if path.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"pretrained: {str(source)!r}; pass a .npz or .safetensors file (pickles are not read)")
    try:
        if path.suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = dict(archive)
            facts = arrays.pop(_PREPROCESS, None)
            preprocess = CAFFE if facts is None else Preprocess(*map(_tuple, json.loads(str(facts))))
            version = "v1" if preprocess == CAFFE else "v1.5"
            return Weights({_from_npz(key): value for key, value in arrays.items()}, version, preprocess, str(source))
        with safe_open(path, "numpy") as opened:
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
            kept = (opened.metadata() or {}).get("preprocess")
    except (SafetensorError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"pretrained: {str(source)!r} cannot be read ({error}); fetch or write it again") from error
    preprocess = preprocess if kept is None else Preprocess(*map(_tuple, json.loads(kept)))
    return Weights(from_torchvision(tensors, shape), "v1.5", preprocess, str(source))


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def save(path: Path, name: str, params: PyTree, stats: PyTree, preprocess: Preprocess | None) -> Path:
    """The file written, in the family that the preprocessing belongs to, so that `load` can read it.

    ResNets with a linear head get torchvision's names (.safetensors), or ours (.npz) where they began as v1. Others get
    ours, with `head.` before them where a head stands alone: a linear one is an .npz of `head.kernel` (d, q) and
    `head.bias` (q,). `path` has no suffix.
    """
    arrays = flatten_dict(params if name in SHAPES else {"head": params}, sep=".") | flatten_dict(stats, sep=".")
    theirs = set(torchvision_names(SHAPES[name]).values()) if name in SHAPES and preprocess != CAFFE else set()
    torchvision = arrays.keys() == theirs
    path = path.with_suffix(".safetensors" if torchvision else ".npz")
    draft = path.with_suffix(".part")
    if torchvision:
        facts = None if preprocess is None else {"preprocess": json.dumps(preprocess)}
        save_file(to_torchvision(params, stats, SHAPES[name]), draft, metadata=facts)
    else:
        named: dict[str, Any] = {_to_npz(key): np.asarray(value) for key, value in arrays.items()}
        if name in SHAPES and preprocess is not None:
            named[_PREPROCESS] = np.array(json.dumps(preprocess))
        with draft.open("wb") as file:
            np.savez(file, **named)
    os.replace(draft, path)
    return path


def fill(params: PyTree, stats: PyTree, weights: Weights) -> tuple[PyTree, PyTree]:
    """Both trees with the weights in place; the head stays as it is where the weights have another."""
    arrays = dict(weights.arrays)
    trees = [flatten_dict(params, sep="."), flatten_dict(stats, sep=".")]
    head = {key: np.asarray(x) for tree in trees for key, x in tree.items() if key.startswith("head.")}
    if any(key not in arrays or arrays[key].shape != x.shape for key, x in head.items()):
        arrays = {key: x for key, x in arrays.items() if not key.startswith("head.")} | head
    wanted = {key: value.shape for tree in trees for key, value in tree.items()}
    missing, unknown = sorted(wanted.keys() - arrays.keys()), sorted(arrays.keys() - wanted.keys())
    if missing or unknown:
        raise ValueError(
            f"pretrained: {weights.source!r} is of another network: {len(missing)} arrays missing "
            f"({', '.join(missing[:3])}), {len(unknown)} unknown ({', '.join(unknown[:3])}); pass the matching name"
        )
    wrong = [key for key in wanted if arrays[key].shape != wanted[key]]
    if wrong:
        found = f"{wrong[0]} is {arrays[wrong[0]].shape}, this network has {wanted[wrong[0]]}"
        raise ValueError(f"pretrained: {weights.source!r} is of another network: {found}; pass the matching name")
    filled = [{key: jnp.asarray(arrays[key], jnp.float32) for key in tree} for tree in trees]
    return unflatten_dict(filled[0], sep="."), unflatten_dict(filled[1], sep=".")


def _from_npz(key: str) -> str:
    """`stage1.block1.2.conv.kernel` -> `stage1_block1.unit2.conv.kernel`."""
    return re.sub(r"\.(\d)\.", r".unit\1.", re.sub(r"^(stage\d+)\.(block\d+)", r"\1_\2", key))


def _to_npz(key: str) -> str:
    return re.sub(r"\.unit(\d)\.", r".\1.", re.sub(r"^(stage\d+)_(block\d+)", r"\1.\2", key))


def from_torchvision(tensors: dict[str, np.ndarray], shape: Shape) -> dict[str, np.ndarray]:
    """Arrays by our paths from tensors by torchvision's names, kernels turned from OIHW to HWIO."""
    names = torchvision_names(shape)
    unknown = [key for key in tensors if key not in names and not key.endswith("num_batches_tracked")]
    if unknown:
        raise ValueError(f"pretrained: tensor {unknown[0]!r} is not of this network; pass the matching name")
    return {names[key]: _turn(value) for key, value in tensors.items() if key in names}


def to_torchvision(params: PyTree, stats: PyTree, shape: Shape) -> dict[str, np.ndarray]:
    """Tensors by torchvision's names, for `safetensors.numpy.save_file`: the inverse of `from_torchvision`."""
    arrays = flatten_dict(params, sep=".") | flatten_dict(stats, sep=".")
    return {name: _turn(np.asarray(arrays[path]), back=True) for name, path in torchvision_names(shape).items()}


def _turn(array: np.ndarray, *, back: bool = False) -> np.ndarray:
    axes = {2: (1, 0), 4: (3, 2, 0, 1) if back else (2, 3, 1, 0)}.get(array.ndim)
    return array if axes is None else np.ascontiguousarray(array.transpose(axes))


def torchvision_names(shape: Shape) -> dict[str, str]:
    """Our path of every tensor of a torchvision ResNet of this shape."""

    def unit(conv: str, bn: str, ours: str) -> dict[str, str]:
        leaves = {f"{bn}.{theirs}": f"{ours}.bn.{leaf}" for theirs, leaf in _LEAVES.items()}
        return {f"{conv}.weight": f"{ours}.conv.kernel"} | leaves

    names = unit("conv1", "bn1", "stem")
    for s, blocks in enumerate(shape.blocks, 1):
        for b in range(blocks):
            theirs, ours = f"layer{s}.{b}", f"stage{s}_block{b + 1}"
            for u in range(1, 4 if shape.bottleneck else 3):
                names |= unit(f"{theirs}.conv{u}", f"{theirs}.bn{u}", f"{ours}.unit{u}")
            if b == 0 and (s > 1 or shape.bottleneck):
                names |= unit(f"{theirs}.downsample.0", f"{theirs}.downsample.1", f"{ours}.shortcut")
    return names | {"fc.weight": "head.kernel", "fc.bias": "head.bias"}


def download(repository: str) -> tuple[Path, Preprocess]:
    """Local path of `model.safetensors` of a repository of the Hugging Face hub, fetched once, and its preprocessing.

    Kept and found as `huggingface_hub` does (`HF_HOME`, `HF_ENDPOINT`, ...). The file must have the hash of `PINNED`,
    else the one by which the hub names it.

    Args:
      repository: "owner/name", or "owner/name@revision".
    """
    name, _, revision = repository.partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise FileNotFoundError(f"pretrained: {repository!r} is neither a file nor a repository like 'owner/name'")
    pin = PINNED.get(name)
    if pin is not None and revision in ("", pin.revision):
        path = _fetch(name, _FILE, pin.revision)
        _check(path, repository, pin.sha256)
        return path, IMAGENET
    path = _fetch(name, _FILE, revision)
    stored = path.resolve().name  # the hub's cache names large files by their hash
    if re.fullmatch("[0-9a-f]{64}", stored):
        _check(path, repository, stored)
    return path, _preprocess(name, revision)


def _preprocess(repository: str, revision: str) -> Preprocess:
    """By timm's `config.json`, which tells mean and std; without one, ImageNet's."""
    from huggingface_hub.utils import EntryNotFoundError, LocalEntryNotFoundError

    try:
        facts = json.loads(_fetch(repository, "config.json", revision).read_text()).get("pretrained_cfg", {})
    except ConnectionError as error:
        absent = isinstance(error.__cause__, EntryNotFoundError)
        if not absent or isinstance(error.__cause__, LocalEntryNotFoundError):
            raise
        return IMAGENET
    mean, std = (tuple(facts.get(key, getattr(IMAGENET, key))) for key in ("mean", "std"))
    return IMAGENET._replace(mean=mean, std=std)


def _fetch(repository: str, file: str, revision: str) -> Path:
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.utils import LocalEntryNotFoundError

    wanted: dict[str, Any] = dict(repo_id=repository, filename=file, revision=revision or None)
    try:
        try:
            return Path(hf_hub_download(**wanted, local_files_only=True))
        except LocalEntryNotFoundError:
            reach(constants.ENDPOINT)
            return Path(hf_hub_download(**wanted))
    except Exception as error:  # each version of the hub's client has another HTTP library, with errors of its own
        why = " ".join(str(error.__cause__ or error).split())
        raise ConnectionError(
            f"pretrained: {file} of {repository} is not in the hub's cache and could not be fetched ({why}); on a "
            f"machine with a network, download {_FILE} of huggingface.co/{repository} and pass its path, "
            f"--pretrained=path/to/{_FILE}"
        ) from error


def _check(path: Path, repository: str, expected: str) -> None:
    """ValueError where the file has another hash; it is then deleted, to be fetched again."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise ValueError(
            f"pretrained: {_FILE} of {repository} has the hash {found[:12]}, not {expected[:12]}, and was deleted; run "
            f"again, or pass --pretrained=path/to/{_FILE}"
        )
