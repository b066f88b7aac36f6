"""The configuration of a run as one frozen dataclass; the command line of `experiments/run.py` is derived from it."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from mlt_jax.arguments import check_integer, check_number
from mlt_jax.data import DEFAULT_SPLITS
from mlt_jax.models import names as MODELS
from mlt_jax.models.pretrained import imagenet
from mlt_jax.paper.methods import load_plugins
from mlt_jax.training.loop import Schedule
from mlt_jax.training.methods import find_estimator, find_method
from mlt_jax.transition import check_assume

NOISES = ("mlml", "pml", "ulf", "alf", "rates", "pairwise", "none")
DEFAULT_METHODS = ("Standard", "Reweight", "Reweight-TrueT")
# Where these differ, a run is another run: it may not go on from the same folder.
# Its data counts by content, not by place; more seeds and methods extend it.
_NOT_IDENTITY = (
    "workdir", "resume", "plugins", "save_every", "workers", "coordinator", "num_processes", "process_id", "timeout",
    "seeds", "methods", "data_dir", "features", "labels", "cache",
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """Train on noisy labels as the paper does: warm up, estimate the noise of every class, retrain with it, test."""

    dataset: str = "digits"
    """digits (made on the spot), voc2007, voc2012, coco, folder (images with CSV files of labels) or features
    (SPLIT.npz with features and labels, in --data-dir)"""
    data_dir: Path | None = None
    """folder that holds the data set; without it VOC and COCO are looked for in $MLT_JAX_DATA (else
    ~/.cache/mlt_jax/data) and where TensorFlow Datasets keeps its data, and downloaded where they are in neither"""
    source: str = "files"
    """files, or tfds: records prepared by TensorFlow Datasets"""
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
    """one whole run each: noise, initial weights, order of examples; more of them in a finished folder extend it"""

    methods: tuple[str, ...] = DEFAULT_METHODS
    """what to train, by the names of paper/methods.py: Standard, GCE, CDR, WSIC, AGCN, CSRA, Reweight, Forward,
    Backward, Revision, CSRA+Reweight, Reweight-TrueT, ...; by default the true T is left out where nobody knows it"""
    estimator: str = "auto"
    """where the T of Reweight, Forward, Backward and Revision comes from: auto (cross-fitted heads on features, those
    of the pretrained network where all of it is trained; else small losses and label correlations), recipe (the paper's
    estimator as in its tables), dual-t or t (its baselines), or another name of paper/methods.py"""
    assume: str = "general"
    """general, or what you know: missing (no given label is wrong, rho_neg = 0), partial (none is missing)"""
    plugins: tuple[Path, ...] = ()
    """Python files that register methods or estimators of your own, see CONTRIBUTING.md"""

    model: str | None = None
    """small, resnet18, resnet34, resnet50, resnet101 or linear; by default linear on features, small on digits, else
    resnet50"""
    pretrained: str | None = None
    """weight file (.npz, .safetensors), a name on the Hugging Face hub such as timm/resnet50.tv_in1k (or @ and a
    revision after it), or none: from scratch; by default torchvision's ImageNet weights for ResNets, none for others"""
    backbone: str = "auto"
    """finetune (all weights), tail (the last stage and the head, on kept maps of the stage before), frozen (a linear
    head on kept features), or auto: frozen for a ResNet where there is no accelerator"""
    cache: Path = Path("runs/features")
    """where the features of a frozen backbone, or of the pretrained one for auto, and the maps of a tail are kept"""
    views: int = 4
    """of each training image for a tail: the whole image and crops that are drawn once"""
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
    """of Adam; by default 5e-4 for a linear head, 5e-5 for a fine-tuned ResNet or its tail, 1e-3 for small"""
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
    timeout: int = 100
    """seconds to wait for a process that does not come or answer; one that is killed is noticed at once"""


@dataclass(frozen=True)
class Settings:
    """A configuration with every default filled in."""

    given: Config
    model: str
    pretrained: str | None  # None: from scratch
    backbone: str  # "finetune", "tail" or "frozen"
    schedule: Schedule
    train_split: str
    test_split: str
    workdir: Path

    def as_json(self) -> dict[str, Any]:
        """All of it in JSON's types."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[1:]}
        flat = dataclasses.asdict(self.given) | own | self.schedule._asdict()
        del flat["schedule"]
        return {name: _plain(value) for name, value in flat.items()}

    def identity(self) -> dict[str, Any]:
        """What makes it this run and no other."""
        return {name: value for name, value in self.as_json().items() if name not in _NOT_IDENTITY}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def _check_numbers(config: Config) -> None:
    """Raises ValueError for a number that no run can have."""
    for name in ("epochs", "sample_epoch", "batch_size", "image_size", "workers"):
        if getattr(config, name) is not None:
            check_integer(name, getattr(config, name), 1)
    for name in ("accumulate", "views", "timeout"):
        check_integer(name, getattr(config, name), 1)
    if not config.seeds:
        raise ValueError("seeds: none; pass at least one, such as --seeds 0")
    for seed in config.seeds:
        check_integer("seeds", seed, 0, 2**31 - 1)
    if config.learning_rate is not None:
        check_number("learning_rate", config.learning_rate, lambda x: 0 < x < math.inf, "a positive number")


def resolve(config: Config) -> Settings:
    """The configuration with every default filled in.

    Raises:
      ValueError: for a value that is none of those listed.
    """
    choices = {
        "dataset": tuple(DEFAULT_SPLITS), "noise": NOISES, "backbone": ("auto", "frozen", "tail", "finetune"),
        "precision": ("float32", "bf16"), "source": ("files", "tfds"), "on_error": ("raise", "skip"),
    }  # fmt: skip
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            raise ValueError(f"{name}: {getattr(config, name)!r} is unknown; pass {', '.join(allowed)}")
    load_plugins(config.plugins)
    check_assume(config.assume)
    find_estimator(config.estimator)
    for name in config.methods:
        find_method(name)
    if not config.methods:
        raise ValueError("methods: none; pass at least one, such as --methods Standard")
    _check_numbers(config)
    on_features = config.features is not None or config.dataset == "features"
    model = config.model or ("linear" if on_features else "small" if config.dataset == "digits" else "resnet50")
    if model not in MODELS:
        raise ValueError(f"model: {model!r} is unknown; pass {', '.join(MODELS)}")
    backbone = config.backbone
    if backbone == "auto":
        backbone = "frozen" if model.startswith("resnet") and jax.default_backend() == "cpu" else "finetune"
    pretrained = None if config.pretrained == "none" else config.pretrained or imagenet(model)
    if backbone == "tail" and model == "linear":
        raise ValueError("backbone: tail, and the model is linear, which has no stages; pass images and a ResNet")
    if backbone in ("frozen", "tail") and pretrained is None and model != "linear":
        fixed = f"frozen ({config.backbone})" if backbone == "frozen" else "fixed before the tail"
        raise ValueError(
            f"pretrained: none, and the backbone is {fixed}; pass --pretrained=weights.npz (or a "
            "name on the Hugging Face hub), --backbone=finetune to train all weights, or --features"
        )
    digits, head = config.dataset == "digits" and not on_features, model == "linear" or backbone == "frozen"
    epochs = config.epochs or (4 if digits else 30 if config.dataset == "coco" else 20)
    schedule = Schedule(
        epochs,
        config.sample_epoch or (epochs if digits else max(1, epochs // 2)),
        config.batch_size or (32 if digits else 128),
        config.learning_rate or (5e-4 if head else 5e-5 if model.startswith("resnet") else 1e-3),
    )
    if not 1 <= schedule.sample_epoch <= epochs:
        raise ValueError(f"sample_epoch: {schedule.sample_epoch}; pass 1 to epochs = {epochs}")
    train, test = DEFAULT_SPLITS[config.dataset]
    noise = config.noise if config.noise == "none" else f"{config.noise}-{config.rho_neg:g}-{config.rho_pos:g}"
    return Settings(
        given=config,
        model=model,
        pretrained=pretrained,
        backbone=backbone,
        schedule=schedule,
        train_split=config.train_split or train,
        test_split=config.test_split or test,
        workdir=config.workdir or Path("runs") / f"{config.dataset}-{noise}",
    )
