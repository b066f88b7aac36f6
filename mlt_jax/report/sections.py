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
_GUESSES = (Status.TOO_FEW, Status.UNIDENTIFIABLE)
_MEANINGS = {
    Status.CORRELATION: "estimated from labels that occur together",
    Status.FALLBACK: "not estimated here: rates that were passed in, or by another method",
    Status.TOO_FEW: "too few labels of this class to estimate anything; the rates are a guess",
    Status.UNIDENTIFIABLE: "the predictions do not predict this class; the rates are a guess",
    Status.POSTERIOR: "estimated from the predictions, for mistakes that depend on the class alone",
    Status.COUNTED: "counted from contradicted predictions, as where people miss and confuse ambiguous examples",
    Status.SHARED: "estimated from the predictions, mostly those of the other classes: this one's say little",
    Status.VERIFIED: "from decisions of people on a drawn sample; holds whatever the mistakes depend on",
}
_BINS, _FINE, _PARTNERS = 24, 60, 4
_KEYS = (
    "Keys in the list: <kbd>\u2191</kbd> <kbd>\u2193</kbd> move, <kbd>f</kbd> remove or add the label, "
    "<kbd>k</kbd> keep, <kbd>n</kbd> next undecided, <kbd>u</kbd> undo, <kbd>Enter</kbd> picture. "
    "With only the undecided shown, a decision moves on to the next."
)


def rates(
    found: TransitionEstimate,
    classes: Sequence[str],
    *,
    suspects: Any = None,
    true_T: Any = None,
    interval: Any = None,
    pick: Any = (),
    gallery: bool = False,
) -> str:
    """Noise rates per class with 95 % intervals, the noisiest first, and apart from them those that are mere guesses.

    Args:
      suspects: (q,) numbers of suspects.
      true_T: (q, 2, 2) shown beside the estimate.
      interval: (q, 2, 2) in place of the estimate's own.
      pick: columns of which a click on the name filters the issues; with `gallery`, one on the number shows pictures.
    """
    ends = np.asarray(found.interval() if interval is None else interval)
    values = np.stack([found.rho_neg, found.rho_pos], axis=1)
    status = [Status(int(code)) for code in found.status]
    guess = np.isin(np.asarray(found.status), _GUESSES)
    seen, rated = ends[~guess], values[~guess if not guess.all() else slice(None)]
    seen = np.concatenate([rated.ravel(), seen[np.isfinite(seen)].ravel()])
    top = charts.nice_top(float(min(seen.max(initial=0.01), 3 * max(np.percentile(rated, 95), 0.01))))
    rows: dict[bool, list[str]] = {False: [], True: []}
    for j in np.argsort(-values.sum(axis=1), kind="stable"):
        name, picked = escape(classes[j]), f'type="button" data-column="{j}"'
        label = f"<button {picked}>{name}</button>" if j in pick else f"<b>{name}</b>"
        true = None if true_T is None else (float(true_T[j, 0, 1]), float(true_T[j, 1, 0]))
        cells = [label, charts.intervals(values[j].tolist(), ends[j].tolist(), top, true)]
        for kind, rate, (low, high) in zip(("neg", "pos"), values[j], ends[j], strict=True):
            span = f"<small>{100 * low:.1f} to {100 * high:.1f}</small>" if np.isfinite(low) else ""
            cells.append(f'<div class="num {kind}">{100 * rate:.1f} %{span}</div>')
        bad = "" if status[j] in (Status.POSTERIOR, Status.CORRELATION, Status.VERIFIED) else " bad"
        pill = f'<span class="pill{bad}" title="{_MEANINGS[status[j]]}">{_word(status[j])}</span>'
        cells.append(f'<div class="state">{pill}</div>')
        several = "" if suspects is None else f"{int(suspects[j]):,}"
        if gallery and j in pick:
            several += f'<span class="off"> pictures of {name}</span>'
            several = f'<button {picked} data-gallery title="pictures">{several}</button>'
        cells.append(f'<div class="num count">{several}</div>')
        rows[bool(guess[j])].append(f'<div class="class">{"".join(cells)}</div>')
    head = ["<div>class</div>", charts.scale(top), "<div>falsely given</div>", "<div>missed</div>", "<div>status</div>"]
    head.append(f'<div class="count">{"" if suspects is None else "suspects"}</div>')
    truth = "" if true_T is None else '<li><i class="key tick"></i>truth</li>'
    legend = (
        '<ul class="legend"><li><i class="key neg"></i>falsely given: P(given | absent), rho_neg</li>'
        f'<li><i class="key pos"></i>missed: P(not given | present), rho_pos</li>{truth}</ul>'
    )
    intro = "How often a label is wrong, by class, with 95 % intervals; the noisiest class first."
    head_row = f'<div class="class head">{"".join(head)}</div>'
    body = legend + (f'<div class="classes">{head_row}{"".join(rows[False])}</div>' if rows[False] else "")
    if rows[True]:
        body += (
            f"<h3>{len(rows[True]):,} classes that cannot be judged</h3>"
            '<p class="soft">Their rates are guesses: there are too few labels, or nothing predicts them.</p>'
            f'<div class="classes" id="guesses">{"".join(rows[True])}</div>'
        )
    meanings = "".join(f"<dt>{_word(code)}</dt><dd>{_MEANINGS[code]}</dd>" for code in sorted(set(status)))
    body += f'<details class="meanings"><summary>What the status says</summary><dl>{meanings}</dl></details>'
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


def issues(
    classes: Sequence[str],
    columns: Sequence[int],
    total: int,
    shown: int,
    *,
    command: str,
    proposed: bool = False,
    pictures: str = "",
) -> str:
    """The table of labels to decide: its tools and the empty rows that the script fills.

    Args:
      columns: classes to filter by.
      total, shown: suspects, and how many of them are listed.
      command: what reads the saved decisions.
      proposed: cells drawn for decision in place of suspects.
      pictures: where they are, empty if there are none.
    """
    options = "".join(f'<option value="{j}">{escape(classes[j])}</option>' for j in columns)
    keys = (("example", "example"), ("class", "class"), ("given", "label"), ("wrong", "P(wrong)"))[
        : 3 if proposed else 4
    ]
    heads = "".join(
        f'<div role="columnheader" data-key="{key}" aria-sort="none"><button type="button">{word}</button></div>'
        for key, word in keys
    )
    empty = '<div role="columnheader"><span class="off">{}</span></div>'
    more = f" The {shown:,} most suspect of {total:,} are listed; the CSV file has all." if shown < total else ""
    intro = f"Labels that are probably wrong, the worst first.{more}"
    if proposed:
        heads += empty.format("nothing")
        intro = (
            f"{shown:,} cells drawn for decision, in random order: decide from the top, stop where you like, and save. "
            "Rates that hold for any noise are read from them."
        )
    layout = '<button type="button" id="layout" aria-pressed="false">Gallery</button>' if pictures else ""
    body = (
        '<div class="tools"><input id="search" type="search" placeholder="Search examples and classes" '
        f'aria-label="search"><select id="class" aria-label="class"><option value="">all classes</option>{options}'
        '</select><select id="kind" aria-label="kind"><option value="">both kinds</option>'
        '<option value="1">given</option><option value="0">not given</option></select>'
        '<select id="state" aria-label="decided or not"><option value="">decided or not</option>'
        '<option value="undecided">undecided</option><option value="decided">decided</option>'
        f'<option value="split">disagreements</option></select>{layout}<span id="shown"></span></div>'
        '<div class="tools"><input id="reviewer" placeholder="Your name" aria-label="your name, saved with decisions" '
        'autocomplete="off"><button type="button" id="next">Next undecided</button>'
        '<button type="button" id="undo" disabled>Undo</button>'
        '<button type="button" id="load">Import decisions</button>'
        '<input type="file" id="file" accept=".csv,text/csv" multiple hidden aria-label="files of decisions">'
        '<button type="button" id="save" class="go" disabled>Save decisions</button>'
        '<span class="progress"><progress id="done" aria-labelledby="progress"></progress>'
        '<span id="progress"></span></span></div>'
        f'<p class="keys soft" id="keys">{_KEYS}</p><p id="said" class="soft" role="status"></p>'
        '<div class="issues" id="grid" role="grid" aria-label="labels to decide" aria-describedby="keys">'
        f'<div class="heads" role="row">{empty.format("picture")}{heads}{empty.format("decision")}</div>'
        '<div id="view" role="rowgroup"><div id="rows" role="presentation"></div></div></div>'
        '<p id="none" class="soft" hidden>No label is left with these filters.</p>'
        f'<p class="soft">Then save the decisions and run</p><div class="tools"><code id="command">{escape(command)}'
        '</code><button type="button" id="copy">Copy</button></div>'
        + (f'<p class="soft">{escape(pictures)}</p>' if pictures else "")
        + '<dialog id="zoom" aria-labelledby="about"><img id="large" alt=""><p id="about"></p>'
        '<p id="has" class="soft"></p><a id="original" target="_blank">Open the file</a> '
        '<button type="button" id="close">Close</button></dialog>'
        "<noscript><p>The list needs JavaScript; the CSV file beside this page holds the same rows.</p></noscript>"
    )
    return section("Labels to decide" if proposed else "Labels to re-check", intro, body, key="issues")


@jax.jit
def _mixtures(losses: Float[Array, "epochs n q"], member: Bool[Array, "n q"]) -> Any:
    scaled = jax.vmap(scale_losses, in_axes=(2, 1), out_axes=1)(losses, member)
    return scaled, jax.vmap(fit_mixture, in_axes=(1, 1))(scaled, member)


def _word(status: Status) -> str:
    return status.name.lower().replace("_", " ")


def _cut(number: int) -> str:
    return f" The {MOST_CHARTS} most suspect of {number} classes." if number > MOST_CHARTS else ""
