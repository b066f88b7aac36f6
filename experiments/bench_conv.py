"""ResNet-50 on CPUs by the ways that might make its convolutions faster, beside the shipped one.

    python experiments/bench_conv.py                       # all, in turns; needs `pip install torch==2.13.0`
    python experiments/bench_conv.py --ways shipped winograd2 --rounds 5
    python experiments/bench_conv.py --alone               # single 3x3 convolutions, Winograd's beside XLA's

Every way runs in a process of its own and first proves that its forward pass agrees with XLA's plain convolutions. Then
all are timed in turns, as in `bench_resnet.py`: 224 px, batch 16, float32. The reference is PyTorch with our allocator
settings, whose convolutions are oneDNN's.

- shipped: 1x1 convolutions as products, their kernels' gradients in the order with the longer rows; 3x3 of stride 1 and
  many channels by Winograd's tiles of 2x2, others by XLA with Eigen; batch norm's gradient written out. The ways below
  differ in what they name, and leave Winograd out.
- direct: without Winograd.
- ynn: convolutions by YNNPACK, which XLA takes by itself.
- onednn: XLA's flags for oneDNN. It says whether the compiled program calls oneDNN at all.
- nchw: channels first in every convolution that is no product; XLA picks the layouts in between.
- patches: 3x3 as one product with the nine pixels that the kernel sees, copied beside each other.
- shifted: 3x3 as the sum of nine products with shifted maps, no copies.
- winograd2, winograd4: all 3x3 of stride 1 by tiles of 2x2 and 4x4, in 2.25 and 4 times fewer multiplications.
- autodiff: batch norm and ReLU with the gradient that JAX derives.
"""

import multiprocessing as mp
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import Array, lax

from mlt_jax.models import build, cpu, layers

Conv = Callable[[Array, Array, int], Array]
_xla: Conv = layers._conv


def nchw(x: Array, kernel: Array, stride: int) -> Array:
    """The convolution with channels first."""
    pad = len(kernel) // 2
    y = lax.conv_general_dilated(x.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1), (stride, stride),
                                 [(pad, pad)] * 2, dimension_numbers=("NCHW", "OIHW", "NCHW"))  # fmt: skip
    return y.transpose(0, 2, 3, 1)


def _sides(x: Array, stride: int) -> tuple[int, int]:
    return -(-x.shape[1] // stride), -(-x.shape[2] // stride)


def patches(x: Array, kernel: Array, stride: int) -> Array:
    """3x3 as one product; the stem's 7x7 is left to XLA."""
    if len(kernel) != 3:
        return _xla(x, kernel, stride)
    seen = layers._patches(x, 3, stride, *_sides(x, stride))
    return layers._pointwise(seen, kernel.reshape(-1, kernel.shape[-1]))


def shifted(x: Array, kernel: Array, stride: int) -> Array:
    """3x3 as nine products; the stem's 7x7 is left to XLA."""
    if len(kernel) != 3:
        return _xla(x, kernel, stride)
    rows, columns = _sides(x, stride)
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    last = stride * (rows - 1) + 1, stride * (columns - 1) + 1
    parts = (
        layers._pointwise(padded[:, r : r + last[0] : stride, c : c + last[1] : stride], kernel[r, c])
        for r in range(3)
        for c in range(3)
    )
    return sum(parts, jnp.zeros((), x.dtype))


# For 4x4 outputs of a 3x3 kernel (Lavin and Gray 2016).
_WINOGRAD_4 = (
    (
        (4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0),
        (0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1),
    ),
    (
        (1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1),
    ),
    ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
)  # fmt: skip


def winograd(x: Array, kernel: Array, stride: int, *, matrices: Sequence = layers.WINOGRAD) -> Array:
    """3x3 of stride 1 by Winograd's tiles however few the channels; else XLA's."""
    return layers.winograd(x, kernel, matrices) if len(kernel) == 3 and stride == 1 else _xla(x, kernel, stride)


def _batch_norm(x: Array, shortcut: Array | None, scale: Array, bias: Array, relu: bool, axis_name: str | None) -> Any:
    """`layers.batch_norm` with the gradient that JAX derives."""
    return layers._batch_norm_forward(x, shortcut, scale, bias, relu, axis_name)[0]


Way = Literal["shipped", "direct", "ynn", "onednn", "nchw", "patches", "shifted", "winograd2", "winograd4", "autodiff"]
CONVS: dict[str, Conv] = {
    "nchw": nchw, "patches": patches, "shifted": shifted,
    "winograd2": winograd, "winograd4": partial(winograd, matrices=_WINOGRAD_4),
}  # fmt: skip
# Before the backend starts. Without the second, YNNPACK takes what oneDNN could.
FLAGS = {
    "onednn": "--xla_cpu_experimental_onednn_custom_call=true "
    "--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_REDUCE",
    "ynn": "--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_REDUCE,"
    "LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION",
}


def contend(way: str, turns: Connection, batch: int, size: int) -> None:
    """A way's process: sends what it has to say of itself, then the seconds of each job it receives."""
    os.environ["XLA_FLAGS"] = FLAGS.get(way, "")
    cpu.tune()
    from bench_resnet import jax_steps, torch_steps

    rng = np.random.default_rng(0)
    images = rng.normal(size=(batch, size, size, 3)).astype(np.float32)
    labels = rng.integers(0, 1000, batch)
    if way == "torch-kept":
        steps = torch_steps(images, labels)
        turns.send("")
    else:
        turns.send(set_up(way))
        steps = jax_steps(images, labels, "matmul")
    while (job := turns.recv()) is not None:
        start = time.perf_counter()
        steps[job]()
        turns.send(time.perf_counter() - start)


def set_up(way: str) -> str:
    """Makes this process compute that way; how far its logits are from those of plain convolutions."""
    few = jnp.asarray(np.random.default_rng(1).normal(size=(2, 64, 64, 3)), jnp.float32)
    expected = _logits("lax", few)
    if way != "shipped":
        layers.TRANSFORMED = 1 << 30  # or it would be Winograd's before the way is asked
    layers._conv = CONVS.get(way, _xla)  # type: ignore[assignment]
    if way == "autodiff":
        layers.batch_norm = _batch_norm  # type: ignore[assignment]
    found = _logits("matmul", few)
    apart = float(jnp.max(jnp.abs(found - expected)) / jnp.max(jnp.abs(expected)))
    if not apart < 1e-3:
        raise ArithmeticError(f"{way}: its logits are {apart:.1e} away from those of plain convolutions")
    said = f"logits {apart:.0e} off"
    if way == "onednn":
        product = jax.jit(lambda x: x @ x).lower(jnp.ones((1024, 1024)))
        maps = jax.jit(lambda x, k: _xla(x, k, 1)).lower(jnp.ones((16, 28, 28, 128)), jnp.ones((3, 3, 128, 128)))
        called = any("__onednn" in str(program.compile().as_text()) for program in (product, maps))
        said += ", calls oneDNN" if called else ", oneDNN is not called: XLA compiles what it would without"
    return said


def _logits(conv: str, images: Array) -> Array:
    model = build("resnet50", num_classes=10, key=jax.random.key(0), conv=conv)
    return jax.jit(lambda x: model.apply(model.params, model.stats, x, True)[0])(images)


@dataclass(frozen=True)
class Options:
    """What to time."""

    ways: tuple[Way, ...] = get_args(Way)
    rounds: int = 9
    at_once: int = 3
    """ways; each keeps up to 3 GB"""
    batch: int = 16
    size: int = 224
    jobs: tuple[Literal["train", "forward"], ...] = ("train", "forward")
    alone: bool = False
    """time the network's 3x3 convolutions of stride 1 one by one instead"""


# Images, sides and channels: ResNet-50's four stages at 224 px, and its last one as a tail at 176 px sees it.
SHAPES = ((16, 56, 64), (16, 28, 128), (16, 14, 256), (16, 7, 512), (128, 6, 512))


def alone(rounds: int) -> None:
    """Prints how many times faster than XLA's each convolution is by Winograd's tiles of 2x2."""
    cpu.tune()
    rng = np.random.default_rng(0)
    for b, side, c in SHAPES:
        x, kernel = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((b, side, side, c), (3, 3, c, c)))
        seconds: list[list[float]] = []
        for conv in (_xla, winograd):
            forward = jax.jit(lambda x, kernel, conv=conv: conv(x, kernel, 1))
            back = jax.jit(jax.grad(lambda x, kernel, conv=conv: jnp.sum(conv(x, kernel, 1) ** 2), (0, 1)))
            seconds.append([least(partial(run, x, kernel), rounds) for run in (forward, back)])
        once, twice = np.array(seconds[0]) / np.array(seconds[1])
        print(f"{b} x {side} x {side}, {c} channels: forward {once:.2f}, forward and backward {twice:.2f}", flush=True)


def least(run: Callable[[], Any], rounds: int) -> float:
    """Least seconds, compilation apart."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return min(times[1:])


def main(args: Options) -> None:
    """Prints a line per way and job; so many ways at once as memory holds, each time beside the reference."""
    if args.alone:
        alone(args.rounds)
        return
    for start in range(0, len(args.ways), args.at_once):
        compare(args, args.ways[start : start + args.at_once])


def compare(args: Options, ways: Sequence[str]) -> None:
    """Times some ways and the reference in turns."""
    spawn, pipes = mp.get_context("spawn"), {}
    for name in ("torch-kept", *ways):
        pipes[name], theirs = spawn.Pipe()
        spawn.Process(target=contend, args=(name, theirs, args.batch, args.size), daemon=True).start()
        theirs.close()  # or a way that dies would leave us waiting
        try:
            print(f"{name}: {pipes[name].recv() or 'the reference'}", flush=True)
        except EOFError:
            print(f"{name}: ended, see above", flush=True)
            del pipes[name]
    for job in args.jobs:
        seconds: dict[str, list[float]] = {name: [] for name in pipes}
        for turn in range(-4, args.rounds):  # the first turns compile and take memory
            for name, pipe in pipes.items():
                pipe.send(job)
                taken = pipe.recv()
                if turn >= 0:
                    seconds[name].append(taken)
        reference = np.array(seconds["torch-kept"])
        for name, taken in seconds.items():
            low, median, high = np.quantile(reference / np.array(taken), (0.25, 0.5, 0.75))
            speed = args.batch / np.median(taken)
            print(f"{job:8s} {name:10s} {speed:6.1f} images/s   x PyTorch: {median:.2f} ({low:.2f} to {high:.2f})",
                  flush=True)  # fmt: skip
    for pipe in pipes.values():
        pipe.send(None)


if __name__ == "__main__":
    main(tyro.cli(Options))
