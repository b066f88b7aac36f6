"""ImageNet weights from npz and safetensors files (never pickle), with the preprocessing they were trained with.

Two families: npz with our own names (`stage1.block1.1.conv.kernel`; v1, BGR minus means: the Keras weights), and
safetensors with torchvision's names (`layer1.0.conv1.weight`; v1.5, RGB), as published on the Hugging Face hub.
"""

import os
import re
import urllib.error
import urllib.request
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from mlt_jax.models.base import CAFFE, IMAGENET, Preprocess, PyTree
from mlt_jax.models.resnet import SHAPES, Shape

_FILE = "model.safetensors"
_HUB = "https://huggingface.co"
_LEAVES = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"}


class Weights(NamedTuple):
    """Arrays by path (`stem.conv.kernel`, `stage1_block1.unit1.bn.mean`, `head.bias`), and what goes with them."""

    arrays: dict[str, np.ndarray]
    version: str  # "v1" or "v1.5"
    preprocess: Preprocess
    source: str


def load(source: str | PathLike[str], shape: Shape) -> Weights:
    """Weights of a .npz or .safetensors file, or of a repository of the Hugging Face hub, for a ResNet of `shape`."""
    path = Path(source)
    if not path.exists():
        if path.suffix in (".npz", ".safetensors"):
            raise FileNotFoundError(f"pretrained: no file {str(source)!r}; check the path")
        path = download(str(source))
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            arrays = {_from_npz(key): value for key, value in archive.items()}
        return Weights(arrays, "v1", CAFFE, str(source))
    if path.suffix != ".safetensors":
        raise ValueError(f"pretrained: {str(source)!r}; pass a .npz or .safetensors file (pickles are not read)")
    from safetensors.numpy import load_file

    return Weights(from_torchvision(load_file(path), shape), "v1.5", IMAGENET, str(source))


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
        from safetensors.numpy import save_file

        save_file(to_torchvision(params, stats, SHAPES[name]), draft)
    else:
        named: dict[str, Any] = {_to_npz(key): np.asarray(value) for key, value in arrays.items()}
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


def download(repository: str) -> Path:
    """Local path of `model.safetensors` of a repository of the Hugging Face hub, fetched once.

    With `huggingface_hub` installed its cache and credentials are used; else plain HTTP into `~/.cache/mlt_jax`.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise FileNotFoundError(f"pretrained: {repository!r} is neither a file nor a repository like 'owner/name'")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        return _fetch(repository)
    return Path(hf_hub_download(repository, _FILE))


def _fetch(repository: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mlt_jax" / repository.replace("/", "--")
    path, url = cache / _FILE, f"{os.environ.get('HF_ENDPOINT', _HUB)}/{repository}/resolve/main/{_FILE}"
    if path.exists():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        with urllib.request.urlopen(url, timeout=30) as answer, part.open("wb") as out:
            while piece := answer.read(1 << 20):
                out.write(piece)
    except (urllib.error.URLError, TimeoutError, OSError) as error:
        part.unlink(missing_ok=True)
        raise ConnectionError(
            f"pretrained: could not fetch {url} ({error}); on a machine with a network, download that file "
            f"and pass its path, --pretrained=path/to/{_FILE}"
        ) from error
    part.replace(path)
    return path
