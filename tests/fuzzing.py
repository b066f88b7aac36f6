"""Strategies for the arguments of every public function, right and wrong, and what must hold of every call.

A call is described by a strategy per parameter, which takes the `Case` that all arguments share, so that right
arguments fit each other. Some arguments are then replaced by `junk`. JAX compiles a program for every shape and every
option that changes the program, so CI has few of these and `make fuzz` the whole menu.
"""

import inspect
import itertools
import math
import re
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pandas as pd
import scipy.sparse as sp
from hypothesis import settings
from hypothesis import strategies as st
from paths import ROOT

import mlt_jax
from mlt_jax.labels import CODINGS

PACKAGE = str(ROOT / "mlt_jax")
SHAPES = ((40, 3), (1, 1), (3, 2), (1, 3), (12, 1), (40, 1), (60, 5))
_SHAPES_IN_CI = 2
IN_CI, AT_LENGTH = 1_000, 20_000  # inputs in all
FREQUENCIES = (0.0, 0.03, 0.3, 0.5, 1.0)


class Case:
    """The truth that right arguments of one call share: labels of n examples and q classes, in one coding."""

    def __init__(self, n: int, q: int, seed: int, coding: str, masked: bool) -> None:
        self.n, self.q, self.coding = n, q, coding
        self.rng = rng = np.random.default_rng(seed)
        self.values = (rng.random((n, q)) < rng.choice(FREQUENCIES, q)).astype(np.uint8)
        self.known = rng.random((n, q)) < rng.choice([0, 0.5, 0.9, 1], q) if masked else None
        self.scores = rng.normal(size=(n, q)) + rng.choice([0, 3, 30]) * (self.values - 0.5)

    def __repr__(self) -> str:
        return f"Case({self.n}, {self.q}, {self.coding!r})"


Kind = Callable[[Case], st.SearchStrategy]


class Call(NamedTuple):
    """A public function, a strategy for each parameter, and what must hold of its result."""

    function: Callable[..., Any]
    kinds: dict[str, Kind]
    holds: Callable[[Any, dict[str, Any]], None] = lambda result, arguments: None
    either: tuple[str, ...] = ()  # parameters of which one is passed
    spoil: bool = True  # whether arguments are replaced by junk
    also: tuple[str, ...] = ()  # names that its errors may begin with, beside those of its parameters


def at_length() -> bool:
    """Whether this is `make fuzz`."""
    return settings.get_current_profile_name() == "fuzz"


def budget(calls: int, *, share: float = 1.0) -> settings:
    """Settings for one of so many functions that divide a share of all inputs among them."""
    total = AT_LENGTH if at_length() else IN_CI
    return settings(
        settings.get_profile("fuzz" if at_length() else "fuzz-ci"), max_examples=math.ceil(share * total / calls)
    )


@st.composite
def cases(draw: Any) -> Case:
    n, q = draw(st.sampled_from(SHAPES if at_length() else SHAPES[:_SHAPES_IN_CI]))
    coding = draw(st.sampled_from(["01"] * 5 + list(CODINGS)))
    return Case(n, q, draw(st.integers(0, 2**20)), coding, draw(st.booleans()))


def menu(usual: Any, *others: Any) -> Kind:
    """An option that changes the program: as usual in CI."""
    return lambda case: st.sampled_from((usual, *others) if at_length() else (usual,))


@st.composite
def arguments(draw: Any, call: Call) -> dict[str, Any]:
    """Keyword arguments of a call: right ones, of which none, one or two are replaced by junk."""
    case = draw(cases())
    needed = {
        name
        for name, parameter in inspect.signature(call.function).parameters.items()
        if parameter.default is parameter.empty
    }
    names = [name for name in call.kinds if name != "self"] or [""]
    most = draw(st.sampled_from([0, 0, 1, 1, 2])) if call.spoil else 0
    wrong = set(draw(st.lists(st.sampled_from(names), max_size=most)))
    left_out = set(draw(st.permutations(call.either))[1:])
    found = {}
    for name, kind in call.kinds.items():
        if name in left_out:
            continue
        if name in wrong:
            found[name] = draw(junk(case))
        elif name in needed or name in call.either or name in ("observed", "coding") or draw(st.booleans()):
            found[name] = draw(kind(case))
    return found


def run(call: Call, given: dict[str, Any]) -> None:
    """Calls, and fails unless the result is sound or the error is one that was raised on purpose."""
    _drop_compiled()
    names = (*inspect.signature(call.function).parameters, *call.kinds, *call.also)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = call.function(**given)
    except (ValueError, TypeError) as error:
        if not on_purpose(error, names):
            raise
    else:
        sound(result)
        call.holds(result, given)


def _drop_compiled() -> None:
    """Drops compiled code before Linux runs out of memory maps (65,530 a process), where compiling would crash."""
    if next(_calls) % 200 == 199 and (maps := Path("/proc/self/maps")).exists():
        with maps.open("rb") as lines:
            if sum(1 for _ in lines) > 30_000:
                jax.clear_caches()


_calls = itertools.count()


def on_purpose(error: Exception, names: Iterable[str]) -> bool:
    """Whether an error was raised by the package itself and begins with one of the names."""
    where = traceback.extract_tb(error.__traceback__)[-1].filename
    return where.startswith(PACKAGE) and bool(re.match(rf"({'|'.join(map(re.escape, names))})\b", str(error)))


def sound(result: Any) -> None:
    """Fails where a result has a T, prior or status that is none, or NaN where there may be none."""
    if isinstance(result, mlt_jax.TransitionEstimate):
        transitions(result.T)
        within(result.prior, 0, 1)
        assert set(np.asarray(result.status).tolist()) <= set(mlt_jax.Status)
        assert not (np.asarray(result.stderr) < 0).any()
        within(np.asarray(result.interval())[np.isfinite(result.stderr)], 0, 1)
        assert (np.asarray(result.partners) >= 0).all()
        within(result.residual, 0, np.inf)
        assert repr(result)
    elif isinstance(result, mlt_jax.Raters):
        transitions(result.T)
        within(result.interval(), 0, 1)
        for probability in (result.prior, result.clean_probs, result.yes_probs, result.right):
            within(probability, 0, 1)
        assert set(np.unique(result.status)) <= set(mlt_jax.RaterStatus)
        assert all(np.isfinite(part).all() for part in result)
    elif isinstance(result, mlt_jax.Audit):
        sound(result.found)
        within(result.wrong, 0, 1)
        within(result.clean_probs, 0, 1)
        assert all(np.isfinite(part).all() for part in (result.scores, result.slope, result.offset))
        assert repr(result)
    elif isinstance(result, mlt_jax.Verified):
        sound(result.found)
        for probability in (result.interval, result.share, result.share_interval, result.wrong):
            within(probability, 0, 1)
        assert (result.more >= 0).all()
        assert result.share_more >= 0
    elif isinstance(result, mlt_jax.Labels):
        assert set(np.unique(result.values)) <= {0, 1}
        assert result.observed is None or not (result.values[~result.observed]).any()


def within(values: Any, low: float, high: float) -> None:
    values = np.asarray(values)
    assert np.isfinite(values).all(), f"not finite: {values}"
    assert ((values >= low - 1e-6) & (values <= high + 1e-6)).all(), f"outside [{low}, {high}]: {values}"


def transitions(T: Any) -> None:
    within(T, 0, 1)
    np.testing.assert_allclose(np.asarray(T).sum(-1), 1, atol=1e-5)


def probability(result: Any, _: Any = None) -> None:
    within(result, 0, 1)


def finite(result: Any, _: Any = None) -> None:
    within(result, -np.inf, np.inf)


# Kinds of arguments.


def labels(case: Case) -> st.SearchStrategy:
    """Labels in every accepted form, in the case's coding."""
    codes = {meaning: code for code, meaning in CODINGS[case.coding].items()}
    given = np.where(case.values == 1, 1, codes["absent"])
    if len(codes) > 2:
        given = np.where(case.rng.random(given.shape) < 0.2, codes.get("unknown", codes.get(next(iter(codes)))), given)
    dense: list[Callable[[], Any]] = [
        lambda: given.astype(np.int8),
        lambda: given.astype(np.int64),
        lambda: given.astype(np.float32),
        lambda: np.asfortranarray(given.astype(np.float64)),
        lambda: given.astype(np.float16)[::-1][::-1],
        lambda: jnp.asarray(given, jnp.int32),
        lambda: given.astype(ml_dtypes.bfloat16),
        lambda: pd.DataFrame(given, columns=[f"c{j}" for j in range(case.q)]),
        lambda: pd.DataFrame(given.astype(float), index=[f"r{i}" for i in range(case.n)]),
        lambda: pd.DataFrame(given).astype("Int8"),
        lambda: np.where(case.known, given, np.nan) if case.known is not None else given,
    ]
    if case.coding == "01":
        dense += [
            lambda: case.values,
            lambda: case.values.astype(bool),
            lambda: pd.DataFrame(case.values.astype(bool)).astype(object),
            lambda: mlt_jax.as_labels(case.values, observed=case.known),
            lambda: [np.flatnonzero(row).tolist() for row in case.values],
            lambda: [np.flatnonzero(row) for row in case.values],
        ]
    if case.coding in ("01", "uncertain"):
        dense += [lambda: sp.csr_array(given), lambda: sp.coo_matrix(given.astype(float)), lambda: sp.csc_array(given)]
    return st.sampled_from(dense).map(lambda make: make())


def coding(case: Case) -> st.SearchStrategy:
    return st.just(case.coding)


def observed(case: Case) -> st.SearchStrategy:
    return st.just(case.known)


def mask(case: Case) -> st.SearchStrategy:
    """Which labels are taken as clean, or as not."""
    taken = case.rng.random((case.n, case.q)) < case.rng.choice([0, 0.1, 0.8, 1], case.q)
    forms: list[Callable[[], Any]] = [
        lambda: taken,
        lambda: taken.astype(np.int8),
        lambda: taken.astype(float),
        lambda: sp.csr_array(taken),
        lambda: sp.csc_matrix(taken.astype(float)),
        lambda: pd.DataFrame(taken),
        lambda: taken.tolist(),
    ]
    return st.sampled_from(forms).map(lambda make: make())


def scores(case: Case) -> st.SearchStrategy:
    """Logits: informative, constant, tied, or as large as float32 goes."""
    s = case.scores
    forms = [s, s.astype(np.float32), np.zeros_like(s), np.round(s), np.sign(s) * 3e38, s * 1e-42, s * 1e6]
    return st.sampled_from([*forms, pd.DataFrame(s), np.round(s).astype(int), s.tolist()])


def probs(case: Case) -> st.SearchStrategy:
    p = 1 / (1 + np.exp(-case.scores))
    forms = [p, p.astype(np.float16), np.round(p), np.full_like(p, 0.5), np.zeros_like(p), np.ones_like(p), p * 1e-45]
    return st.sampled_from([*forms, pd.DataFrame(p), jnp.asarray(p, jnp.float32), p.tolist(), np.stack([p, p])])


def losses(case: Case) -> st.SearchStrategy:
    x = np.abs(case.scores)
    forms = [x, np.zeros_like(x), x * 1e30, -x, x.astype(np.float32), pd.DataFrame(x)]
    epochs = [np.stack([x, x / 2]), [pd.DataFrame(x), pd.DataFrame(x / 2)]]
    return st.sampled_from([*forms, *epochs] if at_length() else forms)


def features(case: Case) -> st.SearchStrategy:
    x = case.scores @ case.rng.normal(size=(case.q, 2))
    forms = [x, x.astype(np.float32), np.zeros_like(x), np.sign(x), x * 1e-30, x * 1e18, x.round().astype(int)]
    forms += [pd.DataFrame(x), jnp.asarray(x, jnp.float32), x.tolist()]
    return st.sampled_from([*forms, x[:, :1]] if at_length() else forms)


def transition(case: Case) -> st.SearchStrategy:
    """T: of ordinary, no, much, full and useless noise."""
    rates = [
        case.rng.uniform(0, 0.4, (case.q, 2)), np.zeros((case.q, 2)), np.ones((case.q, 2)), np.full((case.q, 2), 0.5),
        np.tile([0.0, 1.0], (case.q, 1)), np.tile([0.6, 0.9], (case.q, 1)),
    ]  # fmt: skip
    made = [np.stack([np.stack([1 - a, a], 1), np.stack([b, 1 - b], 1)], 1) for a, b in (r.T for r in rates)]
    return st.sampled_from([*made, made[0].tolist(), jnp.asarray(made[0], jnp.float32)])


def estimated(case: Case) -> st.SearchStrategy:
    """T, or an estimate."""
    found = mlt_jax.estimator.estimate_all(case.values, np.ones_like(case.values))
    return st.one_of(transition(case), st.just(found))


def tables(case: Case) -> st.SearchStrategy:
    taken = case.rng.random((case.n, case.q)) < 0.7
    return st.sampled_from([mlt_jax.count(case.values, taken), mlt_jax.count(case.values, taken, observed=case.known)])


def raters(case: Case) -> st.SearchStrategy:
    """Judgements of one to four raters, with gaps."""

    def make(form: tuple[int, float, str]) -> Any:
        count, gaps, kind = form
        votes = case.values.astype(np.int8)[:, :, None] ^ (case.rng.random((case.n, case.q, count)) < 0.2)
        votes = np.where(case.rng.random(votes.shape) < gaps, -1, votes)
        return np.where(votes < 0, np.nan, votes) if kind == "f" else votes.astype(np.int8)

    return st.tuples(menu(3, 1, 2)(case), st.sampled_from([0, 0.3, 1]), st.sampled_from("if")).map(make)


def judged(case: Case) -> st.SearchStrategy:
    return raters(case).map(mlt_jax.estimate_raters)


def decisions(case: Case) -> st.SearchStrategy:
    """Decisions of people on a drawn sample, on all cells, and on few."""
    known = np.ones((case.n, case.q), bool) if case.known is None or case.coding != "01" else case.known

    def make(form: tuple[float, str, bool]) -> Any:
        share, probability, undecided = form
        row, column = np.nonzero(known & (case.rng.random(known.shape) < share))
        wrong = case.rng.random(len(row)) < 0.2
        label = (case.values[row, column] ^ wrong).astype(int)
        label = np.where(case.rng.random(len(row)) < 0.3, -1, label) if undecided else label
        drawn = {"share": share or 1.0, "nan": np.nan, "one": 1.0, "tiny": 1e-300}[probability]
        return mlt_jax.Decisions(row, column, label, np.full(len(row), drawn))

    parts = st.sampled_from([0.1, 0.5, 1.0]), st.sampled_from(["share", "share", "nan", "one", "tiny"]), st.booleans()
    return st.tuples(*parts).map(make)


def audits(case: Case) -> st.SearchStrategy:
    p = 1 / (1 + np.exp(-case.scores))
    return st.builds(lambda T: mlt_jax.audit_labels(case.values, probs=p, T=T, observed=case.known), transition(case))


def groups(case: Case) -> st.SearchStrategy:
    ids = np.arange(case.n) // 2
    return st.sampled_from([ids, np.arange(case.n), ids.astype(str).tolist(), ids.astype(object), ids / 2])


def class_names(case: Case) -> st.SearchStrategy:
    return st.sampled_from([[f"c{j}" for j in range(case.q)], tuple(f"k{j}" for j in range(case.q)), ["a"] * case.q])


def row_names(case: Case) -> st.SearchStrategy:
    return st.sampled_from([range(case.n), [f"r{i}" for i in range(case.n)], np.arange(case.n)])


def one_of(*values: Any) -> Kind:
    return lambda case: st.sampled_from(values)


def share(case: Case) -> st.SearchStrategy:
    return st.sampled_from([0.5, 0.97, 1e-9, np.float32(0.25), 0, 1, -0.1, 1.5])


def seed(case: Case) -> st.SearchStrategy:
    return st.sampled_from([0, 7, np.int64(3), 2**63])


def key(case: Case) -> st.SearchStrategy:
    return st.sampled_from([0, 1]).map(jax.random.key)


def counts_of(*values: int) -> Kind:
    return lambda case: st.sampled_from([1, 2, case.n, case.q, *values])


assume = menu("general", "missing", "partial")
switch = one_of(True, False)


class Odd:
    """An object that is nothing anybody expects."""

    def __repr__(self) -> str:
        return "Odd()"


def junk(case: Case) -> st.SearchStrategy:
    """What users pass by mistake."""
    n, q = case.n, case.q
    grid = case.values.astype(float)

    def cell(value: Any, dtype: Any = float) -> Any:
        changed = grid.astype(dtype)
        changed[case.rng.integers(n), case.rng.integers(q)] = value
        return changed

    plain = [
        None, "", "text", b"bytes", 0, 1, -1, 2, 1.5, -0.5, np.nan, np.inf, -np.inf, 2**40, -(2**70), 1e300, True, 1j,
        (), [], {}, set(), {"a": [1]}, Odd(), Odd, len, range(n), np.float64(0.3), np.array(0.3), np.array("x"),
        Path("nowhere"), slice(3),
    ]  # fmt: skip
    arrays: list[Callable[[], Any]] = [
        lambda: np.zeros(0),
        lambda: np.zeros((0, q)),
        lambda: np.zeros((n, 0)),
        lambda: np.zeros((0, 0)),
        lambda: np.zeros(n),
        lambda: np.zeros((n, q + 1)),
        lambda: np.zeros((n + 1, q)),
        lambda: np.zeros((2, n, q)),
        lambda: np.zeros((0, n, q)),
        lambda: np.zeros((1, 1, 1, 1)),
        lambda: np.zeros((q, 2, 2)),
        lambda: np.full((q, 2, 2), np.nan),
        lambda: np.full((n, q), np.nan),
        lambda: cell(np.nan),
        lambda: cell(np.inf),
        lambda: cell(-np.inf),
        lambda: cell(-1),
        lambda: cell(2),
        lambda: cell(-1, np.int8),
        lambda: cell(255, np.uint8),
        lambda: cell(2**62, np.int64),
        lambda: cell(1e300),
        lambda: cell(0.5, np.float16),
        lambda: grid.astype(complex),
        lambda: grid.astype(str),
        lambda: grid.astype(object),
        lambda: np.full((n, q), None),
        lambda: grid.astype("datetime64[s]"),
        lambda: np.zeros((n, q), [("a", float)]),
        lambda: np.ma.masked_array(grid, grid == 1),
        lambda: np.array(["a", "b"] * q),
        lambda: jnp.full((n, q), jnp.nan),
        lambda: sp.csr_array(cell(2)),
        lambda: sp.csr_array(cell(np.nan)),
        lambda: sp.csr_array((n, q + 1)),
        lambda: sp.coo_array(np.zeros(3)),
        lambda: sp.csr_array(grid.astype(complex)),
        lambda: pd.DataFrame(),
        lambda: pd.DataFrame(grid.astype(str)),
        lambda: pd.DataFrame(cell(np.nan)),
        lambda: pd.DataFrame(cell(None, object)),
        lambda: pd.DataFrame(grid, columns=["a"] * q),
        lambda: pd.DataFrame(grid, index=["a"] * n),
        lambda: pd.DataFrame(grid, columns=[f"z{j}" for j in range(q)], index=[f"z{i}" for i in range(n)]),
        lambda: pd.DataFrame(grid, columns=range(q)[::-1], index=range(n)[::-1]),
        lambda: pd.DataFrame({"a": pd.Categorical(["x"] * n)}),
        lambda: pd.Series(np.zeros(n)),
        lambda: [[0, 1], [0]] * n,
        lambda: [[0.5] * q] * n,
        lambda: [["x"]] * n,
        lambda: [[-1]] * n,
        lambda: [[q]] * n,
        lambda: [[2**70]] * n,
        lambda: [[0, 0]] * n,
        lambda: [None] * n,
        lambda: ["a"] * q,
        lambda: [True] * n,
        lambda: [[[0]]] * n,
        lambda: [np.nan] * n,
        lambda: [Odd()] * n,
        lambda: grid.tolist(),
        lambda: (row for row in grid),
        lambda: jax.random.split(jax.random.key(0), 3),
        lambda: mlt_jax.Labels(case.values, None, None),
        lambda: mlt_jax.Labels(grid - 1, None, ("a",)),
        lambda: mlt_jax.Decisions(np.zeros(1, int), np.zeros(1, int), np.zeros(1, int), np.ones(1)),
        lambda: mlt_jax.Decisions(np.array([-1]), np.array([q]), np.array([7]), np.array([2.0])),
        lambda: mlt_jax.Decisions([0.5], [np.nan], ["x"], [None]),
        lambda: mlt_jax.Decisions([], [], [], []),
        lambda: mlt_jax.Decisions(0, 0, 0, 1.0),
        lambda: mlt_jax.Decisions(None, None, None, None),
    ]
    return st.one_of(st.sampled_from(plain), st.sampled_from(arrays).map(lambda make: make()))
