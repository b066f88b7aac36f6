"""The page of a finished (or unfinished) run of `experiments/run.py`, from the files in its folder."""

import csv
import json
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from mlt_jax.report import charts, sections
from mlt_jax.report.page import page, section, tiles, write
from mlt_jax.transition import TransitionEstimate

_SCORES = ("mAP", "OF1", "CF1", "OP", "OR", "CP", "CR")
_CURVES = {"train_loss": "training loss", "validation_loss": "validation loss", "validation_mAP": "validation mAP"}


def run_page(workdir: str | Path, path: str | Path | None = None) -> Path:
    """Where the page was written, by default `workdir`/report.html; it shows what the run has written so far."""
    folder = Path(workdir).expanduser()
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such run folder")
    config, summary = (_json(folder / name) for name in ("config.json", "results.json"))
    for name in ("test", "T_error", "seconds"):
        if not isinstance(summary.get(name) or {}, dict):
            remedy = "delete it and give the run's command again, which writes it anew"
            raise ValueError(f'{folder / "results.json"}: "{name}" is {summary[name]!r:.20}, no table; {remedy}')
    seeds = sorted((p for p in folder.glob("seed*") if p.is_dir()), key=lambda p: (len(p.name), p.name)) or [folder]
    parts = [_tiles(summary), _results(summary)]
    parts += [_curves(seed) for seed in seeds[:1]]
    for seed in seeds:
        if (seed / "transition.npz").exists():
            parts += _noise(seed)
            break
    parts.append(_settings(config))
    if not any(parts):
        raise ValueError(f"{folder}: holds no results.json, metrics.jsonl or transition.npz; pass the folder of a run")
    noise = [f"noise {config['noise']}"] if config.get("noise") else []
    subtitle = ", ".join([*noise, f"{len(seeds)} seed{'s' * (len(seeds) > 1)}", folder.name])
    title = f"Run on {config.get('dataset', folder.name)}"
    return write(path or folder / "report.html", page(title, subtitle, parts))


def _tiles(summary: dict[str, Any]) -> str:
    numbers = []
    for method, scores in (summary.get("test") or {}).items():
        if "mAP" in scores:
            numbers.append((f"{100 * _mean(scores['mAP']):.1f} %", f"mAP, {method}"))
    errors = dict(summary.get("T_error") or {})
    nothing = f" (T = identity: {_mean(errors.pop('identity')):.2f})" if "identity" in errors else ""
    numbers += [(f"{_mean(error):.2f}", f"summed error of T, {name}{nothing}") for name, error in errors.items()]
    return tiles(numbers) if numbers else ""


def _results(summary: dict[str, Any]) -> str:
    test = summary.get("test")
    if not test:
        return ""
    names = [name for name in _SCORES if any(name in scores for scores in test.values())]
    best = {name: max(_mean(scores[name]) for scores in test.values() if name in scores) for name in names}

    def cell(scores: dict[str, Any], name: str) -> str:
        if name not in scores:
            return "<td></td>"
        mean, spread = _mean(scores[name]), scores[name].get("std", 0) if isinstance(scores[name], dict) else 0
        text = f"{100 * mean:.1f}" + (f" ± {100 * spread:.1f}" if spread else "")
        return f"<td>{'<b>' + text + '</b>' if mean == best[name] else text}</td>"

    head = "".join(f"<th>{name}</th>" for name in names)
    rows = "".join(
        f"<tr><td>{escape(method)}</td>{''.join(cell(scores, name) for name in names)}</tr>"
        for method, scores in test.items()
    )
    body = f'<div class="scroll"><table><tr><th>test, %</th>{head}</tr>{rows}</table></div>'
    spent = summary.get("seconds") or {}
    words = ", ".join(f"{name} {_mean(value):.1f}" for name, value in spent.items())
    return section("Results", f"Seconds per seed: {words}." if words else "", body, key="results")


def _curves(folder: Path) -> str:
    """Training curves by method, from its metrics.jsonl; lines that are no JSON (a run was killed) are skipped."""
    entries = []
    for line in "\n".join(f.read_text("utf-8", "replace") for f in sorted(folder.glob("*/metrics.jsonl"))).splitlines():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    cards = []
    for key, title in _CURVES.items():
        series: dict[str, tuple[list[float], list[float]]] = {}
        for entry in entries:
            if isinstance(entry, dict) and isinstance(entry.get(key), int | float) and "epoch" in entry:
                xs, ys = series.setdefault(str(entry.get("method", "")), ([], []))
                xs.append(float(entry["epoch"]))
                ys.append(float(entry[key]))
        if series:
            cards.append(f"<figure><h3>{title}</h3>{charts.lines(series)}</figure>")
    body = f'<div class="grid wide">{"".join(cards)}</div>' if cards else ""
    return section("Training", f"Over epochs, {folder.name}.", body, key="training")


def _noise(folder: Path) -> list[str]:
    found = TransitionEstimate.load(folder / "transition.npz")
    q = len(found.T)
    classes, true_T = [str(j) for j in range(q)], None
    if (folder / "transition.csv").exists():
        with (folder / "transition.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        if len(rows) == q:
            classes = [row.get("class") or str(j) for j, row in enumerate(rows)]
            if all(row.get("true_rho_neg") and row.get("true_rho_pos") for row in rows):
                neg, pos = (np.array([float(row[f"true_rho_{side}"]) for row in rows]) for side in ("neg", "pos"))
                true_T = np.stack([1 - neg, neg, pos, 1 - pos], axis=1).reshape(q, 2, 2)
    order = np.argsort(-np.asarray(found.rho_neg + found.rho_pos), kind="stable").tolist()
    doubts = [entry["sentence"] for entry in _json(folder / "assumption.json").values() if entry["test"]]
    return [
        sections.rates(found, classes, true_T=true_T),
        sections.assumption(found, doubts),
        sections.heat_maps(found, classes, order),
    ]


def _settings(config: dict[str, Any]) -> str:
    rows = "".join(f"<tr><td>{escape(str(k))}</td><td>{escape(str(v))}</td></tr>" for k, v in config.items())
    body = f'<div class="scroll"><table>{rows}</table></div>' if rows else ""
    return section("Settings", "", body, key="settings", folded=True)


def _mean(value: Any) -> float:
    return float(value["mean"] if isinstance(value, dict) else value)


def _json(path: Path) -> dict[str, Any]:
    """What the file holds; nothing where it is missing, broken or no mapping."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
