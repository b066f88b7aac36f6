"""The options of `experiments/tables.py`, from which its command line is derived."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """Run the missing cells of the paper's tables and write them, ours beside theirs."""

    table: tuple[str, ...] = ("all",)
    """ids of tables.json, such as est_VOC2012 or cls_VOC2007_c; tau, the paper's figure; or all"""
    features_dir: Path | None = None
    """folder of DATASET_features.npz and DATASET_labels.npz (coco2014_train_labels.npz for COCO's labels alone)"""
    devkit: Path | None = None
    """folder that holds VOCdevkit: VOC2007's lists of train and val; images for AGCN, CSRA, finetune, and for whatever
    has no features"""
    pretrained: str | None = None
    """ResNet-50 weights (.npz, .safetensors, or a name on the Hugging Face hub), for AGCN, CSRA and finetune"""
    backbone: str = "frozen"
    """frozen (heads are trained on features, computed once) or finetune (the whole network, from images)"""
    real_test: bool = False
    """train on trainval and test on VOC2007's test set as the paper does; without it VOC2007 is cut into train and val,
    and VOC2012 is tested on VOC2007's trainval"""
    seeds: tuple[int, ...] = (0, 1, 2)
    map_seeds: int = 1
    """how many of the seeds the slow rows get that look at spatial maps, AGCN and CSRA"""
    only: tuple[str, ...] = ()
    """regular expressions; runs cells whose "study setting seedN method" one of them finds, writes what there is"""
    extra: tuple[str, ...] = ()
    """further methods or estimators, by the names of paper/methods.py or of a plugin, to give a row"""
    plugins: tuple[Path, ...] = ()
    """Python files that register methods or estimators of your own, see CONTRIBUTING.md"""

    epochs: int = 20
    sample_epoch: int = 10
    batch_size: int = 128
    learning_rate: float | None = None
    """of Adam; by default 5e-4 for heads on frozen features (AGCN 1.5e-4), 5e-5 for finetune (AGCN's head ten times
    that)"""
    pmd_level: float = 0.2
    """share of the present labels that PMD noise flips; the paper does not say its own"""

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
    write_only: bool = False
    """run nothing, write what there is"""


def check(options: Options) -> None:
    """ValueError for a value that is none of those listed."""
    choices = {"backbone": ("frozen", "finetune"), "launcher": ("local", "ray")}
    for name, allowed in choices.items():
        if getattr(options, name) not in allowed:
            raise ValueError(f"{name}: {getattr(options, name)!r} is unknown; pass {' or '.join(allowed)}")
    unknown = set(options.formats) - {"md", "csv", "tex", "html"}
    if unknown:
        raise ValueError(f"formats: {sorted(unknown)} unknown; pass md, csv, tex, html")
    if not 1 <= options.sample_epoch <= options.epochs:
        raise ValueError(f"sample_epoch: {options.sample_epoch}; pass 1 to epochs = {options.epochs}")
    if not options.seeds:
        raise ValueError("seeds: none; pass at least one, such as --seeds 0")


def identity(options: Options) -> dict[str, object]:
    """What makes a run this run: cells made under another may not be mixed with these."""
    names = ("backbone", "real_test", "epochs", "sample_epoch", "batch_size", "learning_rate", "pmd_level")
    return {name: getattr(options, name) for name in names}
