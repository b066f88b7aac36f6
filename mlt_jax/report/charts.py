"""Charts as inline SVG, coloured by the page's style sheet so that they follow light and dark."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

import numpy as np
from jaxtyping import Float

# Width, height and margin of the small charts, in SVG units.
_W, _H, _PAD = 180, 96, 4


def intervals(rates: Sequence[float], ends: Sequence[Sequence[float]], top: float, true: Sequence[float] | None) -> str:
    """One class's two rates as dots on a scale from 0 to `top`, their intervals as bars, true rates as ticks."""

    def x(value: float) -> str:
        return f"{100 * min(max(value, 0), top) / top:.2f}%"

    # The numbers stand beside it.
    parts = ['<svg class="rates" aria-hidden="true" height="34"><line class="axis" x1="0" x2="100%" y1="17" y2="17"/>']
    for name, y, rate, (low, high), k in zip(("neg", "pos"), (10, 24), rates, ends, (0, 1), strict=True):
        if np.isfinite([low, high]).all():
            parts.append(f'<line class="bar {name}" x1="{x(low)}" x2="{x(high)}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="dot {name}" cx="{x(rate)}" cy="{y}" r="4.5"/>')
        if true is not None:
            parts.append(f'<line class="true" x1="{x(true[k])}" x2="{x(true[k])}" y1="{y - 6}" y2="{y + 6}"/>')
    return "".join([*parts, "</svg>"])


def scale(top: float) -> str:
    """The ticks under `intervals`."""
    ticks = [(k / 4, "start" if k == 0 else "end" if k == 4 else "middle") for k in range(5)]
    texts = [f'<text x="{100 * t:.0f}%" y="12" text-anchor="{a}">{100 * t * top:.3g} %</text>' for t, a in ticks]
    return f'<svg class="rates ticks" height="16" aria-hidden="true">{"".join(texts)}</svg>'


def heat_map(T: Float[np.ndarray, "2 2"]) -> str:
    """One class's T as a 2x2 map with its numbers: rows clean 0 and 1, columns given 0 and 1."""
    cells = []
    for clean in (0, 1):
        for given in (0, 1):
            value = float(T[clean, given])
            kind = "keep" if clean == given else "neg" if given else "pos"
            x, y = 26 + 60 * given, 16 + 36 * clean
            cells.append(f'<rect class="cell {kind}" x="{x}" y="{y}" width="58" height="34" rx="4" '
                         f'fill-opacity="{0.08 + 0.65 * value:.3f}"/>'
                         f'<text x="{x + 29}" y="{y + 22}" text-anchor="middle">{value:.3f}</text>')  # fmt: skip
    marks = "".join(f'<text class="mark" x="{55 + 60 * k}" y="11" text-anchor="middle">{k}</text>'
                    f'<text class="mark" x="12" y="{38 + 36 * k}" text-anchor="middle">{k}</text>'
                    for k in (0, 1))  # fmt: skip
    named = f"clean 0: {T[0, 0]:.3f}, {T[0, 1]:.3f}; clean 1: {T[1, 0]:.3f}, {T[1, 1]:.3f}"
    return f'<svg viewBox="0 0 146 90" role="img" aria-label="{named}">{marks}{"".join(cells)}</svg>'


def curve(
    x: Float[np.ndarray, "b"], share: Float[np.ndarray, "b"], fitted: Float[np.ndarray, "m"],
    grid: Float[np.ndarray, "m"], floor: float, ceiling: float,
) -> str:  # fmt: skip
    """Share of given positives in bins of the score (dots), the fitted curve and the two levels it ends on."""
    low, high = float(grid[0]), float(grid[-1])

    def at(u: float, v: float) -> tuple[float, float]:
        return _PAD + (u - low) / max(high - low, 1e-9) * (_W - 2 * _PAD), _H - _PAD - v * (_H - 2 * _PAD)

    line = _path([at(float(u), float(v)) for u, v in zip(grid, fitted, strict=True)])
    dots = "".join('<circle class="dot ink" cx="{:.1f}" cy="{:.1f}" r="2"/>'.format(*at(float(u), float(v)))
                   for u, v in zip(x, share, strict=True))  # fmt: skip
    levels = "".join(f'<line class="level {kind}" x1="0" x2="{_W}" y1="{at(low, v)[1]:.1f}" y2="{at(low, v)[1]:.1f}"/>'
                     for kind, v in (("neg", floor), ("pos", ceiling)))  # fmt: skip
    frame = "".join(
        f'<line class="axis" x1="0" x2="{_W}" y1="{at(low, v)[1]}" y2="{at(low, v)[1]}"/>' for v in (0.0, 1.0)
    )
    named = f"share of given labels, from {share[0]:.2f} to {share[-1]:.2f}" if len(share) else "no groups"
    inside = f'{frame}{levels}<path class="fit" d="{line}"/>{dots}'
    return f'<svg viewBox="0 0 {_W} {_H}" role="img" aria-label="{named}">{inside}</svg>'


def histogram(
    counts: Float[np.ndarray, "b"], low: Float[np.ndarray, "m"], high: Float[np.ndarray, "m"], kind: str
) -> str:
    """Bars of equal width over [0, 1] and two curves over the same range, all as densities."""
    top = max(float(np.max(counts)), float(np.max(low + high)), 1e-9)
    top = min(top, 4 * float(np.sort(counts)[-2:].mean()) + 1e-9)  # a spike of a curve does not flatten the bars
    width = _W / len(counts)
    bars = "".join(f'<rect class="column {kind}" x="{k * width:.2f}" width="{width - 0.6:.2f}" '
                   f'y="{_H - min(v / top, 1) * (_H - 4):.2f}" height="{min(v / top, 1) * (_H - 4):.2f}"/>'
                   for k, v in enumerate(map(float, counts)))  # fmt: skip
    lines = "".join(
        f'<path class="fit {name}" d="'
        + _path([(_W * k / (len(d) - 1), _H - min(float(v) / top, 1) * (_H - 4)) for k, v in enumerate(d)])
        + '"/>'
        for name, d in (("low", low), ("high", high))
    )
    return f'<svg viewBox="0 0 {_W} {_H}" role="img" aria-label="histogram of losses">{bars}{lines}</svg>'


def lines(series: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> str:
    """Named lines over steps, (x, y) each, with the range of y at the side and a legend below."""
    points = [(x, y) for xs, ys in series.values() for x, y in zip(xs, ys, strict=True) if np.isfinite(y)]
    if not points:
        return ""
    (left, right), (bottom, top) = ((min(p[k] for p in points), max(p[k] for p in points)) for k in (0, 1))
    width, height, margin = 420, 200, 46

    def at(x: float, y: float) -> tuple[float, float]:
        u, v = (x - left) / max(right - left, 1e-9), (y - bottom) / max(top - bottom, 1e-9)
        return margin + u * (width - margin - 8), height - 22 - v * (height - 34)

    parts = []
    for share in (0, 0.5, 1):
        value = bottom + share * (top - bottom)
        y = at(left, value)[1]
        parts.append(f'<line class="axis" x1="{margin}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}"/>'
                     f'<text x="{margin - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')  # fmt: skip
    parts.append(f'<text x="{margin}" y="{height - 4}">{left:g}</text>'
                 f'<text x="{width}" y="{height - 4}" text-anchor="end">{right:g}</text>')  # fmt: skip
    for k, (xs, ys) in enumerate(series.values()):
        drawn = [at(x, y) for x, y in zip(xs, ys, strict=True) if np.isfinite(y)]
        if drawn:
            parts.append(f'<path class="line s{k % 6}" d="{_path(drawn)}"/>')
    legend = "".join(f'<li><i class="key s{k % 6}"></i>{escape(name)}</li>' for k, name in enumerate(series))
    named = escape(", ".join(series))
    drawing = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{named}">{"".join(parts)}</svg>'
    return f'{drawing}<ul class="legend">{legend}</ul>'


def nice_top(value: float) -> float:
    """The next round number for the end of a scale, in (0, 1]."""
    steps = (0.01, 0.02, 0.04, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
    return next((step for step in steps if value <= step), 1.0)


def _path(points: Sequence[tuple[float, float]]) -> str:
    # Two points that fall on the same pixel are one.
    kept = [points[0]] + [b for a, b in pairwise(points) if abs(b[0] - a[0]) + abs(b[1] - a[1]) > 0.05]
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in kept)
