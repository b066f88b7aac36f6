"""Times and memory of counting, selection and solving beside the machine's limits and other implementations.

    python experiments/bench_estimator.py --out DIR                   # simulated labels
    python experiments/bench_estimator.py --out DIR --data ../shared/data              # and the real sets there
    python experiments/bench_estimator.py --out DIR --rows 'power law*' --figure docs/growth.svg
    python experiments/bench_estimator.py --out DIR --rows 'features*' --features 10000    # over an hour

Every row is measured in a process of its own, so its peak memory is its own. `DIR/bench.json` is written after every
row: a stopped run goes on where it was, and `--rows` measures the rows it names (again). At the end the tables are
printed and written as Markdown, `DIR/bench.md`, and log-log plots of time and memory over q, `DIR/growth.svg` or
`--figure`. `pip install '.[bench]'` has cleanlab (left out with a note where it is missing) and matplotlib. Times are
the best of the repeats, in seconds, compilation apart; "extrapolated" times were measured on part of the classes.
"""

import json
import os
import platform
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
import tyro
from tqdm import tqdm

from mlt_jax import Status, count, estimate, estimate_all, estimate_from_tables, select_clean
from mlt_jax.paper.noise import corrupt, transition

Row = dict[str, Any]
SETS = ("coco2014_train_labels", "openimages214_labels", "delicious_labels", "eurlex4k_train_labels")
LARGE = "power law"


@dataclass(frozen=True)
class Config:
    """Sizes to measure."""

    out: Path  # where to write
    data: Path | None = None  # folder with the files of SETS, .npz
    rows: tuple[str, ...] = ()  # patterns of the rows to measure, such as 'power law*'; default: those not measured yet
    figure: Path | None = None  # where to write the plots; default: growth.svg in `out`
    sizes: tuple[int, ...] = (2500, 5000, 10_000, 20_000)  # q of the sweep
    examples: tuple[int, ...] = (25_000, 100_000)  # n of the sweep; the last is used with every q
    medoid_up_to: int = 10_000  # largest q for the medoid
    dense_up_to: int = 2500  # largest q that is counted dense as well
    coco: tuple[int, int] = (73_872, 80)  # n and q of the run from losses to T
    part: int = 8  # classes that slow contenders are measured on
    repeats: int = 7
    large: tuple[tuple[int, int], ...] = (
        (25_000, 2500),
        (100_000, 10_000),
        (150_000, 40_000),
        (196_606, 131_073),
        (490_449, 670_091),
    )  # n and q of the rows with a power law
    dense: tuple[tuple[int, int, float], ...] = ((73_872, 80, 0.035), (20_000, 2000, 0.1), (100_000, 2500, 0.0024))
    features: tuple[int, ...] = ()  # q of the rows with features, each class about 0.7 CPU seconds
    features_of: tuple[int, int] = (100_000, 512)  # their n and d
    tables_up_to: int = 10_000  # largest q of `large` that is done with tables as well
    numpy_up_to: int = 2000  # largest q of `dense` that is done with NumPy as well
    peers_up_to: int = 2500  # largest q of `large` that is done with NumPy as well
    limits: int = 100_000_000  # numbers read to measure the bandwidth; the matrix product has a third of the root


def simulated_labels(rng: np.random.Generator, n: int, q: int, *, each: int = 6) -> tuple[sp.csr_array, sp.csr_array]:
    """Sparse labels, about `each` per example and most of them from one topic; 1 % of the cells are unselected."""
    topics = max(1, q // 50)
    topic = rng.integers(0, topics, (n, 1))
    inside = topic + topics * rng.integers(0, q // topics, (n, each))
    anywhere = (q * rng.random((n, each)) ** 2).astype(np.int64)
    chosen = np.where(rng.random((n, each)) < 0.7, np.minimum(inside, q - 1), anywhere)
    labels = sp.csr_array((np.ones(n * each, np.int32), (np.repeat(np.arange(n), each), chosen.ravel())), shape=(n, q))
    cells = np.unique(rng.integers(0, n * q, n * q // 100))
    unselected = sp.csr_array((np.ones(len(cells), bool), (cells // q, cells % q)), shape=(n, q))
    return (labels > 0).astype(np.int8), unselected


def power_law(rng: np.random.Generator, n: int, q: int, *, each: int = 6) -> tuple[sp.csr_array, sp.csr_array]:
    """Sparse labels whose counts fall as a power of their rank, about `each` per example, most from one topic.

    Unselected are a fifth of the positives and, at random, as many negatives.
    """
    size = max(1, min(50, q))
    topics = q // size
    topic = (topics * rng.random((n, 1)) ** 3).astype(np.int64)  # the k-th topic has about k^(-2/3) of the examples
    inside = (size * rng.random((n, each)) ** 2).astype(np.int64) * topics + topic
    anywhere = (q * rng.random((n, each)) ** 3).astype(np.int64)
    chosen = np.where(rng.random((n, each)) < 0.8, inside, anywhere)
    labels = sp.csr_array((np.ones(n * each, np.int32), (np.repeat(np.arange(n), each), chosen.ravel())), shape=(n, q))
    labels = (labels > 0).astype(np.int8)
    return labels, hidden(rng, labels)


def hidden(rng: np.random.Generator, labels: sp.csr_array) -> sp.csr_array:
    """Unselected cells: a fifth of the positives and, at random, as many negatives."""
    own = labels.copy()
    own.data = (rng.random(labels.nnz) < 0.2).astype(np.int8)
    number = labels.nnz // 5
    places = [rng.integers(0, size, number) for size in labels.shape]
    other = sp.csr_array((np.ones(number, np.int8), places), shape=labels.shape)
    return (own + other) > 0


def best(run: Callable[[], Any], repeats: int) -> tuple[float, float, Any]:
    """Least time, time of the first run, and what the last returned."""
    times = []
    for _ in range(max(1, repeats)):
        result = None  # or there would be two of it in memory
        start = time.perf_counter()
        result = jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return min(times[1:] or times), times[0], result


def peak_gb() -> float:
    """Most memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def bandwidth(size: int) -> float:
    """GB/s at which all cores read memory: the fastest of three readers."""
    data = np.ones(size, np.int32)
    on_device = jax.device_put(data.reshape(-1, 1000))
    cores = os.cpu_count() or 1
    pieces = np.array_split(data, 8 * cores)
    column_max = jax.jit(lambda x: jnp.max(x, axis=0))
    with ThreadPoolExecutor(cores) as pool:
        readers: list[Callable[[], Any]] = [
            lambda: list(pool.map(np.max, pieces)),
            lambda: list(pool.map(np.bitwise_or.reduce, pieces)),
            lambda: column_max(on_device),
        ]
        return max(data.nbytes / best(reader, 6)[0] for reader in readers) / 1e9


def gemm_peak(size: int) -> float:
    """GFLOP/s of a float32 matrix product."""
    square = jnp.ones((size, size), jnp.float32)
    return 2 * size**3 / best(lambda: square @ square, 4)[0] / 1e9


def algorithm_1(labels: np.ndarray, selected: np.ndarray, classes: range) -> np.ndarray:
    """The paper's Algorithm 1, stage 2, as it is stated: one pair of labels after the other; (classes, 2) rates."""
    q = labels.shape[1]
    noisy = np.asfortranarray(labels == 1)
    found = np.zeros((len(classes), 2))
    for row, j in enumerate(classes):
        y_j, s_j = noisy[:, j], selected[:, j]
        candidates = []
        for i in range(q):
            if i == j:
                continue
            y_i = noisy[:, i]
            m_j, m_i, e = y_j.mean(), y_i.mean(), (y_j & y_i).mean()
            a, b = y_i[s_j & ~y_j].mean(), y_i[s_j & y_j].mean()
            if b == a:
                continue
            p, v = (m_i - a) / (b - a), (e - a * m_j) / (b - a)
            if 0 < p < 1:
                rates = np.array([(m_j - v) / (1 - p), 1 - v / p])
                rates[(rates < 0) & (rates > -0.3 / q)] = 0
                if (rates >= 0).all() and (rates <= 1).all() and rates.sum() < 1:
                    candidates.append(rates)
        if candidates:
            points = np.array(candidates)
            found[row] = points[np.abs(points[:, None] - points[None]).sum((1, 2)).argmin()]
    return found


def vectorised_numpy(labels: np.ndarray, selected: np.ndarray) -> np.ndarray:
    """The same for all classes: three BLAS products, then whole tables at once and a sort per class; (q, 2) rates."""
    n, q = labels.shape
    y, s = labels.astype(np.float32), selected.astype(np.float32)
    pos, neg = s * y, s * (1 - y)
    both, with_pos, with_neg = y.T @ y, pos.T @ y, neg.T @ y
    m = y.mean(0, dtype=np.float64)
    with np.errstate(all="ignore"):
        a, b = with_neg / neg.sum(0)[:, None], with_pos / pos.sum(0)[:, None]
        p = (m[None] - a) / (b - a)
        v = (both / n - a * m[:, None]) / (b - a)
        rates = np.stack([(m[:, None] - v) / (1 - p), 1 - v / p])
        rates = np.where((rates < 0) & (rates > -0.3 / q), 0, rates)
        valid = (p >= 0) & (p <= 1) & ((rates >= 0) & (rates <= 1)).all(0) & (rates.sum(0) < 1)
    np.fill_diagonal(valid, False)
    found = np.zeros((q, 2))
    for j in range(q):
        points = rates[:, j, valid[j]]
        if points.shape[1]:
            found[j] = points[:, (_sum_of_distances(points[0]) + _sum_of_distances(points[1])).argmin()]
    return found


def _sum_of_distances(x: np.ndarray) -> np.ndarray:
    order = np.argsort(x)
    ranked, place = x[order], np.arange(1, len(x) + 1)
    below = np.cumsum(ranked)
    out = np.empty_like(x)
    out[order] = ranked * (2 * place - len(x)) - 2 * below + below[-1]
    return out


def scipy_lists(labels: sp.csr_array, unselected: sp.csr_array) -> np.ndarray:
    """The joint rule on lists, plainly: a sparse product per list, a sparse matrix per inner product; (q, 2) rates.

    Rates outside [0, 1] are left so, and nothing is tested for significance.
    """
    n, q = labels.shape
    y, u = sp.csr_array(labels, dtype=float), sp.csr_array(unselected, dtype=float)
    wrong = y.multiply(u).tocsr()
    m = y.sum(0)
    weight = np.where((m > 0) & (m < n), n**2 / np.maximum(m * (n - m), 1), 0)
    scale = sp.diags_array(weight).tocsr()
    groups = [y - wrong, wrong, u - wrong]  # S+, U+, U-
    counts = []
    for group in groups:
        count = (group.T @ y).tocoo()
        count.data[count.row == count.col] = 0  # a class is not its own partner
        counts.append(count.tocsr())
    sizes = [group.sum(0) for group in groups]
    constant = ((weight * m**2).sum() - weight * m**2) / n**2
    linear = [count @ (weight * m) / n for count in counts]
    inner = np.zeros((q, 4, 4))
    for g in range(3):
        for h in range(3):
            product = counts[g].multiply(counts[h] @ scale).sum(1)
            inner[:, g, h] = product - sizes[g] * linear[h] - sizes[h] * linear[g] + sizes[g] * sizes[h] * constant
    inner[:, 3, :3] = inner[:, :3, 3] = -inner[:, :3, :3].sum(1)
    inner[:, 3, 3] = inner[:, :3, :3].sum((1, 2))
    size = np.stack([*sizes, n - sum(sizes)], axis=1)
    root = 1 / np.sqrt(np.maximum(size, 1))
    axis = np.linalg.eigh(inner * root[:, :, None] * root[:, None])[1][:, :, -1] * root
    with np.errstate(all="ignore"):
        theta = (axis[:, 1:3] - axis[:, 3:]) / (axis[:, :1] - axis[:, 3:])
        positives = size[:, 0] + (theta * size[:, 1:3]).sum(1)
        return np.stack([(1 - theta[:, 0]) * size[:, 1] / (n - positives), theta[:, 1] * size[:, 2] / positives], 1)


def sklearn_masks(losses: np.ndarray, labels: np.ndarray, classes: range, seed: int) -> np.ndarray:
    """Selection with scikit-learn's GaussianMixture, settings of the released code; (n, classes) bool."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    taken = np.ones((len(losses), len(classes)), bool)
    for k, j in enumerate(classes):
        for value in (0, 1):
            rows = np.flatnonzero(labels[:, j] == value)
            x = losses[rows, j]
            if len(rows) >= 10 and np.ptp(x) > 0:
                x = ((x - x.min()) / np.ptp(x))[:, None]
                model = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=seed)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)  # ten steps are what is asked for
                    model.fit(x)
                taken[rows, k] = model.predict_proba(x)[:, model.means_[:, 0].argmin()] > 0.5
    return taken


def solving(labels: Any, unselected: Any, config: Config, speed: float, name: str) -> Row:
    """Counting and solving of one sparse data set."""
    n, q = labels.shape
    y = labels.astype(np.int32)
    yardstick = best(lambda: (y.T @ y).toarray(), config.repeats)[0]
    counting, _, tables = best(lambda: count(labels, unselected=unselected), config.repeats)
    kernel, first, found = best(lambda: estimate_from_tables(tables, min_selected=5), 2 + config.repeats)
    reading = 12 * q * q / speed / 1e9
    row: Row = {"what": name, "n": n, "q": q, "counting": counting, "scipy_YtY": yardstick}
    row |= {"counting_to_scipy": counting / yardstick, "joint": kernel, "joint_compile": first - kernel}
    row |= {"joint_pairs_per_s": q * q / kernel, "reading": reading, "joint_to_reading": kernel / reading}
    if q <= config.medoid_up_to:
        medoid, first, _ = best(lambda: estimate_from_tables(tables, aggregate="medoid", min_selected=5), 3)
        row |= {"medoid": medoid, "medoid_compile": first - medoid, "medoid_pairs_per_s": q * q / medoid}
    del tables
    row["blocks"] = best(lambda: estimate_all(labels, unselected=unselected, min_selected=5), 2)[0]
    if q <= config.dense_up_to:
        y, s = labels.toarray().astype(np.uint8), ~unselected.toarray().astype(bool)
        row["counting_dense"] = best(lambda: count(y, s), 2)[0]
        row["counting_dense_gflops"] = 6 * n * q * q / row["counting_dense"] / 1e9
        y, s = y[:, : max(config.part, 100)], s[:, : max(config.part, 100)]
        pair = best(lambda: algorithm_1(y, s, range(2)), 1)[0] / (2 * (y.shape[1] - 1))
        row["algorithm_1_extrapolated"] = pair * q * (q - 1)
    return row | {"correlation": float((found.status == 0).mean()), "peak_gb": peak_gb()}


def listed(labels: Any, unselected: Any, config: Config, name: str) -> Row:
    """Labels to T of one sparse data set, as `estimate_all` does it, beside tables and plain lists."""
    n, q = labels.shape
    before = peak_gb()
    ours, first, found = best(lambda: estimate_all(labels, unselected=unselected), 1 + config.repeats)
    row: Row = {"what": name, "n": n, "q": q, "labels_to_T": ours, "compile": first - ours}
    row |= {"labels_gb": before, "peak_gb": peak_gb()}  # peaks of the others are at least ours: they come after it
    plain, _, theirs = best(lambda: scipy_lists(labels, unselected), config.repeats)
    row["scipy_lists_gb"] = peak_gb()
    row |= pair_loop(labels, unselected, ours)
    known = np.asarray(found.status) == Status.CORRELATION
    rates = np.stack([found.rho_neg, found.rho_pos], 1)[known]
    inside = (rates > 1e-3).all(1)  # at a bound theirs is outside
    row |= {"scipy_lists": plain, "to_scipy_lists": ours / plain, "correlation": float(known.mean())}
    if inside.any():
        row["off_scipy_lists"] = float(np.abs(rates - theirs[known])[inside].max())
    if q <= config.tables_up_to:

        def by_tables() -> Any:
            return estimate_from_tables(count(labels, unselected=unselected))

        tables, _, expected = best(by_tables, 1 + config.repeats)
        off = np.abs(np.asarray(expected.T) - np.asarray(found.T))[known].max(initial=0)
        same = float((np.asarray(found.status) == np.asarray(expected.status)).mean())
        row |= {"tables": tables, "to_tables": ours / tables, "off_tables": float(off), "same_status": same}
        row["tables_gb"] = peak_gb()
    if q <= config.peers_up_to:
        y, s = labels.toarray().astype(np.uint8), ~unselected.toarray().astype(bool)
        row["numpy"] = best(lambda: vectorised_numpy(y, s), config.repeats)[0]
        row |= {"to_numpy": ours / row["numpy"], "numpy_gb": peak_gb()}
    return row


def pair_loop(labels: Any, unselected: Any, ours: float) -> Row:
    """Algorithm 1 on a few pairs of the most frequent classes, extrapolated to all pairs."""
    q = labels.shape[1]
    most = np.argsort(-labels.sum(0), kind="stable")[:20]
    y, s = labels[:, most].toarray().astype(np.uint8), ~unselected[:, most].toarray().astype(bool)
    pair = best(lambda: algorithm_1(y, s, range(2)), 1)[0] / (2 * max(1, len(most) - 1))
    return {"algorithm_1_extrapolated": pair * q * (q - 1), "to_algorithm_1": ours / (pair * q * (q - 1))}


def dense(config: Config, n: int, q: int, density: float) -> Row:
    """Dense labels to T, beside vectorised NumPy and beside the same labels as sparse ones."""
    rng = np.random.default_rng(0)
    labels = (rng.random((n, q), np.float32) < density).astype(np.uint8)
    labels[:, 1::2] |= labels[:, : q - q % 2 : 2][:, : labels[:, 1::2].shape[1]]  # partners that say something
    selected = rng.random((n, q), np.float32) < 0.99
    ours, first, _ = best(lambda: estimate_all(labels, selected), 1 + config.repeats)
    row: Row = {"what": "dense", "n": n, "q": q, "density": density, "labels_to_T": ours, "compile": first - ours}
    if q <= config.numpy_up_to:
        row["numpy"] = best(lambda: vectorised_numpy(labels, selected), config.repeats)[0]
        row["to_numpy"] = ours / row["numpy"]
    cells = sp.csr_array(labels), sp.csr_array(~selected)
    sparse = best(lambda: estimate_all(cells[0], unselected=cells[1]), 1 + config.repeats)[0]
    return row | {"as_sparse": sparse, "to_sparse": ours / sparse, "peak_gb": peak_gb()}


def with_features(rng: np.random.Generator, n: int, d: int, q: int) -> Row:
    """Sparse labels and features to T by `estimate(labels, features=)`, once, compilation included.

    A fifth of the positives are missing; features are a random sum over an example's labels, with noise.
    """
    clean, cells = power_law(rng, n, q)
    labels = sp.csr_array(clean - clean.multiply(cells))
    labels.eliminate_zeros()
    features = (clean.astype(np.float32) @ rng.standard_normal((q, d), np.float32)).astype(np.float32)
    features += rng.standard_normal((n, d), np.float32)
    before, start = peak_gb(), time.process_time()
    seconds, _, found = best(lambda: estimate(labels, features=features), 1)
    row: Row = {"what": "features", "n": n, "d": d, "q": q, "features_to_T": seconds}
    row |= {"cpu_seconds": time.process_time() - start, "inputs_gb": before, "peak_gb": peak_gb()}
    known = np.isin(found.status, (Status.POSTERIOR, Status.COUNTED, Status.SHARED))
    return row | {"identified": float(known.mean())}


def from_losses(config: Config) -> Row:
    """COCO's size, from simulated losses to T, beside other implementations."""
    n, q = config.coco
    rng = np.random.default_rng(0)
    share = np.clip(rng.exponential(0.035, q), 0.003, 0.6)
    effect = rng.normal(size=(3, q))
    chance = share / (1 - share) * np.exp(rng.normal(size=(n, 3)) @ effect - 0.5 * (effect**2).sum(0))
    clean = rng.random((n, q)) < chance / (1 + chance)
    labels = np.asarray(corrupt(jax.random.key(0), clean.astype(np.uint8), transition(0.02, 0.2, q)))
    losses = np.where(labels == clean, rng.gamma(2, 0.12, (n, q)), rng.gamma(5, 0.4, (n, q))).astype(np.float32)
    selection, first, mask = best(lambda: select_clean(losses, labels), 1 + config.repeats)
    solve, solve_first, _ = best(lambda: estimate_all(labels, mask), 1 + config.repeats)
    medoid, _, ours = best(lambda: estimate_all(labels, mask, aggregate="medoid"), 1 + config.repeats)
    part, scale = range(min(config.part, q)), q / min(config.part, q)
    mixtures, _, one = best(lambda: sklearn_masks(losses, labels, part, 0), 1)
    other = sklearn_masks(losses, labels, part, 1)
    loop, _, theirs = best(lambda: algorithm_1(labels, mask, part), 1)
    arrays = best(lambda: vectorised_numpy(labels, mask), 2)[0]
    mixtures, loop = mixtures * scale, loop * scale
    off = np.abs(np.stack([ours.rho_neg, ours.rho_pos], 1)[: len(part)] - theirs)
    off = off[np.asarray(ours.status)[: len(part)] == Status.CORRELATION]
    row: Row = {"what": "from losses", "n": n, "q": q, "selection": selection, "selection_compile": first - selection}
    row |= {"solve": solve, "solve_compile": solve_first - solve, "solve_medoid": medoid, "total": selection + solve}
    row |= {"sklearn_extrapolated": mixtures, "algorithm_1_extrapolated": loop, "numpy": arrays}
    row |= {"selection_speedup": mixtures / selection, "solve_speedup": loop / solve, "numpy_speedup": arrays / solve}
    row |= {"numpy_to_medoid": arrays / medoid, "total_speedup": (mixtures + loop) / (selection + solve)}
    ours_part = mask[:, : len(part)]
    row |= {"agree_seeds": float((one == other).mean()), "agree_ours": float((one == ours_part).mean())}
    if len(off):  # classes that have a medoid at all
        row["medoid_is_algorithm_1s"] = float((off < 1e-3).all(1).mean())
    row["peak_gb"] = peak_gb()
    try:
        from cleanlab.count import compute_confident_joint
    except ImportError:
        return row | {"cleanlab": "not installed; pip install '.[bench]'"}
    probs = np.where(labels == 1, np.exp(-losses), 1 - np.exp(-losses)).clip(1e-6, 1 - 1e-6)
    pairs = [np.stack([1 - probs[:, j], probs[:, j]], 1) for j in part]
    joints = best(lambda: [compute_confident_joint(labels[:, j], p) for j, p in zip(part, pairs, strict=True)], 2)[0]
    return row | {"cleanlab_extrapolated": joints * scale, "cleanlab_to_solve": joints * scale / solve}


def real_labels(folder: Path, name: str) -> sp.csr_array | None:
    """One of the real sets, sparse; None where it is not in the folder."""
    if not (folder / f"{name}.npz").exists():
        return None
    with np.load(folder / f"{name}.npz", allow_pickle=False) as parts:
        if "train" in parts:  # COCO: bits
            return sp.csr_array(np.unpackbits(parts["train"], axis=1)[:, : len(parts["classes"])].astype(np.int8))
        csr = sp.csr_array((parts["data"], parts["indices"], parts["indptr"]), shape=parts["shape"])
        return (csr > 0).astype(np.int8)


def limits(config: Config) -> Row:
    """What the machine can do."""
    row: Row = {"what": "machine", "cores": os.cpu_count(), "cpu": processor(), "jax": jax.__version__}
    return row | {"gb_per_s": bandwidth(config.limits), "gemm_gflops": gemm_peak(int(config.limits**0.5) // 3)}


def processor() -> str:
    """The name of the CPU, where the system tells."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")] \
        if info.exists() else []  # fmt: skip
    return names[0] if names else platform.machine()


def jobs(config: Config, speed: float) -> dict[str, Callable[[], Row]]:
    """What to measure, by name, small before large; `speed` is that of the memory, GB/s."""
    rng = np.random.default_rng(0)
    found: dict[str, Callable[[], Row]] = {
        "machine": lambda: limits(config),
        "from losses": lambda: from_losses(config),
    }
    for n, q, density in config.dense:
        found[f"dense n={n} q={q}"] = lambda n=n, q=q, density=density: dense(config, n, q, density)  # type: ignore[misc]
    for name in SETS if config.data else ():

        def real(name: str = name, *, lists: bool) -> Row:
            labels = real_labels(config.data or Path(), name)
            if labels is None:
                return {"what": name, "left_out": f"not found in {config.data}"}
            if lists:
                return listed(labels, hidden(rng, labels), config, name)
            cells = sp.random_array(labels.shape, density=0.01, rng=rng, format="csr") != 0
            return solving(labels, cells, config, speed, name)

        found[f"{name}, lists"] = lambda real=real: real(lists=True)  # type: ignore[misc]
        found[name] = lambda real=real: real(lists=False)  # type: ignore[misc]
    for n, q in config.large:
        found[f"{LARGE} n={n} q={q}"] = lambda n=n, q=q: listed(*power_law(rng, n, q), config, LARGE)  # type: ignore[misc]
    for q in config.features:
        found[f"features n={config.features_of[0]} q={q}"] = lambda q=q: with_features(rng, *config.features_of, q)  # type: ignore[misc]
    sweep = [(n, min(config.sizes)) for n in config.examples[:-1]] + [(config.examples[-1], q) for q in config.sizes]
    for n, q in sweep:
        found[f"n={n} q={q}"] = lambda n=n, q=q: solving(  # type: ignore[misc]
            *simulated_labels(rng, n, q), config, speed, "simulated"
        )
    return found


def in_child(config: Config, name: str, speed: float) -> Row:
    """One row, measured in a process of its own."""
    job = json.dumps({"config": asdict(config), "name": name, "speed": speed}, default=str)
    done = subprocess.run([sys.executable, __file__, "row"], input=job, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{name}: failed with exit code {done.returncode}; its error is above")
    return json.loads(done.stdout.splitlines()[-1])


def child() -> None:
    """Measures the row that standard input names and prints it."""
    job = json.loads(sys.stdin.read())
    folder = job["config"]["data"]
    config = Config(**job["config"] | {"data": folder and Path(folder)})
    print(json.dumps(jobs(config, job["speed"])[job["name"]]()))


def series(rows: list[Row]) -> dict[str, list[tuple[int, float]]]:
    """Points (q, value) of each time, and of the memory, that is measured at several q with everything else alike."""
    most = max((row["n"] for row in rows if row["what"] == "simulated"), default=0)
    tables = [row for row in rows if row["what"] == "simulated" and row["n"] == most]
    large = [row for row in rows if row["what"] == LARGE]
    kinds = [*((k, tables) for k in ("counting", "joint", "medoid"))]
    times = ("labels_to_T", "scipy_lists", "tables", "numpy", "algorithm_1_extrapolated")
    kinds += [(k, large) for k in (*times, "peak_gb", "scipy_lists_gb", "tables_gb", "numpy_gb")]
    found = {kind: sorted((row["q"], row[kind]) for row in some if kind in row) for kind, some in kinds}
    return {kind: points for kind, points in found.items() if len(points) > 1}


def exponents(rows: list[Row]) -> dict[str, float]:
    """Growth of each time with q: the slope of its logarithm."""
    logs = {kind: np.log(np.array(points)) for kind, points in series(rows).items()}
    return {kind: float(np.polyfit(log[:, 0], log[:, 1], 1)[0]) for kind, log in logs.items()}


def plot(rows: list[Row], path: Path) -> None:
    """Log-log plots over q as SVG, seconds on the left and gigabytes on the right; the same rows give the same file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    names = {"labels_to_T": "estimate_all", "scipy_lists": "plain SciPy lists", "tables": "q x q tables"}
    names |= {"numpy": "vectorised NumPy", "algorithm_1_extrapolated": "Algorithm 1 (extrapolated)"}
    names |= {"peak_gb": "estimate_all", "scipy_lists_gb": "plain SciPy lists", "tables_gb": "q x q tables"}
    names |= {"numpy_gb": "vectorised NumPy"}
    slopes = exponents(rows)
    with mpl.rc_context({"svg.hashsalt": "mlt_jax", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        for axes, unit in zip(figure.subplots(1, 2), ("seconds", "peak GB"), strict=True):
            for kind, points in series(rows).items():
                if kind in names and kind.endswith("_gb") == (unit == "peak GB"):
                    axes.loglog(*np.array(points).T, "o-", ms=3, label=f"{names[kind]}: q^{slopes[kind]:.2f}")
            axes.set_xlabel("classes q")
            axes.set_ylabel(unit)
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend(frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


# What is wanted: (row, value, most, what it is).
BARS = (
    (f"{LARGE} n=490449 q=670091", "labels_to_T", 60, "670,091 classes, 490,449 examples: labels to T, s"),
    (f"{LARGE} n=490449 q=670091", "peak_gb", 8, "the same: peak memory, GB"),
    (f"{LARGE} n=196606 q=131073", "labels_to_T", 10, "131,073 classes, 196,606 examples: labels to T, s"),
    (f"{LARGE} n=100000 q=10000", "to_tables", 1 / 3, "10,000 classes, 100,000 examples: of the tables' time"),
    (f"{LARGE} n=100000 q=10000", "to_scipy_lists", 0.5, "the same: of plain SciPy lists' time"),
    ("eurlex4k_train_labels, lists", "off_tables", 1e-5, "EURLex: off the tables' T"),
    ("delicious_labels, lists", "off_tables", 1e-5, "Delicious: off the tables' T"),
    ("openimages214_labels, lists", "off_tables", 1e-5, "OpenImages: off the tables' T"),
    ("dense n=73872 q=80", "to_numpy", 0.7, "COCO's size, dense: of vectorised NumPy's time"),
    ("dense n=20000 q=2000", "to_numpy", 0.7, "20,000 x 2,000 dense: of vectorised NumPy's time"),
    ("dense n=100000 q=2500", "to_sparse", 1.5, "100,000 x 2,500 dense, nearly empty: of the sparse call's time"),
)
COLUMNS = (
    ("labels_to_T", "labels to T, s"), ("to_scipy_lists", "of SciPy lists' time"), ("to_tables", "of the tables'"),
    ("to_numpy", "of NumPy's"), ("to_algorithm_1", "of Algorithm 1's"), ("peak_gb", "peak GB"),
    ("off_tables", "off the tables' T"),
)  # fmt: skip


def markdown(rows: dict[str, Row]) -> str:
    """The machine, the rows of labels to T, and the wanted values beside the measured, ready for docs/benchmarks.md."""
    lines = []
    if machine := rows.get("machine"):
        speed = f"reads memory at {machine['gb_per_s']:.0f} GB/s, multiplies matrices at {machine['gemm_gflops']:.0f}"
        lines += [f"{machine['cores']} cores, {machine['cpu']}, JAX {machine['jax']}, float32; {speed} GFLOP/s.", ""]
    shown = {name: row for name, row in rows.items() if "labels_to_T" in row}
    if shown:
        lines += [f"| row | n | q | {' | '.join(title for _, title in COLUMNS)} |", "|---" * (3 + len(COLUMNS)) + "|"]
        for name, row in shown.items():
            cells = [f"{row[key]:.2g}" if key in row else "" for key, _ in COLUMNS]
            lines.append(f"| {name} | {row['n']:,} | {row['q']:,} | {' | '.join(cells)} |")
        lines.append("")
    bars = [(what, rows[name][key], most) for name, key, most, what in BARS if key in rows.get(name, {})]
    growth = exponents(list(rows.values())).get("labels_to_T")
    if growth is not None:
        bars.append(("growth of labels to T with q, n growing along: exponent", growth, 1.2))
    for name in ("eurlex4k_train_labels, lists", "delicious_labels, lists", "openimages214_labels, lists"):
        if "same_status" in rows.get(name, {}):
            bars.append((f"{name}: share of statuses unlike the tables'", 1 - rows[name]["same_status"], 0))
    if bars:
        lines += ["| what | measured | at most | |", "|---|---|---|---|"]
        lines += [
            f"| {what} | {value:.3g} | {most:.3g} | {'' if value <= most else 'missed'} |" for what, value, most in bars
        ]
    return "\n".join(lines) + "\n"


def main(config: Config) -> dict[str, Row]:
    """Measures what is asked for and not there yet, writes, prints; returns all rows by name."""
    config.out.mkdir(parents=True, exist_ok=True)
    path = config.out / "bench.json"
    rows: dict[str, Row] = json.loads(path.read_text())["rows"] if path.exists() else {}
    names = list(jobs(config, 1.0))
    asked = [name for name in names if any(fnmatch(name, pattern) for pattern in config.rows)]
    if config.rows and not asked:
        raise SystemExit(f"--rows: none is called {' or '.join(config.rows)}; there are {', '.join(names)}")
    todo = asked if config.rows else [name for name in names if name not in rows]
    if "machine" not in (*rows, *todo):
        todo.insert(0, "machine")
    try:
        bar = tqdm(todo, unit="row", disable=None)
        for name in bar:
            bar.set_description(name)
            rows[name] = in_child(config, name, rows.get("machine", {}).get("gb_per_s", 1.0))
            rows = {key: rows[key] for key in [*names, *rows] if key in rows}  # in the order of the jobs
            report = {"rows": rows, "exponents": exponents(list(rows.values()))}
            path.write_text(json.dumps(report, indent=1) + "\n")
    except KeyboardInterrupt:
        print(f"stopped; {len(rows)} finished rows are in {config.out}, run it again for the others")
    for name, row in rows.items():
        told = (f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
        print(f"{name}:  {'  '.join(told)}")
    slopes = exponents(list(rows.values()))
    print("growth with q:", "  ".join(f"{kind} {slope:.2f}" for kind, slope in slopes.items()))
    (config.out / "bench.md").write_text(markdown(rows))
    print("\n" + markdown(rows))
    if slopes:
        plot(list(rows.values()), config.figure or config.out / "growth.svg")
    return rows


if __name__ == "__main__":
    if sys.argv[1:] == ["row"]:
        child()
    else:
        main(tyro.cli(Config))
