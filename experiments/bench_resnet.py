"""ResNet-50 images per second, ours against PyTorch: forward and train step, each in a process of its own, in turns.

    python experiments/bench_resnet.py                 # needs `pip install torch==2.13.0` (the CPU build)

Float32 on 2 cores, 224 px, batch 16, batch norm in training mode for the train step (cross-entropy, SGD with momentum
0.9; ours is the step that `training.loop` compiles, which also takes the gradient's norm). Each round times every
contender once while the others wait, so that other load on the machine affects all alike; the table gives the median
over rounds and the ratio to PyTorch (channels last) in images per second: above 1 is faster than PyTorch.

- torch: as it comes; torch-kept: with the allocator settings of `models.cpu.tune`, which are ours but help it too.
- lax, matmul: ours, as `experiments/run.py` sets it up on a machine without an accelerator; lax-plain, matmul-plain:
  without `tune`.
"""

import multiprocessing as mp
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
import tyro
from torch import nn

from mlt_jax.models import build, cpu
from mlt_jax.training.loop import compile_step
from mlt_jax.training.methods import Method
from mlt_jax.training.step import init_state


class Bottleneck(nn.Module):
    """The block of v1.5."""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        sizes = ((1, channels, width, 1), (3, width, width, stride), (1, width, 4 * width, 1))
        self.units = nn.ModuleList(_unit(*size) for size in sizes)
        resized = stride != 1 or channels != 4 * width
        self.shortcut = _unit(1, channels, 4 * width, stride) if resized else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps after the block."""
        y = torch.relu(self.units[0](x))
        y = torch.relu(self.units[1](y))
        return torch.relu(self.units[2](y) + self.shortcut(x))


def _unit(size: int, channels_in: int, channels_out: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(channels_in, channels_out, size, stride, size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels_out))


def torch_resnet50(num_classes: int) -> nn.Module:
    """ResNet-50 v1.5 in PyTorch, channels last."""
    layers: list[nn.Module] = [_unit(7, 3, 64, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for b in range(blocks):
            layers.append(Bottleneck(channels, 64 << stage, 2 if stage and not b else 1))
            channels = 256 << stage
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def torch_steps(images: np.ndarray, labels: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Forward and train step of PyTorch; images (b, h, w, 3) float32, labels (b,)."""
    net = torch_resnet50(1000)
    x = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    y = torch.from_numpy(labels)
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)

    def forward() -> Any:
        net.eval()
        with torch.inference_mode():
            return net(x)

    def train() -> Any:
        net.train()
        optimiser.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimiser.step()
        return loss.item()

    return {"forward": forward, "train": train}


def jax_steps(images: np.ndarray, labels: np.ndarray, conv: str) -> dict[str, Callable[[], Any]]:
    """The same with our network and the library's train step; its state is donated."""
    model = build("resnet50", num_classes=1000, key=jax.random.key(0), conv=conv)
    optimizer, x = optax.sgd(1e-3, momentum=0.9), jnp.asarray(images)

    def loss(logits: jax.Array, labels: jax.Array) -> jax.Array:  # one column: the step averages over columns
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels)[:, None]

    step = compile_step(model, Method(loss=lambda logits, labels, T: loss(logits, labels)), optimizer)
    predict = jax.jit(lambda params, stats: model.apply(params, stats, x, False)[0])
    batch = {"inputs": x, "labels": jnp.asarray(labels, jnp.int32), "weight": jnp.ones(len(images))}
    params, stats = jax.tree.map(jnp.copy, (model.params, model.stats))  # the forward pass keeps the model's own
    state = init_state(jax.random.key(0), params, stats, optimizer)

    def train() -> float:
        nonlocal state
        state, metrics = step(state, batch, None)
        return float(metrics["loss"])

    return {"forward": lambda: predict(model.params, model.stats).block_until_ready(), "train": train}


def contend(name: str, turns: Connection, batch: int, size: int) -> None:
    """A contender's process: runs each job it receives and sends back the seconds it took."""
    if name in ("lax", "matmul", "torch-kept"):
        cpu.tune()
    torch.set_num_threads(os.cpu_count() or 1)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(batch, size, size, 3)).astype(np.float32)
    labels = rng.integers(0, 1000, batch)
    is_torch = name.startswith("torch")
    steps = torch_steps(images, labels) if is_torch else jax_steps(images, labels, name.removesuffix("-plain"))
    while (job := turns.recv()) is not None:
        start = time.perf_counter()
        steps[job]()
        turns.send(time.perf_counter() - start)


Contender = Literal["torch", "torch-kept", "lax", "matmul", "lax-plain", "matmul-plain"]


@dataclass(frozen=True)
class Options:
    """What to time."""

    rounds: int = 9
    batch: int = 16
    size: int = 224
    jobs: tuple[Literal["forward", "train"], ...] = ("forward", "train")
    contenders: tuple[Contender, ...] = get_args(Contender)
    """PyTorch as it comes is always in"""


def main(args: Options) -> None:
    """Prints the table."""
    print(f"torch {torch.__version__}, jax {jax.__version__}, batch {args.batch}, {args.size} px, {args.rounds} rounds")
    spawn, pipes = mp.get_context("spawn"), {}
    names: list[str] = ["torch", *args.contenders]
    for name in dict.fromkeys(names):
        pipes[name], theirs = spawn.Pipe()
        spawn.Process(target=contend, args=(name, theirs, args.batch, args.size), daemon=True).start()
        theirs.close()  # or a contender that dies would leave us waiting
    for job in args.jobs:
        seconds: dict[str, list[float]] = {name: [] for name in pipes}
        for turn in range(-4, args.rounds):  # the first turns compile and take memory
            for name, pipe in pipes.items():
                pipe.send(job)
                taken = pipe.recv()
                if turn >= 0:
                    seconds[name].append(taken)
        reference = np.array(seconds["torch"])
        for name, taken in seconds.items():
            rounds = np.quantile(reference / np.array(taken), (0.25, 0.75))
            speed, best = args.batch / np.median(taken), args.batch / min(taken)
            print(
                f"{job:8s} {name:12s} {speed:6.1f} images/s (best {best:6.1f})   x torch: "
                f"{np.median(reference) / np.median(taken):.2f} median, {min(reference) / min(taken):.2f} best, "
                f"quartiles {rounds[0]:.2f} to {rounds[1]:.2f}",
                flush=True,
            )
    for pipe in pipes.values():
        pipe.send(None)


if __name__ == "__main__":
    main(tyro.cli(Options))
