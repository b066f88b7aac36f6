"""Tables as Markdown, CSV, LaTeX and HTML, and the figure for tau."""

import csv
import html
import io
import re
from collections.abc import Callable
from pathlib import Path

from mlt_jax.paper.tables.plan import TAUS, Row
from mlt_jax.paper.tables.results import Entry, Table
from mlt_jax.report import page as report

TITLES: dict[str | None, str] = {
    None: "Frequencies",
    "T_error": "Error of T",
    "validation_mAP": "mAP on noisy validation labels",
}


def write(table: Table, folder: Path, *, about: list[str], formats: tuple[str, ...]) -> list[Path]:
    """Writes `ID.md`, `ID.csv`, ... whole or not at all; `about` is said at the top."""
    renderers: dict[str, Callable[[Table, list[str]], str]] = {
        "md": markdown, "csv": comma_separated, "tex": latex, "html": page,
    }  # fmt: skip
    texts = {kind: renderers[kind](table, about) for kind in formats}
    if table.plan.id == "tau":
        texts["svg"] = tau_figure(table)
    return [report.write(folder / f"{table.plan.id}.{kind}", text) for kind, text in texts.items()]


def ours_text(entry: Entry, digits: int) -> str:
    """`78.62 ±0.31`; a dash where it was not run."""
    if entry.mean is None:
        return "-"
    if entry.note:
        return f"{entry.mean:.3f}, {entry.note}"
    spread = "" if entry.std is None else f" ±{entry.std:.{digits}f}"
    fallbacks = "" if entry.fallbacks is None else f" [{entry.fallbacks:.3g}]"
    return f"{entry.mean:.{digits}f}{spread}{fallbacks}"


def theirs_text(entry: Entry, digits: int) -> str:
    """`84.25, -5.63`: the printed number and ours minus it; empty where none is printed."""
    if entry.printed is None:
        return ""
    if entry.note:
        return f"paper {entry.printed.mean:.3f}"
    difference = "" if entry.difference is None else f", {entry.difference:+.{digits}f}"
    return f"{entry.printed.mean:.{digits}f}{difference}"


def cell_text(entry: Entry, *, digits: int = 2) -> str:
    """An entry to be read: `78.62 ±0.31 (84.25, -5.63)`."""
    ours, theirs = ours_text(entry, digits), theirs_text(entry, digits)
    return f"{ours} ({theirs})" if theirs else ours


def legend(table: Table) -> str:
    """What an entry is."""
    if table.plan.id == "win_loss":
        return "Each entry: p of the one-sided test, who wins at the level 0.01, over how many pairs (the paper's p)."
    if table.plan.id == "validation_coco":
        return "Each entry: ours (paper's, difference)."
    known = any(entry.fallbacks is not None for entry in table.entries.values())
    fallbacks = " [classes whose T is Dual-T's, for want of an estimate]" if known else ""
    return f"Each entry: ours ± standard deviation over seeds{fallbacks} (paper's, difference). Best of ours in bold."


def _digits(table: Table) -> int:
    return 3 if table.plan.id in ("validation_coco", "ablation_n1") else 2


def _grid(table: Table, bold: Callable[[str], str]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of text; the metric is a column of its own where there are several."""
    plan = table.plan
    several = len({row.metric for row in plan.rows}) > 1
    digits = _digits(table)
    header = [*(["metric"] if several else []), "method", *_headings(table)]
    rows = []
    for row in plan.rows:
        texts = []
        for column in plan.columns:
            entry = table.entries[row, column]
            text = cell_text(entry, digits=digits)
            texts.append(bold(text) if entry.best else text)
        rows.append([*([str(row.metric)] if several else []), row.method, *texts])
    return header, rows


def _headings(table: Table) -> list[str]:
    return [table.plan.headings.get(column, column) for column in table.plan.columns]


def markdown(table: Table, about: list[str]) -> str:
    """Markdown with a header that says what the runs are."""
    header, rows = _grid(table, lambda text: f"**{text}**")
    lines = [f"# {table.plan.id}", "", table.plan.caption + ".", "", *(f"- {line}" for line in about), ""]
    lines += [legend(table), "", _row(header), "|" + "---|" * len(header)]
    lines += map(_row, rows)
    lines += ["", *(f"- {line}" for line in [*table.foot, *table.notes])]
    return "\n".join(lines).rstrip() + "\n"


def _row(cells: list[str]) -> str:
    escaped = (cell.replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def comma_separated(table: Table, about: list[str]) -> str:
    """One line per entry; what the runs are in comment lines at the top."""
    text = io.StringIO()
    for line in [*about, *table.foot, *table.notes]:
        text.write(f"# {line}\n")
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["table", "metric", "method", "column", "ours", "std", "runs", "paper", "paper_std", "difference"])

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.6g}"

    for row in table.plan.rows:
        for column in table.plan.columns:
            entry = table.entries[row, column]
            theirs = (None, None) if entry.printed is None else entry.printed
            numbers = [number(x) for x in (entry.mean, entry.std)]
            rest = [number(x) for x in (*theirs, entry.difference)]
            out.writerow([table.plan.id, row.metric or "", row.method, column, *numbers, entry.runs, *rest])
    return text.getvalue()


def _tex(text: str) -> str:
    for plain, escaped in (("%", r"\%"), ("_", r"\_"), ("^", r"\^{}"), ("±", r"$\pm$"), ("|", r"$|$")):
        text = text.replace(plain, escaped)
    return text


def latex(table: Table, about: list[str]) -> str:
    """A `table*` environment, shrunk to the page where it is wide (graphicx); what the runs are in comments."""
    header, rows = _grid(table, lambda text: f"@@{text}@@")

    def line(cells: list[str]) -> str:
        found = []
        for cell in cells:
            bold = cell.startswith("@@")
            found.append(rf"\textbf{{{_tex(cell.strip('@'))}}}" if bold else _tex(cell))
        return "  " + " & ".join(found) + r" \\"

    left = len(header) - len(table.plan.columns)
    caption = _tex(f"{table.plan.caption}. {legend(table)}")
    tabular = [rf"  \begin{{tabular}}{{{'l' * left}{'c' * len(table.plan.columns)}}}", r"  \hline", line(header),
               r"  \hline", *map(line, rows), r"  \hline", r"  \end{tabular}"]  # fmt: skip
    if len(table.plan.columns) > 4:
        tabular = [r"  \resizebox{\textwidth}{!}{%", *tabular, "  }"]
    body = [r"\begin{table*}", r"  \centering\scriptsize", rf"  \caption{{{caption}}}", *tabular,
            rf"  \label{{ours:{table.plan.id}}}", r"\end{table*}"]  # fmt: skip
    return "\n".join([*(f"% {text}" for text in [*about, *table.foot, *table.notes]), *body]) + "\n"


def page(table: Table, about: list[str]) -> str:
    """A self-contained page in the style of the other reports, with a section per metric."""
    digits = _digits(table)

    def cell(entry: Entry) -> str:
        ours, theirs = (html.escape(text) for text in (ours_text(entry, digits), theirs_text(entry, digits)))
        return f'<td class="num">{f"<b>{ours}</b>" if entry.best else ours}<small>{theirs}</small></td>'

    def grid(metric: str | None) -> str:
        head = "".join(f"<th>{html.escape(text)}</th>" for text in ("method", *_headings(table)))
        rows = (
            f"<tr><td>{html.escape(row.method)}</td>"
            + "".join(cell(table.entries[row, column]) for column in table.plan.columns)
            + "</tr>"
            for row in table.plan.rows
            if row.metric == metric
        )
        return f'<div class="scroll named"><table><tr>{head}</tr>{"".join(rows)}</table></div>'

    def items(lines: list[str]) -> str:
        texts = (re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(line)) for line in lines)
        return f"<ul>{''.join(f'<li>{text}</li>' for text in texts)}</ul>" if lines else ""

    metrics = dict.fromkeys(row.metric for row in table.plan.rows)
    return report.page(
        table.plan.id,
        f"{table.plan.caption}.",
        [
            report.section("What these runs are", "", items(about)),
            *(report.section(TITLES.get(metric, str(metric)), legend(table), grid(metric)) for metric in metrics),
            report.section("Tests and gaps", "", items([*table.foot, *table.notes])),
        ],
    )


def tau_figure(table: Table) -> str:
    """The paper's figure: mAP by setting for each tau, on noisy validation labels and on the test set, as SVG."""
    width, height, colours = 760, 220, ("#0072b2", "#000000", "#d55e00")
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {2 * height}" font-family="sans-serif" '
             'font-size="11">', f'<rect width="{width}" height="{2 * height}" fill="white"/>']  # fmt: skip
    for panel, (metric, title) in enumerate((("validation_mAP", "noisy validation"), ("mAP", "test"))):
        rows = [Row(metric, f"Reweight-Ours (tau={tau})") for tau in TAUS]
        means = [table.entries[row, column].mean for row in rows for column in table.plan.columns]
        known = [mean for mean in means if mean is not None]
        if not known:
            continue
        low, high = min(known) - 1, max(known) + 1
        top = panel * height + 30

        def y(value: float, top: int = top, low: float = low, high: float = high) -> float:
            return top + (height - 70) * (high - value) / (high - low)

        parts.append(f'<text x="50" y="{top - 12}" font-size="13">mAP, {title}, %</text>')
        for value in (low + 1, high - 1):
            parts.append(f'<text x="44" y="{y(value) + 4:.1f}" text-anchor="end">{value:.0f}</text>')
            parts.append(f'<line x1="50" x2="{width - 90}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>')
        step = (width - 150) / len(table.plan.columns)
        for place, (row, colour) in enumerate(zip(rows, colours, strict=True)):
            for at, column in enumerate(table.plan.columns):
                mean = table.entries[row, column].mean
                if mean is not None:
                    x = 60 + step * (at + 0.5) + 14 * (place - 1)
                    parts.append(f'<circle cx="{x:.1f}" cy="{y(mean):.1f}" r="4" fill="{colour}"/>')
            parts.append(f'<circle cx="{width - 80}" cy="{top + 16 * place}" r="4" fill="{colour}"/>')
            parts.append(f'<text x="{width - 70}" y="{top + 4 + 16 * place}">tau = {TAUS[place]}</text>')
        for at, column in enumerate(table.plan.columns):
            parts.append(f'<text x="{60 + step * (at + 0.5):.1f}" y="{top + height - 50}" text-anchor="middle">'
                         f"{html.escape(column)}</text>")  # fmt: skip
    return "\n".join([*parts, "</svg>"]) + "\n"
