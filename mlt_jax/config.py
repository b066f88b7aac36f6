"""What a run is told, as one frozen dataclass; the command line of `experiments/run.py` is derived from it."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from mlt_jax.data import DEFAULT_SPLITS
from mlt_jax.estimator.solve import AGGREGATES
from mlt_jax.models import names as MODELS
from mlt_jax.transition import check_assume

NOISES = ("mlml", "pml", "ulf", "alf", "rates", "pairwise", "none")
ESTIMATORS = ("auto", "recipe", "dual-t", "t")
LOSSES = ("reweight", "forward", "backward")
# Where these differ, a run is another run: it may not go on from the same folder.
_NOT_IDENTITY = ("workdir", "resume", "save_every", "workers", "coordinator", "num_processes", "process_id")


@dataclass(frozen=True)
class Config:
    """Train on noisy labels as the paper does: warm up, estimate the noise of every class, retrain with it, test."""

    dataset: str = "digits"
    """digits (made on the spot), voc2007, voc2012, coco, or folder (images with CSV files of labels)"""
    data_dir: Path | None = None
    """folder that holds the data set"""
    source: str = "files"
    """files, or tfds (TensorFlow Datasets, which can download)"""
    features: Path | None = None
    """npz of precomputed features, or a folder of DATASET_features.npz and DATASET_labels.npz, in place of images"""
    labels: Path | None = None
    """npz of the labels, if they are not in the features file"""
    train_split: str | None = None
    """such as trainval; by default what the paper trains on"""
    test_split: str | None = None
    """such as val, or voc2007/test for that of another data set; by default what the paper tests on"""

    noise: str = "rates"
    """mlml (missing), pml (extra), ulf (both alike), alf (as many extra as missing), rates (rho_neg and rho_pos as
    given), pairwise (a class taken for the next one), or none: the labels are used as they are"""
    rho_neg: float = 0.2
    """P(label on | truly off); read by pml and rates"""
    rho_pos: float = 0.2
    """P(label off | truly on); read by mlml, ulf, alf, rates and pairwise"""
    seeds: tuple[int, ...] = (0, 1, 2)
    """one whole run each: noise, initial weights, order of examples"""

    estimator: str = "auto"
    """auto (cross-fitted heads where there are features, else recipe), recipe (the paper's: small losses and label
    correlations), dual-t or t (its baselines)"""
    assume: str = "general"
    """general, or what you know: missing (no given label is wrong, rho_neg = 0), partial (none is missing)"""
    aggregate: str = "joint"
    """how the partners' systems become one T: joint, medoid (the paper's), residual (its code's), mean, first"""
    loss: str = "reweight"
    """how T is used: reweight, forward or backward"""

    model: str | None = None
    """small, resnet18, resnet34, resnet50 or linear; by default linear on features, small on digits, else resnet50"""
    pretrained: str | None = None
    """weight file (.npz, .safetensors), or a name on the Hugging Face hub"""
    backbone: str = "auto"
    """finetune (all weights), frozen (features are computed once and kept, a linear head is trained on them), or auto:
    frozen for a ResNet where there is no accelerator"""
    cache: Path = Path("runs/features")
    """where the features of a frozen backbone are kept"""
    image_size: int | None = None
    """side of the images in pixels; by default 224, or that of digits"""
    epochs: int | None = None
    """of the warm-up, and again of each retraining; by default 20 (coco: 30, digits: 4)"""
    sample_epoch: int | None = None
    """the losses of the (at most) 5 epochs up to this one select the clean labels; by default half of the epochs,
    all of them on digits"""
    batch_size: int | None = None
    """over all processes; by default 128 (digits: 32)"""
    accumulate: int = 1
    """parts into which each batch is cut to save memory"""
    learning_rate: float | None = None
    """of Adam; by default 5e-4 for a linear head, 5e-5 for a fine-tuned ResNet, 1e-3 for small"""
    precision: str = "float32"
    """float32, or bf16 for activations"""
    on_error: str = "raise"
    """what an unreadable image does: raise, or skip"""
    workers: int | None = None
    """decoding threads; by default one per core"""

    workdir: Path | None = None
    """folder for checkpoints and results; by default runs/ and a name made of data set and noise"""
    resume: bool = True
    """go on where a run in the same folder was stopped; --no-resume starts over"""
    save_every: float = 30.0
    """least number of seconds between checkpoints"""
    coordinator: str | None = None
    """host:port of process 0, for a run of several processes; found by itself under Slurm, Kubernetes and MPI"""
    num_processes: int | None = None
    """with --coordinator: how many there are"""
    process_id: int | None = None
    """with --coordinator: which one this is, from 0"""


def resolve(config: Config) -> Config:
    """The same with every default filled in; ValueError for a value that is none of those listed."""
    choices = {
        "dataset": tuple(DEFAULT_SPLITS), "noise": NOISES, "estimator": ESTIMATORS, "aggregate": AGGREGATES,
        "loss": LOSSES, "backbone": ("auto", "frozen", "finetune"), "precision": ("float32", "bf16"),
        "source": ("files", "tfds"), "on_error": ("raise", "skip"),
    }  # fmt: skip
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            raise ValueError(f"{name}: {getattr(config, name)!r} is unknown; pass {', '.join(allowed)}")
    check_assume(config.assume)
    model = config.model or ("linear" if config.features else "small" if config.dataset == "digits" else "resnet50")
    if model not in MODELS:
        raise ValueError(f"model: {model!r} is unknown; pass {', '.join(MODELS)}")
    backbone = config.backbone
    if backbone == "auto":
        backbone = "frozen" if model.startswith("resnet") and jax.default_backend() == "cpu" else "finetune"
    if backbone == "frozen" and not config.pretrained and model != "linear":
        raise ValueError(
            f"pretrained: none, and the backbone is frozen ({config.backbone}); pass --pretrained=weights.npz (or a "
            "name on the Hugging Face hub), --backbone=finetune to train all weights, or --features"
        )
    epochs = config.epochs or {"coco": 30, "digits": 4}.get(config.dataset, 20)
    head = model == "linear" or backbone == "frozen"
    rate = 5e-4 if head else 5e-5 if model.startswith("resnet") else 1e-3
    train, test = DEFAULT_SPLITS[config.dataset]
    noise = config.noise if config.noise == "none" else f"{config.noise}-{config.rho_neg:g}-{config.rho_pos:g}"
    filled = dataclasses.replace(
        config,
        model=model,
        backbone=backbone,
        epochs=epochs,
        sample_epoch=config.sample_epoch or (epochs if config.dataset == "digits" else max(1, epochs // 2)),
        learning_rate=config.learning_rate or rate,
        batch_size=config.batch_size or (32 if config.dataset == "digits" else 128),
        train_split=config.train_split or train,
        test_split=config.test_split or test,
        workdir=config.workdir or Path("runs") / f"{config.dataset}-{noise}",
    )
    if not 1 <= filled.sample_epoch <= epochs:  # type: ignore[operator]
        raise ValueError(f"sample_epoch: {filled.sample_epoch}; pass 1 to epochs = {epochs}")
    return filled


def as_json(config: Config) -> dict[str, Any]:
    """The configuration in JSON's types."""
    return {
        name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(config).items()
    }


def identity(record: dict[str, Any]) -> dict[str, Any]:
    """What of a configuration (as JSON) makes it this run and no other."""
    return {name: value for name, value in record.items() if name not in _NOT_IDENTITY}
