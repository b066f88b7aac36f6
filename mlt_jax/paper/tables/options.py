"""The options of `experiments/tables.py`, from which its command line is derived."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """Run the missing cells of the paper's tables and write them, ours beside theirs."""

    table: tuple[str, ...] = ("all",)
    """the paper's labels, such as est_VOC2012 or cls_VOC2007_c; tau, the paper's figure; or all"""
    features_dir: Path | None = None
    """folder of DATASET_features.npz and DATASET_labels.npz (of COCO coco2014_train_labels.npz, for all its labels)"""
    devkit: Path | None = None
    """folder that holds VOCdevkit: images for AGCN, CSRA, finetune, and for whatever has no features"""
    pretrained: str | None = None
    """ResNet-50 weights (.npz, .safetensors, or a name on the Hugging Face hub), for AGCN, CSRA and finetune"""
    backbone: str = "frozen"
    """frozen (heads are trained on features, computed once) or finetune (the whole network, from images)"""
    real_test: bool = False
    """test on VOC2007's test set as the paper does; without it trainval of VOC2007 is tested on VOC2012's, and the
    other way round (AGCN and CSRA, which look at images: VOC2007 train on val)"""
    difficult: str = "positive"
    """what VOC marks as only difficult is, in the test set: positive, as in the paper's code, or skip"""
    seeds: tuple[int, ...] = (0, 1, 2)
    map_seeds: int = 1
    """how many of the seeds the slow rows get that look at spatial maps, AGCN and CSRA"""
    only: tuple[str, ...] = ()
    """regular expressions; runs cells whose "study setting seedN method" one of them finds, writes what there is"""
    extra: tuple[str, ...] = ()
    """further methods or estimators, by the names of paper/methods.py or of a plugin, to give a row"""
    plugins: tuple[Path, ...] = ()
    """Python files that register methods or estimators of your own, see CONTRIBUTING.md"""

    epochs: int | None = None
    """by default 20, COCO 30, as the paper's"""
    sample_epoch: int | None = None
    """by default half of the epochs, as the paper's"""
    batch_size: int = 128
    learning_rate: float | None = None
    """of Adam; by default 5e-4 for heads on frozen features (AGCN 1.5e-4), 5e-5 for finetune (the heads of
    AGCN and CSRA ten times that)"""
    pmd_levels: tuple[float, float, float] = (0.7, 0.35, 0.35)
    """share of the present labels that PMD noise of type I, II and III flips; the paper does not say its own"""

    workdir: Path = Path("runs/tables")
    """one small file per run; a command that was stopped goes on where it was"""
    out: Path = Path("runs/tables/written")
    """where the tables are written"""
    formats: tuple[str, ...] = ("md", "csv", "tex", "html")
    cache: Path = Path("runs/features")
    """where features of a frozen backbone are kept"""
    launcher: str = "local"
    """local (one run after the other, in this process) or ray (pip install 'mlt_jax[cluster]')"""
    ray_address: str | None = None
    """of a running cluster that shares these folders; by default one is started here"""
    workers: int | None = None
    """with ray: how many runs at once; by default one per core"""
    cells: Path | None = None
    """one compressed file of finished runs (.jsonl.gz): what it has is not run again, what is run is added"""
    write_only: bool = False
    """run nothing, write what there is"""


def check(options: Options) -> None:
    """ValueError for a value that is none of those listed."""
    choices = {"backbone": ("frozen", "finetune"), "launcher": ("local", "ray"), "difficult": ("positive", "skip")}
    for name, allowed in choices.items():
        if getattr(options, name) not in allowed:
            raise ValueError(f"{name}: {getattr(options, name)!r} is unknown; pass {' or '.join(allowed)}")
    unknown = set(options.formats) - {"md", "csv", "tex", "html"}
    if unknown:
        raise ValueError(f"formats: {sorted(unknown)} unknown; pass md, csv, tex, html")
    epochs, sample_epoch = length(options, "voc2007")
    if not 1 <= sample_epoch <= epochs:
        raise ValueError(f"sample_epoch: {sample_epoch}; pass 1 to epochs = {epochs}")
    if not options.seeds:
        raise ValueError("seeds: none; pass at least one, such as --seeds 0")


def length(options: Options, dataset: str) -> tuple[int, int]:
    """Epochs of a training and the last of those whose losses select labels."""
    epochs = options.epochs or (30 if dataset == "coco" else 20)
    return epochs, options.sample_epoch or max(1, epochs // 2)


def identity(options: Options) -> dict[str, object]:
    """What makes a run this run, in JSON's types: cells made under another may not be mixed with these."""
    names = ("backbone", "real_test", "difficult", "epochs", "sample_epoch", "batch_size", "learning_rate",
             "pmd_levels")  # fmt: skip
    return json.loads(json.dumps({name: getattr(options, name) for name in names}))
