"""Which runs a table is made of.

A cell is one number's worth of work: a method (or estimator) on a study's data under a noise setting with a seed. A
table's entry is the mean over seeds of one cell, or of several where the paper averages noise settings.
"""

import itertools
from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from mlt_jax.paper import printed as paper
from mlt_jax.paper.methods import ALIASES, ESTIMATORS, METHODS, needs_maps
from mlt_jax.paper.printed import AVERAGE
from mlt_jax.training.records import slug

SEED_FREE = ("frequencies",)
# Rows of ours that follow a printed one.
BLIND = {"Our estimator": "Our estimator, blind", "Reweight-Ours": "Reweight-Ours, blind"}
VARIANTS = {"GCE": "GCE, warm start"}
# The rows that were printed for these come from a bug, which the row that follows has too: see `released_dual_t`.
RELEASED = {name: f"{name}, as released" for name in ("Dual T-estimator 97%", "Reweight-DualT 97%")}
PRINTED_FOR = {ours: printed for printed, ours in RELEASED.items()}
TAUS = ("0.4", "0.5", "0.6")
# Studies of `experiments/tail.py`, whose rows stand beside those of est_VOC2007: what frozen features cost.
BESIDE = {"voc2007-frozen": "frozen, half", "voc2007-tail": "tail", "voc2007-finetune": "fine-tuned"}
COMPARED = ("Dual T-estimator max", "Our estimator", "Our estimator, blind")
# Such a row -> its study and the row it stands beside.
BESIDE_ROWS = {f"{name}, {word}": (study, name) for study, word in BESIDE.items() for name in COMPARED}
# Rows that are no competitors: an oracle, or not the paper's method.
NO_RIVALS = (
    "Reweight-TrueT", "Reweight-Ours, blind", "Our estimator gold", "Our estimator, blind", *VARIANTS.values(),
    *BESIDE_ROWS,
)  # fmt: skip
CLASS_DEPENDENT = {"voc2007": "cls_VOC2007_c", "voc2012": "cls_VOC2012_c", "coco": "cls_MSCOCO_c"}
INSTANCE_DEPENDENT = {"voc2007": "cls_VOC2007_ins_c", "voc2012": "cls_VOC2012_ins_c", "coco": "cls_MSCOCO_ins_c"}
TYPES = ("MLML", "PML", "ULF", "ALF")


class Study(NamedTuple):
    """Training and test data of a study."""

    dataset: str
    train: str
    test: str | None = None  # None: nothing is trained to be tested, only T is estimated


STUDIES = {
    "voc2007": Study("voc2007", "trainval", "voc2012/trainval"),
    "voc2012": Study("voc2012", "trainval", "voc2007/trainval"),
    "coco": Study("coco", "train", "val"),
    "voc-pool": Study("voc", "trainval+test"),
}
# VOC2007's images are at hand, those of VOC2012 are not.
MAP_STUDIES = {"voc2007": Study("voc2007", "train", "val")}
# Pooled features of the images of a study on maps: what rows on maps can be compared with.
HALF = {"voc2007": "voc2007-half"}
WHOLE = {half: study for study, half in HALF.items()}
STUDIES |= {HALF[study]: data for study, data in MAP_STUDIES.items()}
# The paper's splits, where VOC2007's test set is at hand.
REAL_TEST = {"voc2007": Study("voc2007", "trainval", "test"), "voc2012": Study("voc2012", "trainval", "voc2007/test")}
# Where a data set's T errors come from.
ESTIMATION = {"voc2007": "voc2007", "voc2012": "voc2012", "coco": "coco", "voc": "voc-pool"}


class Cell(NamedTuple):
    """One run: its scores are one small file."""

    study: str
    setting: str  # a column's name, such as "(0,0.2)" or "PMD-Type-I"
    seed: int
    method: str

    @property
    def path(self) -> str:
        """Where its file lies, relative to the work folder."""
        return f"{self.study}/{slug(self.setting)}/seed{self.seed}/{slug(self.method)}.json"

    @property
    def inputs(self) -> str:
        """What the run reads: "labels", "pooled" features, spatial "maps", or "images"."""
        if self.study in BESIDE:
            return "images"
        if self.study == "voc-pool" or self.method in LABEL_ONLY or self.method.startswith("n="):
            return "labels"
        return "maps" if needs_maps(self.method) else "pooled"


LABEL_ONLY = ("Our estimator gold", "label A", "label B", "frequencies")


class Row(NamedTuple):
    """A row of our table; `method` as printed, where it is printed."""

    metric: str | None
    method: str


class Plan(NamedTuple):
    """A table of ours: rows, columns, and the runs behind every entry."""

    id: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    entries: Mapping[tuple[Row, str], tuple[Cell, ...]]  # seed 0 stands for every seed
    headings: Mapping[str, str] = {}  # of columns that say more than their name
    half: tuple[Cell, ...] = ()  # runs on pooled features of the images that rows on maps are tested on

    def cells(self, *, seeds: Iterable[int], map_seeds: int) -> list[Cell]:
        """Every run of the table, each once; those on maps, and beside them, only for the first `map_seeds` seeds."""
        found: dict[Cell, None] = {}
        for cell in (*itertools.chain.from_iterable(self.entries.values()), *self.half):
            chosen = [0] if cell.method in SEED_FREE else list(seeds)
            for seed in chosen[:map_seeds] if cell.inputs == "maps" or cell in self.half else chosen:
                found[cell._replace(seed=seed)] = None
        return list(found)

    def beside_maps(self, methods: Iterable[str]) -> "Plan":
        """The plan where rows on maps have images of their own, with the runs of some methods on these images."""
        settings = {(cell.study, cell.setting) for group in self.entries.values() for cell in group
                    if cell.inputs == "maps" and cell.study in HALF}  # fmt: skip
        half = [Cell(HALF[study], setting, 0, name) for study, setting in sorted(settings) for name in methods]
        return self._replace(half=tuple(half))


def ids() -> tuple[str, ...]:
    """All tables: the paper's, and "tau" (its figure)."""
    return (*paper.tables(), "tau")


def plan(table_id: str, *, extra: Iterable[str] = (), beside: Container[str] = ()) -> Plan:
    """The table of that id.

    Args:
      extra: further methods or estimators to give a row.
      beside: which studies of `BESIDE` to show.
    """
    if table_id not in ids():
        raise ValueError(f"table: {table_id!r} is unknown; pass one of {', '.join(ids())}, or all")
    if table_id == "tau":
        return _tau()
    printed = paper.tables()[table_id]
    if printed.kind == "wilcoxon":
        return _wilcoxon(printed)
    rows: list[Row] = []
    for row in printed.rows:
        rows.append(Row(row.metric, row.method))
        beside_it = RELEASED | (BLIND if table_id.startswith(("est_", "cls_", "ins")) else {}) | VARIANTS
        if row.method in beside_it:
            rows.append(Row(row.metric, beside_it[row.method]))
    if table_id == "est_VOC2007":
        shown = [name for name, (study, _) in BESIDE_ROWS.items() if study in beside]
        rows += [Row("T_error", name) for name in shown]
    known = ESTIMATORS.keys() if printed.kind == "estimation_error" else METHODS.keys()
    metrics = dict.fromkeys(row.metric for row in rows)
    rows += [
        Row(metric, name) for metric in metrics for name in extra if name in known and Row(metric, name) not in rows
    ]
    entries = {(row, column): _cells(printed, row, column) for row in rows for column in printed.columns}
    return Plan(table_id, printed.caption, printed.columns, tuple(rows), entries)


def _cells(printed: paper.PaperTable, row: Row, column: str) -> tuple[Cell, ...]:
    method = ALIASES.get(row.method, row.method)
    if method in BESIDE_ROWS:
        study, method = BESIDE_ROWS[method]
        return (Cell(study, column, 0, method),)
    if printed.id == "ablation_n1":
        return (Cell("coco", column, 0, "label A" if row.method.endswith("A") else "label B"),)
    if printed.id == "validation_coco":
        return (Cell("coco", "clean", 0, "frequencies"),)
    if row.metric == "T_error":
        return (Cell(ESTIMATION[printed.dataset], column, 0, method),)
    dataset = {"Pascal-VOC2007": "voc2007", "Pascal-VOC2012": "voc2012", "MS-COCO": "coco"}.get(column, printed.dataset)
    settings = [column]
    if printed.id == "ins":
        settings = list(paper.tables()[INSTANCE_DEPENDENT[dataset]].columns)
    elif column in (*TYPES, AVERAGE):
        every = paper.tables()[CLASS_DEPENDENT[dataset]].columns
        place = TYPES.index(column) if column in TYPES else None
        settings = list(every if place is None else every[2 * place : 2 * place + 2])
    return tuple(Cell(dataset, setting, 0, method) for setting in settings)


def _wilcoxon(printed: paper.PaperTable) -> Plan:
    """Our method against every baseline: an entry has the runs of all settings of all data sets, for both."""
    settings = [
        (dataset, column)
        for group in (CLASS_DEPENDENT, INSTANCE_DEPENDENT)
        for dataset, table in group.items()
        for column in paper.tables()[table].columns
    ]
    rows = tuple(Row(row.metric, row.method) for row in printed.rows)
    columns = tuple(name for column in printed.columns for name in (column, RELEASED.get(column)) if name)
    entries = {
        (row, column): tuple(Cell(*at, 0, name) for name in (row.method, column) for at in settings)
        for row in rows
        for column in columns
    }
    return Plan(printed.id, printed.caption, columns, rows, entries)


def _tau() -> Plan:
    columns = paper.tables()["cls_VOC2007_c"].columns
    rows = tuple(Row(metric, f"Reweight-Ours (tau={tau})") for metric in ("validation_mAP", "mAP") for tau in TAUS)
    entries = {
        (row, column): (Cell("voc2007", column, 0, ALIASES.get(row.method, row.method)),)
        for row in rows
        for column in columns
    }
    caption = "Threshold of the selection: mAP of Reweight-Ours on noisy validation and on test labels, VOC2007"
    return Plan("tau", caption, columns, rows, entries)
