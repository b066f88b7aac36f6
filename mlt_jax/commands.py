"""What the command `mlt` takes: a class per command, its fields the options, and the text of `mlt --help`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from mlt_jax.files.columns import Table
from mlt_jax.files.tables import read_table


@dataclasses.dataclass(frozen=True)
class EstimateCommand:
    """How noisy is each class? Writes T, from labels and the cells taken as clean, or from those that are not.

    Files hold (n, q) matrices: npz of scipy.sparse.save_npz, or npy. Several processes read the same files and each
    counts its share of the rows; Slurm, Kubernetes and MPI need no --coordinator, --num-processes and --process-id.
    """

    labels: tyro.conf.Positional[Path]
    """0/1: the labels as given"""
    out: Path
    """npz for TransitionEstimate.load"""
    selected: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """0/1: the cells taken as clean; or else"""
    unselected: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """0/1: the cells that are not"""
    aggregate: str = "joint"
    """rule over partner classes: joint, medoid, residual, mean or first"""
    assume: str = "general"
    """general, missing (no label is falsely given) or partial (none is missed)"""
    min_selected: int = 50
    """with fewer selected positives or negatives a class is not estimated (status too_few)"""
    coordinator: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None
    """host:port of process 0"""
    num_processes: Annotated[int | None, tyro.conf.arg(metavar="NUMBER")] = None
    process_id: Annotated[int | None, tyro.conf.arg(metavar="NUMBER")] = None
    timeout: int = 60
    """seconds to wait for a process that does not come or answer; one that is killed is noticed at once"""
    force: bool = False
    """replace files that mlt did not write"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFiles:
    """How text in files is read."""

    separator: Annotated[str | None, tyro.conf.arg(metavar="CHARACTER")] = None
    """of CSV files that have it: one character, or tab; by default it is found"""
    encoding: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """of CSV files that are not plainly UTF-8 or marked UTF-16: cp1252, ..."""

    def text(self) -> dict[str, Any]:
        """The same as options of `read_text`."""
        return {"separator": self.separator, "encoding": self.encoding}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Files(TextFiles):
    """How tables in files are read."""

    id_column: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """column of the ids, where it has no usual name such as id, image_id or file_name"""
    ignore_columns: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    """columns that are no classes; `mlt apply` keeps them"""

    def read(self, path: Path, **options: Any) -> Table:
        """The table in a file."""
        own: dict[str, Any] = dict(id_column=self.id_column, ignore=self.ignore_columns)
        return read_table(path, **own, **self.text(), **options)

    def check_ignored(self, *tables: Table | None) -> None:
        """Raises where a column that is to be ignored is in no table."""
        sources = [table.source for table in tables if table is not None and table.source is not None]
        for name in self.ignore_columns:
            if not any(name in source.names for source in sources):
                raise ValueError(f'--ignore-columns: no file has a column "{name}"; correct it, or leave it out')


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditCommand(Files):
    """Which labels are wrong? Prints the noise of every class; writes OUT, OUT's .issues.csv and its .json."""

    labels: tyro.conf.Positional[Path]
    """CSV, npy, npz or parquet: 0/1 with a column per class (an empty cell: not labelled), or id and `a;b;c`"""
    probs: tyro.conf.Positional[Path | None] = None
    """predicted P(label = 1) for examples the model did not train on, same forms; rows are matched by id, if any"""
    features: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """in place of probs, or beside them: a feature vector per example; heads are cross-fitted on it"""
    groups: Annotated[str | None, tyro.conf.arg(metavar="COLUMN_OR_FILE")] = None
    """with features: a column of LABELS, or a file with an id and a group per line (or npy): patients, near-duplicates,
    which folds must not tear apart"""
    seed: int = 0
    """of the folds"""
    images: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """folder with pictures named like the ids; the page shows them as long as they stay where they are"""
    embed: float = 4.0
    """MB of small pictures inside the page"""
    out: Path = Path("report.html")
    """the page; the other files lie beside it, with its name"""
    transition: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """transition.npz of an earlier audit or run, to be used as it is"""
    coding: str = "01"
    """what the labels' numbers mean: 01, pm1, voc or uncertain"""
    threshold: float = 0.5
    """labels more probably wrong than this are suspects"""
    most: int = 5000
    """suspects on the page; the CSV file has all"""
    propose: Annotated[int | None, tyro.conf.arg(metavar="NUMBER")] = None
    """show so many cells of each class for decision instead, drawn for rates that hold for any noise; .proposal.csv"""
    per: str = "class"
    """class, or all: so many cells in all, for the share of wrong labels"""
    decisions: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """what the page of --propose saved, filled in: rates with intervals that hold for any noise, and a new ranking"""
    export: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TOOL=FILE ...")] = ()
    """also write the suspects as label-studio=tasks.json, fiftyone=FOLDER or cleanlab=issues.csv"""
    title: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None
    force: bool = False
    """replace files that mlt did not write"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ApplyCommand(Files):
    """Writes the labels with those flipped whose `decision` is flip in DECISIONS.

    DECISIONS is what the page saves, the issues CSV filled in by hand, or the JSON export of Label Studio or FiftyOne;
    several files are merged. Labels on which reviewers disagree stay as they are, are printed and written to OUT's
    .disagreements.csv.
    """

    labels: tyro.conf.Positional[Path]
    """the file that was audited"""
    decisions: tyro.conf.Positional[tuple[Path, ...]]
    """one file or several"""
    out: Path = Path("relabelled.csv")
    """.csv, .npy, .npz or .parquet: that format; ids, groups, coding and lists of names stay as in LABELS"""
    probs: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """the predictions of the audit, where LABELS lack ids, class names, or in lists some class: theirs are used"""
    above: Annotated[float | None, tyro.conf.arg(metavar="P")] = None
    """also flip undecided labels that are more probably wrong than this; says how many of them will have been right"""
    coding: str = "01"
    """what the labels' numbers mean, as in the audit; they stay so coded"""
    groups: Annotated[str | None, tyro.conf.arg(metavar="COLUMN_OR_FILE")] = None
    """a column of LABELS that is no class, as in the audit; it stays as it is"""
    force: bool = False
    """replace OUT where it is there"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RatersCommand(TextFiles):
    """How noisy is each rater? Writes OUT/raters.csv (T), OUT/consensus.csv and OUT/ask.csv (whom to ask next)."""

    table: tyro.conf.Positional[Path]
    """CSV with a line per judgement and the columns example, class, rater and label (0 or 1; empty: a gap)"""
    out: Path
    """folder"""
    probs: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """predicted P(label = 1) for examples the model did not train on, with ids and class names: one more rater"""
    most: int = 1000
    """questions in ask.csv"""
    force: bool = False
    """replace files that mlt did not write"""


@dataclasses.dataclass(frozen=True)
class ReportCommand:
    """The page of a run of experiments/run.py."""

    workdir: tyro.conf.Positional[Path]
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """by default report.html in the run's folder"""
    force: bool = False
    """replace files that mlt did not write"""


HELP = """How noisy is each label, and which labels are wrong?

usage: mlt COMMAND ...

  estimate  how noisy is each class, from labels and the cells taken as clean
              mlt estimate labels.npz --unselected cells.npz --out T.npz
  audit     which labels are wrong: a page, a list and a summary
              mlt audit labels.csv probs.csv --images DIR --out report.html
            a sample to decide, then rates that hold for any noise
              mlt audit labels.csv probs.csv --propose 100 --out propose.html
              mlt audit labels.csv probs.csv --decisions decisions.csv --out report.html
            the suspects for Label Studio, FiftyOne or cleanlab
              mlt audit labels.csv probs.csv --export label-studio=tasks.json
  apply     the labels with what was decided
              mlt apply labels.csv decisions.csv --out relabelled.csv
            of several reviewers, and where they disagree
              mlt apply labels.csv anna.csv ben.csv --out relabelled.csv
  raters    how noisy is each rater, and whom to ask next
              mlt raters judgements.csv --out DIR
  report    the page of a run of experiments/run.py
              mlt report RUN_DIR

mlt COMMAND --help lists its options; mlt --version prints the version."""

CONFIG = (tyro.conf.PositionalMetavarFromFieldName, tyro.conf.FlagCreatePairsOff)  # --force, without --no-force
Command = (
    Annotated[EstimateCommand, tyro.conf.subcommand("estimate")]
    | Annotated[AuditCommand, tyro.conf.subcommand("audit")]
    | Annotated[ApplyCommand, tyro.conf.subcommand("apply")]
    | Annotated[RatersCommand, tyro.conf.subcommand("raters")]
    | Annotated[ReportCommand, tyro.conf.subcommand("report")]
)
