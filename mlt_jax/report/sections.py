"""Parts of a page, as HTML: noise rates, T, and the evidence for them. Text of users is escaped where it enters."""

from collections.abc import Sequence
from html import escape
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mlt_jax.audit.audit import Audit
from mlt_jax.estimator.counts import count
from mlt_jax.estimator.selection import fit_mixture, scale_losses
from mlt_jax.report import charts
from mlt_jax.report.page import section
from mlt_jax.transition import Status, TransitionEstimate, given_probability

# With more classes than this, only the most suspect ones get small charts.
MOST_CHARTS = 60
_BINS, _FINE, _PARTNERS = 24, 60, 4


def rates(
    found: TransitionEstimate,
    classes: Sequence[str],
    *,
    suspects: Any = None,
    true_T: Any = None,
    interval: Any = None,
    pick: bool = False,
) -> str:
    """Noise rates per class with 95 % intervals, the noisiest first; `pick`: a click on a class filters the issues."""
    ends = np.asarray(found.interval() if interval is None else interval)
    values = np.stack([found.rho_neg, found.rho_pos], axis=1)
    status = [Status(int(code)).name.lower().replace("_", " ") for code in found.status]
    seen = np.concatenate([values.ravel(), ends[np.isfinite(ends)].ravel()])
    top = charts.nice_top(float(min(seen.max(initial=0.01), 3 * max(np.percentile(values, 95), 0.01))))
    rows = []
    for j in np.argsort(-values.sum(axis=1), kind="stable"):
        name = escape(classes[j])
        label = f'<button type="button" data-column="{j}">{name}</button>' if pick else f"<b>{name}</b>"
        true = None if true_T is None else (float(true_T[j, 0, 1]), float(true_T[j, 1, 0]))
        cells = [label, charts.intervals(values[j].tolist(), ends[j].tolist(), top, true)]
        for kind, rate, (low, high) in zip(("neg", "pos"), values[j], ends[j], strict=True):
            span = f"<small>{100 * low:.1f} to {100 * high:.1f}</small>" if np.isfinite(low) else ""
            cells.append(f'<div class="num {kind}">{100 * rate:.1f} %{span}</div>')
        bad = "" if status[j] in ("posterior", "correlation", "verified") else " bad"
        cells.append(f'<div class="state"><span class="pill{bad}">{status[j]}</span></div>')
        cells.append(f'<div class="num count">{"" if suspects is None else f"{int(suspects[j]):,}"}</div>')
        rows.append(f'<div class="class">{"".join(cells)}</div>')
    head = ["<div>class</div>", charts.scale(top), "<div>falsely given</div>", "<div>missed</div>", "<div>status</div>"]
    head.append(f'<div class="count">{"" if suspects is None else "suspects"}</div>')
    truth = "" if true_T is None else '<li><i class="key tick"></i>truth</li>'
    legend = (
        '<ul class="legend"><li><i class="key neg"></i>falsely given: P(given | absent), rho_neg</li>'
        f'<li><i class="key pos"></i>missed: P(not given | present), rho_pos</li>{truth}</ul>'
    )
    intro = "How often a label is wrong, by class, with 95 % intervals; the noisiest class first."
    body = f'{legend}<div class="classes"><div class="class head">{"".join(head)}</div>{"".join(rows)}</div>'
    return section("Noise per class", intro, body, key="rates")


def heat_maps(found: TransitionEstimate, classes: Sequence[str], order: Sequence[int]) -> str:
    """T of the classes as small maps."""
    T = np.asarray(found.T)
    cards = [f"<figure><h3>{escape(classes[j])}</h3>{charts.heat_map(T[j])}</figure>" for j in order[:MOST_CHARTS]]
    intro = "Rows: the clean label, columns: the given one. Each row sums to 1." + _cut(len(order))
    return section("Transition matrices", intro, f'<div class="grid">{"".join(cards)}</div>', key="T", folded=True)


def curves(audit: Audit, order: Sequence[int]) -> str:
    """Share of given positives over the calibrated prediction, and the curve that T predicts."""
    T, cards = jnp.asarray(audit.found.T), []
    counted = bool((np.asarray(audit.found.status) == Status.COUNTED).any())
    T = jnp.broadcast_to(jnp.eye(2, dtype=T.dtype), T.shape) if counted else T  # predictions are of the given label
    for j in order[:MOST_CHARTS]:
        known = slice(None) if audit.labels.observed is None else audit.labels.observed[:, j]
        x = audit.slope[j] * audit.scores[known, j] + audit.offset[j]
        y = audit.labels.values[known, j]
        if len(x) < 40 or audit.slope[j] == 0:
            continue
        parts = np.array_split(np.argsort(x, kind="stable"), 20)
        middle, share = (np.array([v[part].mean() for part in parts]) for v in (x, y))
        grid = np.linspace(float(np.percentile(x, 0.2)), float(np.percentile(x, 99.8)), 80)
        low, high = T[j, :, 1]
        fitted = np.asarray(given_probability(jax.nn.sigmoid(jnp.asarray(grid, T.dtype)), low, high - low))
        shown = (middle >= grid[0]) & (middle <= grid[-1])
        drawing = charts.curve(middle[shown], share[shown], fitted, grid, float(low), float(high))
        cards.append(f"<figure><h3>{escape(audit.classes[j])}</h3>{drawing}</figure>")
    limits = (
        "It does not level off: the rates were counted."
        if counted
        else "It levels off at the rate of falsely given labels below and at one minus the rate of missed ones above."
    )
    intro = (
        "Share of given positives (dots, twenty equal groups) over the calibrated prediction, and the fitted curve. "
        + limits
        + _cut(len(order))
    )
    body = f'<div class="grid">{"".join(cards)}</div>' if cards else ""
    return section("Predictions against labels", intro, body, key="curves", folded=True)


def mixtures(audit: Audit, order: Sequence[int], losses: Any = None) -> str:
    """Histograms of the losses of given positives and negatives, with the two-component mixtures fitted to them."""
    cut, order = _cut(len(order)), list(order[:MOST_CHARTS])
    y = audit.labels.values[:, order] == 1
    known = np.ones(y.shape, bool) if audit.labels.observed is None else audit.labels.observed[:, order]
    if losses is None:
        scores = audit.scores[:, order]
        losses = np.logaddexp(0, np.where(y, -scores, scores))
    else:
        losses = np.asarray(losses, np.float32)[..., order]
    history = jnp.asarray(losses if losses.ndim == 3 else losses[None], jnp.float32)
    cards = []
    columns = {kind: _mixtures(history, jnp.asarray(m & known)) for kind, m in (("neg", y), ("pos", ~y))}
    for k, j in enumerate(order):
        pair = []
        for kind, (scaled, mixture) in columns.items():
            member = (y if kind == "neg" else ~y)[:, k] & known[:, k]
            if not mixture.fitted[k]:
                continue
            counts = np.histogram(np.asarray(scaled)[member, k], bins=_BINS, range=(0, 1))[0] / member.sum() * _BINS
            grid = np.linspace(0, 1, _FINE)[:, None]
            weight, mean, variance = (np.asarray(v[k]) for v in mixture[:3])
            density = weight * np.exp(-((grid - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
            word = "given" if kind == "neg" else "not given"
            drawing = charts.histogram(counts, density[:, 0], density[:, 1], kind)
            pair.append(f"<div>{drawing}<figcaption>{word}</figcaption></div>")
        if pair:
            name = escape(audit.classes[j])
            cards.append(f'<figure><h3>{name}</h3><div class="pair">{"".join(pair)}</div></figure>')
    intro = (
        "Losses of the labels as given, scaled to 0 to 1, with the two Gaussians fitted to them: small losses (green) "
        "are taken as right by the paper's selection, large ones (violet) are not." + cut
    )
    body = f'<div class="grid wide">{"".join(cards)}</div>' if cards else ""
    return section("Losses and their mixtures", intro, body, key="losses", folded=True)


def partners(audit: Audit, order: Sequence[int]) -> str:
    """Labels correlated with each class, by the chi-square that weighs them in `estimator.line`; suspects left out."""
    if len(audit.classes) < 2:
        return ""
    known = audit.labels.observed if audit.labels.observed is not None else np.ones(audit.wrong.shape, bool)
    tables = count(audit.labels, (audit.wrong < 0.5) & known)
    shares = tables.probabilities()
    a, b, m = (
        np.broadcast_to(np.asarray(x, float), (len(audit.classes),) * 2) for x in (shares.a, shares.b, shares.m_i)
    )
    pos, neg = (np.asarray(x, float) for x in (tables.total_pos, tables.total_neg))
    contrast = pos * neg / np.maximum(pos + neg, 1) * (b - a) ** 2 / np.maximum(m * (1 - m), 1e-9)
    np.fill_diagonal(contrast, 0)
    cards = []
    for j in order[:MOST_CHARTS]:
        best = [i for i in np.argsort(-contrast[j])[:_PARTNERS] if contrast[j, i] > 3.84]
        chips = "".join(
            f"<li>{escape(audit.classes[i])} <small>{with_it:.0f} % with, {without:.0f} % without</small></li>"
            for i, with_it, without in zip(best, 100 * b[j, best], 100 * a[j, best], strict=True)
        )
        chips = chips or "<li><small>no label beyond chance</small></li>"
        cards.append(f'<figure><h3>{escape(audit.classes[j])}</h3><ul class="chips">{chips}</ul></figure>')
    decided = int((np.asarray(audit.found.status) == Status.CORRELATION).sum())
    intro = "How often another label is on, with the class and without it, suspects left out; strongest first. "
    such = f"T of {decided} classes was estimated from such correlations."
    intro += such if decided else "T was estimated from the predictions; correlations are shown for comparison."
    body = f'<div class="grid wide">{"".join(cards)}</div>'
    return section("Correlated labels", intro + _cut(len(order)), body, key="partners", folded=True)


def assumption(found: TransitionEstimate, doubts: Sequence[str]) -> str:
    """Which kind of noise the rates suppose, and the classes in which mistakes depend on other labels."""
    status = np.asarray(found.status)
    if (status == Status.COUNTED).any():
        intro = (
            "Nothing levels off, as where people miss and confuse ambiguous examples: the rates were counted, by a "
            "rule from other sets with real noise, and are only as sure as their wide intervals. Have a drawn sample "
            "decided (mlt audit --propose) for rates that hold whatever the noise."
        )
    elif np.isin(status, (Status.POSTERIOR, Status.SHARED)).any():
        intro = "Given labels level off at both ends of the score, as by noise that depends on the class alone."
    else:
        return ""
    listed = "".join(f"<li>{escape(sentence)}</li>" for sentence in doubts)
    body = f"<p>{intro}</p>" + (f"<p>Mistakes that depend on other labels:</p><ul>{listed}</ul>" if doubts else "")
    return section("What the rates suppose", "", body, key="assumption")


def warnings(sentences: Sequence[str]) -> str:
    """What looks wrong with the inputs."""
    listed = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return section("Look at the inputs first", "", f"<ul>{listed}</ul>" if listed else "", key="warnings")


def issues(classes: Sequence[str], columns: Sequence[int], total: int, shown: int, *, proposed: bool = False) -> str:
    """The issues table: its tools and the empty rows that the script fills."""
    options = "".join(f'<option value="{j}">{escape(classes[j])}</option>' for j in columns)
    heads = "".join(
        f'<div role="columnheader" data-key="{key}" aria-sort="none"><button type="button">{word}</button></div>'
        for key, word in (("example", "example"), ("class", "class"), ("given", "label"), ("wrong", "P(wrong)"))
    )
    more = f" The {shown:,} most suspect of {total:,} are listed." if shown < total else ""
    intro = f"Labels that are probably wrong, the worst first.{more} Decide here and save; mlt apply does the rest."
    if proposed:
        intro = (
            f"{shown:,} cells drawn for decision, in random order: decide from the top, stop where you like, and save. "
            "mlt audit --decisions reads rates from them that hold for any noise."
        )
    body = (
        '<div class="tools"><input id="search" type="search" placeholder="Search examples and classes" '
        f'aria-label="search"><select id="class" aria-label="class"><option value="">all classes</option>{options}'
        '</select><select id="kind" aria-label="kind"><option value="">both kinds</option>'
        '<option value="1">falsely given</option><option value="0">missed</option></select>'
        '<button type="button" id="save" class="go" disabled>Save decisions</button><span id="shown"></span></div>'
        '<div class="issues" role="table" aria-label="suspected labels">'
        f'<div class="heads" role="row"><div class="off"></div>{heads}'
        '<div class="off"></div></div><div id="view" tabindex="0"><div id="rows"></div></div></div>'
        '<dialog id="zoom"><img id="large" alt=""><p id="about"></p></dialog>'
        "<noscript><p>The list needs JavaScript; the CSV file beside this page holds the same rows.</p></noscript>"
    )
    return section("Labels to decide" if proposed else "Labels to re-check", intro, body, key="issues")


@jax.jit
def _mixtures(losses: Float[Array, "epochs n q"], member: Bool[Array, "n q"]) -> Any:
    scaled = jax.vmap(scale_losses, in_axes=(2, 1), out_axes=1)(losses, member)
    return scaled, jax.vmap(fit_mixture, in_axes=(1, 1))(scaled, member)


def _cut(number: int) -> str:
    return f" The {MOST_CHARTS} most suspect of {number} classes." if number > MOST_CHARTS else ""
