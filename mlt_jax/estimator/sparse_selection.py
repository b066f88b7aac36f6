"""Selection where (n, q) losses do not fit into memory: by blocks of classes, of the largest losses, or of a sample.

- `select_blocks`: scores by a function of classes, or on disk, to the cells that are not taken as clean, which
  `estimate_all` takes as `unselected=`;
- `select_largest`: losses of the given positives and of the negatives of largest loss (top k), to the same;
- `select_sampled`: losses of the given positives and of negatives drawn at random, to the cells that *are* taken as
  clean, which `estimate_all` takes as `selected`.

The first is exact: the mask of `select_clean`. The second is exact for losses that are 0 where none is stored. The
third knows nothing of the cells that were not looked at, so it does not take them as clean: with the joint rule they
are unselected labels like others, a mixture of right and missed ones. Rates stay centred that way, and rho_pos gets a
standard error that grows as the sample shrinks. Counted as clean they would hide the missed labels among them: rho_pos
would be too small about by the share of negatives that were looked at, with a small standard error.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Bool, Float, UInt8
from tqdm import tqdm

from mlt_jax.arguments import check_integer, check_seed
from mlt_jax.estimator.selection import BYTES_PER_CELL, LEAST_PROBABILITY, Scalar, check_rule, select_cells
from mlt_jax.estimator.sparse_counts import as_sparse_labels
from mlt_jax.estimator.sums import ANY_ORDER
from mlt_jax.labels import as_labels

_READ_BYTES = 16  # a cell of a block as it is read, checked, turned into a loss and transposed
_WIDTHS = 8  # lists of losses are filled up to powers of this, so that few shapes are compiled


def select_blocks(
    labels: Any,
    scores: Any = None,
    *,
    probs: Any = None,
    losses: Any = None,
    tau: float = 0.5,
    assume: str = "general",
    max_memory: int = 2**30,
) -> Any:
    """The cells that are *not* taken as clean, csc_array (n, q) of bool, for `estimate_all(labels, unselected=...)`.

    The same mask as `select_clean` makes of all losses at once, from whole columns, a block of classes at a time. What
    is returned takes 5 bytes per cell: a mixture may leave a tenth of all negatives unselected.

    Args:
      labels: (n, q) scipy.sparse, or any form that `as_labels` takes; all cells observed.
      scores: logits of P(label = 1): a function that gets the numbers of some neighbouring classes as an array and
        returns (n, len(columns)) or (epochs, n, len(columns)); or an array (n, q) or (epochs, n, q) that can be sliced,
        such as `numpy.load(path, mmap_mode="r")`. A function is first called for class 0 alone, and may be asked for a
        class twice.
      probs: the same in place of `scores`, probabilities in [0, 1].
      losses: the same in place of `scores`, the loss of each given label.
      tau, assume: see `select_clean`.
      max_memory: bytes of work space besides labels and result, unless a single column needs more.

    Raises:
      ValueError: not exactly one of scores, probs and losses, or values that are not finite, not in [0, 1] (probs) or
        of another shape.
      TypeError: sparse scores or losses, a DataFrame, or no numbers.
    """
    check_rule(tau, assume)
    sources = {name: x for name, x in (("scores", scores), ("probs", probs), ("losses", losses)) if x is not None}
    if len(sources) != 1:
        raise ValueError(f"scores: {' and '.join(sources) or 'nothing'} given; pass one of scores, probs and losses")
    y = _by_class(labels)
    n, q = y.shape
    ((name, source),) = sources.items()
    read = _reader(name, source, (n, q))
    epochs = len(read(np.arange(1)))
    block = int(np.clip(max_memory // ((_READ_BYTES * epochs + BYTES_PER_CELL) * n), 1, q))
    examples, lengths = [], []
    for start in _bar(range(0, q, block)):
        first = min(start, q - block)  # all of one size, to compile once
        cells = read(np.arange(first, first + block))
        values = y[:, first : first + block].toarray().view(np.uint8)
        left = ~np.asarray(_select_block(cells, values, kind=name, tau=tau, assume=assume))[start - first :]
        examples.append(np.nonzero(left)[1].astype(np.int32))
        lengths.append(np.count_nonzero(left, axis=1))
    return _csc(np.concatenate(examples), np.concatenate(lengths), (n, q))


def select_largest(
    labels: Any, losses: Any, *, tau: float = 0.5, assume: str = "general", max_memory: int = 2**30
) -> Any:
    """The cells that are *not* taken as clean, csc_array (n, q) of bool, where only large losses are known.

    This is for models that give the k best classes of each example: their scores, made losses, and those of the given
    positives. A cell that is not stored counts in the mixtures with loss 0, and is taken as clean: pass losses of which
    that is nearly true, not a sample (`select_sampled`).

    Args:
      labels: (n, q) scipy.sparse, or any form that `as_labels` takes; all cells observed.
      losses: (n, q) scipy.sparse, at least 0; an explicit 0 is a loss that is known to be 0.
      tau, assume, max_memory: see `select_blocks`.

    Raises:
      ValueError: losses of another shape, below 0 or not finite.
      TypeError: losses that are not scipy.sparse.
    """
    left, taken = _select_stored(labels, losses, tau, assume, max_memory, rest=True)
    left.data = ~taken
    left.eliminate_zeros()
    return left


def select_sampled(
    labels: Any, losses: Any, *, tau: float = 0.5, assume: str = "general", max_memory: int = 2**30
) -> Any:
    """The cells that are taken as clean, csc_array (n, q) of bool, as `estimate_all(labels, selected)` takes it.

    A cell without a loss is not taken as clean, whatever it is: nobody looked. So pass the result as `selected`, and
    ask `estimate_all` for `stderr=True`: rho_pos rests on the sample, and is next to unknown where the sample holds few
    missed labels. rho_neg rests on the given positives, and is as certain as with all losses.

    Args:
      labels: (n, q) scipy.sparse, or any form that `as_labels` takes; all cells observed.
      losses: (n, q) scipy.sparse: of the given positives, and of negatives drawn at random within each class, such as
        those that `sample_cells` draws. An explicit 0 is a loss of 0.
      tau, assume, max_memory: see `select_blocks`; pass the same `assume` to `estimate_all`.

    Raises:
      ValueError: losses of another shape or not finite.
      TypeError: losses that are not scipy.sparse.
    """
    kept, taken = _select_stored(labels, losses, tau, assume, max_memory, rest=False)
    kept.data = taken
    kept.eliminate_zeros()
    return kept


def sample_cells(labels: Any, negatives: int, *, seed: int = 0) -> Any:
    """The cells to compute losses of for `select_sampled`, csc_array (n, q) of bool.

    These are the given positives and `negatives` cells of each class, drawn at random with replacement; some of them
    are drawn twice or are positives.
    """
    check_integer("negatives", negatives, 1, remedy="at least 1, the number of cells to draw of each class")
    check_seed(seed)
    y = _by_class(labels)
    n, q = y.shape
    drawn = np.random.default_rng(seed).integers(0, n, negatives * q)
    places = drawn.astype(np.int32), np.repeat(np.arange(q, dtype=np.int32), negatives)
    cells = sp.coo_array((np.ones(len(drawn), bool), places), shape=y.shape).tocsc()
    return (cells + y.astype(bool)).astype(bool)


def _by_class(labels: Any) -> Any:
    """Checked labels of which all cells are observed, csc_array of int8 ones."""
    if hasattr(labels, "tocsc"):
        return as_sparse_labels(labels).by_class
    checked = as_labels(labels)
    if checked.observed is not None:
        raise ValueError("labels: some cells are not observed; pass all observed, or use select_clean")
    return sp.csc_array(checked.values.view(np.int8))


def _reader(name: str, source: Any, shape: tuple[int, int]) -> Callable[[np.ndarray], Float[np.ndarray, "epochs n b"]]:
    """A function of neighbouring class numbers that returns their checked cells."""
    if hasattr(source, "tocsc"):
        raise TypeError(f"{name}: sparse; make losses of it for select_largest (top k) or select_sampled (a sample)")
    if hasattr(source, "iloc"):
        raise TypeError(f"{name}: a DataFrame; pass its .to_numpy(), columns in the order of the labels")
    if isinstance(source, list | tuple):
        source = np.asarray(source)
    called = callable(source)
    if not called and (np.ndim(source) not in (2, 3) or np.shape(source)[-2:] != shape):
        raise ValueError(f"{name}: shape {np.shape(source)}, labels have {shape}; pass (n, q) or (epochs, n, q)")
    low, high = (0, 1) if name == "probs" else (-np.inf, np.inf)

    def read(columns: np.ndarray) -> Float[np.ndarray, "epochs n b"]:
        cells = np.asarray(source(columns) if called else source[..., columns[0] : columns[-1] + 1])
        if cells.dtype.kind not in "biuf":
            raise TypeError(f"{name}: dtype {cells.dtype}; pass real numbers")
        wanted = (shape[0], len(columns))
        if cells.ndim not in (2, 3) or cells.shape[-2:] != wanted or 0 in cells.shape:
            raise ValueError(f"{name}: returned shape {cells.shape} for {len(columns)} classes; return {wanted}")
        with np.errstate(over="ignore"):  # too large for float32 becomes inf, which is reported below
            cells = cells.astype(np.float32, copy=False)
        fine = np.isfinite(cells) & (cells >= low) & (cells <= high)
        if not fine.all():
            *_, row, column = place = np.unravel_index(fine.argmin(), fine.shape)
            allowed = "finite values" if high > 1 else "values in [0, 1]"
            raise ValueError(f"{name}: row {row}, column {columns[column]} is {cells[place]}; pass {allowed}")
        return cells[None] if cells.ndim == 2 else cells

    return read


@partial(jax.jit, static_argnames=("kind", "assume"), compiler_options=ANY_ORDER)
def _select_block(
    cells: Float[Array, "epochs n b"], values: UInt8[Array, "n b"], *, kind: str, tau: Scalar, assume: str
) -> Bool[Array, "b n"]:
    y = (values == 1)[None]
    if kind == "scores":
        cells = jnp.minimum(jax.nn.softplus(jnp.where(y, -cells, cells)), -jnp.log(LEAST_PROBABILITY))
    elif kind == "probs":
        cells = -jnp.log(jnp.maximum(jnp.where(y, cells, 1 - cells), LEAST_PROBABILITY))
    known = jnp.ones(values.T.shape, bool)
    return select_cells(jnp.swapaxes(cells, 1, 2), values.T, known, tau=tau, assume=assume)


_select_lists = jax.jit(select_cells, static_argnames="assume", compiler_options=ANY_ORDER)


def _select_stored(
    labels: Any, losses: Any, tau: float, assume: str, max_memory: int, *, rest: bool
) -> tuple[Any, Bool[np.ndarray, "stored"]]:
    """Sparse losses by class, csc_array, and which of the stored cells are taken as clean.

    Classes with lists of similar length are done together, filled up to one length. With `rest` each list ends with two
    cells of loss 0 that stand for all positives and all negatives that are not stored.
    """
    check_rule(tau, assume)
    y = _by_class(labels)
    stored = _losses_by_class(losses, y.shape, least=0.0 if rest else -np.inf)
    n, q = y.shape
    number = np.diff(stored.indptr)
    positive = sp.csc_array((np.arange(1, stored.nnz + 1), stored.indices, stored.indptr), shape=y.shape).multiply(y)
    values = np.zeros(stored.nnz, np.uint8)
    values[positive.tocsc().data - 1] = 1
    own = np.bincount(np.repeat(np.arange(q), number)[values == 1], minlength=q)
    count = np.diff(y.indptr)
    missing = np.stack([count - own, n - count - (number - own)], axis=1).astype(np.float32)  # positives, negatives
    width = _WIDTHS ** np.ceil(np.log(np.maximum(number, _WIDTHS)) / np.log(_WIDTHS)).astype(np.int64)
    taken = np.empty(stored.nnz, bool)
    parts = []
    for size in np.unique(width):
        classes = np.flatnonzero(width == size)
        rows = int(np.clip(max_memory // ((_READ_BYTES + BYTES_PER_CELL) * size), 1, len(classes)))
        parts += [(int(size), classes[k : k + rows], rows) for k in range(0, len(classes), rows)]
    for size, classes, rows in _bar(parts):
        inside = np.arange(size) < number[classes, None]
        place = np.where(inside, stored.indptr[classes, None] + np.arange(size), 0)[inside]
        lists = [np.zeros((rows, size + 2), dtype) for dtype in (np.float32, np.uint8, bool, np.float32)]
        for filled, x in zip(lists, (stored.data, values, np.True_, np.float32(1)), strict=True):
            filled[: len(classes), :size][inside] = x[place] if np.ndim(x) else x
        loss, value, known, weight = lists
        if rest:
            value[:, -2] = 1
            weight[: len(classes), -2:] = missing[classes]
            known[: len(classes), -2:] = missing[classes] > 0
        found = np.asarray(_select_lists(loss[None], value, known, weight, tau=tau, assume=assume))
        taken[place] = found[: len(classes), :size][inside]
    return stored, taken


def _losses_by_class(losses: Any, shape: tuple[int, ...], least: float) -> Any:
    """Checked sparse losses, csc_array of float32; a stored 0 stays."""
    if not hasattr(losses, "tocsc"):
        raise TypeError("losses: not sparse; pass scipy.sparse losses, or use select_blocks or select_clean")
    if losses.shape != shape:
        raise ValueError(f"losses: shape {losses.shape}, labels have {shape}; pass (n, q)")
    if losses.dtype.kind not in "biuf":
        raise TypeError(f"losses: dtype {losses.dtype}; pass real numbers")
    by_class = sp.csc_array(losses).astype(np.float32)
    by_class.sum_duplicates()
    wrong = ~(np.isfinite(by_class.data) & (by_class.data >= least))
    if wrong.any():
        k = int(wrong.argmax())
        column = int(np.searchsorted(by_class.indptr, k, side="right")) - 1
        allowed = "finite losses" if np.isinf(least) else "finite losses of at least 0"
        raise ValueError(f"losses: row {by_class.indices[k]}, column {column} is {by_class.data[k]}; pass {allowed}")
    return by_class


def _csc(examples: np.ndarray, lengths: np.ndarray, shape: tuple[int, int]) -> Any:
    """csc_array of bool from the examples of all classes, one class after the other."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    wide = np.int64 if ends[-1] >= 2**31 else np.int32
    cells = np.ones(len(examples), bool), examples.astype(wide, copy=False), ends.astype(wide)
    return sp.csc_array(cells, shape=shape)


def _bar(blocks: Any) -> Any:
    return tqdm(blocks, desc="selection", unit="block", delay=2, leave=False, disable=None)
