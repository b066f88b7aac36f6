"""The paper's printed numbers, shipped as data: facts to print beside ours, never targets."""

import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

# Both average only three of the four noise types in print; here the mean of all four stands for it.
AVERAGE = "Avg."


class Printed(NamedTuple):
    """One printed number."""

    mean: float
    std: float | None = None


class PaperRow(NamedTuple):
    """One printed row."""

    metric: str | None  # "T_error", "mAP", "OF1", "CF1"; None for frequencies
    method: str
    values: tuple[Printed, ...]  # one per column; of win_loss the p-values


class PaperTable(NamedTuple):
    """One printed table."""

    id: str
    caption: str
    kind: str  # "estimation_error", "classification", "ablation", "frequencies" or "wilcoxon"
    dataset: str
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]

    def value(self, metric: str | None, method: str, column: str) -> Printed | None:
        """The printed number, `Avg.` recomputed over all other columns; None where none is printed."""
        row = next((row for row in self.rows if (row.metric, row.method) == (metric, method)), None)
        if row is None or column not in self.columns:
            return None
        if column == AVERAGE:
            others = [x.mean for x, name in zip(row.values, self.columns, strict=True) if name != AVERAGE]
            return Printed(sum(others) / len(others))
        return row.values[self.columns.index(column)]


@cache
def tables() -> dict[str, PaperTable]:
    """All printed tables by their id."""
    raw = json.loads(files("mlt_jax.paper").joinpath("printed.json").read_text())
    return {table["id"]: _table(table) for table in raw["tables"]}


def _table(raw: dict[str, Any]) -> PaperTable:
    rows = tuple(
        PaperRow(
            row["metric"], row["method"], tuple(Printed(v.get("mean", v.get("p")), v.get("std")) for v in row["values"])
        )
        for row in raw["rows"]
    )
    columns = tuple(column["name"] for column in raw["columns"])
    return PaperTable(raw["id"], raw["caption"], raw["kind"], raw["dataset"], columns, rows)
