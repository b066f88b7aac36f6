"""What the networks compute: convolution, batch norm, pooling; `how` picks one of two implementations of each.

`how="lax"` leaves everything to XLA, which is right on GPU and TPU. `how="matmul"` writes what XLA's CPU backend is
slow at as matrix products and slices.
"""

from collections.abc import Sequence
from functools import partial, reduce

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

EPS, MOMENTUM = 1e-5, 0.1
# Numbers per image up to which patches and one product beat XLA's convolution on a CPU (2.4 times in `small`).
UNROLLED = 50_000
# Classes up to which a head's gradient is summed by class (q, d), not by feature: a step in a third of the time.
FEW = 64
# Channels from which on Winograd's sums cost a CPU less than the multiplications they save (1.2 to 1.7 times faster).
TRANSFORMED = 128
# Of maps, kernel and product, for 2x2 outputs of a 3x3 kernel (Lavin and Gray 2016, F(2x2, 3x3)).
WINOGRAD = (
    ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    ((1, 1, 1, 0), (0, 1, -1, -1)),
)
_DIMS = ("NHWC", "HWIO", "NHWC")


def _wide(x: Array) -> Array:
    """x with at least the precision of float32, in which sums are taken."""
    return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


def conv(
    x: Float[Array, "b h w c"], kernel: Float[Array, "k k c d"], *, stride: int, how: str
) -> Float[Array, "b i j d"]:
    """Convolution of x, padded by half a kernel on every side; `how` is "lax" or "matmul"."""
    rows, columns = (-(-side // stride) for side in x.shape[1:3])
    if how == "matmul" and (len(kernel) == 1 or rows * columns * kernel[..., 0].size <= UNROLLED):
        patches = _patches(x, len(kernel), stride, rows, columns)
        return _pointwise(patches, kernel.reshape(-1, kernel.shape[-1]))
    if how == "matmul" and len(kernel) == 3 and stride == 1 and kernel.shape[2] >= TRANSFORMED and x.dtype.itemsize > 2:
        return winograd(x, kernel, WINOGRAD)
    return _conv(x, kernel, stride)


def _patches(x: Array, size: int, stride: int, rows: int, columns: int) -> Array:
    """What the kernel sees at each place, (b, rows, columns, size * size * c)."""
    pad = size // 2
    padded = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    last = (stride * (rows - 1) + 1, stride * (columns - 1) + 1)
    return jnp.concatenate(
        [padded[:, r : r + last[0] : stride, c : c + last[1] : stride] for r in range(size) for c in range(size)], -1
    )


@jax.custom_vjp
def _pointwise(x: Float[Array, "b h w c"], kernel: Float[Array, "c d"]) -> Float[Array, "b h w d"]:
    return x @ kernel


def _pointwise_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ kernel, (x, kernel)


def _pointwise_backward(kept: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, kernel = kept
    # Left to itself, XLA computes g twice, once transposed for the kernel's product: a fifth of the train step.
    rows = lax.optimization_barrier(g.reshape(-1, g.shape[-1]))
    dx = lax.dot_general(rows, kernel, (((1,), (1,)), ((), ())))
    columns = x.reshape(-1, x.shape[-1])
    if kernel.shape[0] <= kernel.shape[1]:
        return dx.reshape(x.shape), lax.dot_general(columns, rows, (((0,), (0,)), ((), ())))
    # A product with longer rows is faster on a CPU: up to 1.45 times.
    return dx.reshape(x.shape), _turned(rows, columns)


_pointwise.defvjp(_pointwise_forward, _pointwise_backward)


def _turned(g: Float[Array, "n d"], x: Float[Array, "n c"]) -> Float[Array, "c d"]:
    """x.T @ g, computed as g.T @ x, whose rows are longer; without the barrier XLA would swap them back."""
    return lax.optimization_barrier(lax.dot_general(g, x, (((0,), (0,)), ((), ())))).T


def _conv(x: Array, kernel: Array, stride: int) -> Array:
    pad = len(kernel) // 2
    return lax.conv_general_dilated(x, kernel, (stride, stride), [(pad, pad)] * 2, dimension_numbers=_DIMS)


def winograd(
    x: Float[Array, "b h w c"], kernel: Float[Array, "3 3 c d"], matrices: Sequence
) -> Float[Array, "b h w d"]:
    """3x3 of stride 1 by tiles of m x m outputs: (m + 2)^2 products in place of 9 m^2, of sums of the maps.

    Args:
      matrices: of maps (m + 2, m + 2), kernel (m + 2, 3) and product (m, m + 2), such as `WINOGRAD`.
    """
    of_maps, of_kernel, of_product = matrices
    (b, h, w, c), m, side = x.shape, len(of_product), len(of_maps)
    i, j = -(-h // m), -(-w // m)
    padded = jnp.pad(x, ((0, 0), (1, 1 + i * m - h), (1, 1 + j * m - w), (0, 0)))
    rows = _mixed(of_maps, [padded[:, r : r + m * (i - 1) + 1 : m] for r in range(side)])
    tiles = [_mixed(of_maps, [row[:, :, s : s + m * (j - 1) + 1 : m] for s in range(side)]) for row in rows]
    maps = jnp.stack([tile for row in tiles for tile in row]).reshape(side * side, b * i * j, c)
    turned = [_mixed(of_kernel, [column[s] for s in range(3)]) for column in _mixed(of_kernel, list(kernel))]
    product = lax.dot_general(maps, jnp.stack([one for row in turned for one in row]), (((2,), (1,)), ((0,), (0,))))
    cells = product.reshape(side, side, b, i, j, -1)
    columns = (_mixed(of_product, list(cells[:, s])) for s in range(side))
    outputs = [_mixed(of_product, list(row)) for row in zip(*columns, strict=True)]
    whole = jnp.stack([jnp.stack(row) for row in outputs])  # (m, m, b, i, j, d)
    return whole.transpose(2, 3, 0, 4, 1, 5).reshape(b, i * m, j * m, -1)[:, :h, :w]


def _mixed(matrix: Sequence, parts: Sequence[Array]) -> list[Array]:
    """Each row of the matrix as a sum of the parts; zeros cost nothing."""
    rows = []
    for row in matrix:
        terms = [part if factor == 1 else factor * part for factor, part in zip(row, parts, strict=True) if factor]
        rows.append(reduce(jnp.add, terms))
    return rows


def normalize(
    x: Float[Array, "b h w c"],
    shortcut: Float[Array, "b h w c"] | None,
    mean: Float[Array, "c"],
    var: Float[Array, "c"],
    scale: Float[Array, "c"],
    bias: Float[Array, "c"],
    *,
    relu: bool,
) -> Float[Array, "b h w c"]:
    """`relu((x - mean) / sqrt(var + eps) * scale + bias + shortcut)`, in the dtype of x."""
    factor = scale * lax.rsqrt(var + EPS)
    y = _wide(x) * factor[None, None, None] + (bias - mean * factor)[None, None, None]
    y = y if shortcut is None else y + _wide(shortcut)
    return (jnp.maximum(y, 0) if relu else y).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def batch_norm(
    x: Float[Array, "b h w c"],
    shortcut: Float[Array, "b h w c"] | None,
    scale: Float[Array, "c"],
    bias: Float[Array, "c"],
    relu: bool,
    axis_name: str | None,
) -> tuple[Float[Array, "b h w c"], Float[Array, "c"], Float[Array, "c"]]:
    """(maps, mean, variance): `normalize` with the (biased) statistics of the batch, which have no gradient.

    The gradient is written out: two sums per channel, then one pass. Under a mapped `axis_name`, all sums go over it.
    """
    return _batch_norm_forward(x, shortcut, scale, bias, relu, axis_name)[0]


def _mean(x: Array, axis_name: str | None) -> Array:
    mean = jnp.mean(x, (0, 1, 2))
    return lax.pmean(mean, axis_name) if axis_name else mean


def _batch_norm_forward(
    x: Array, shortcut: Array | None, scale: Array, bias: Array, relu: bool, axis_name: str | None
) -> tuple[tuple[Array, Array, Array], tuple]:
    wide = _wide(x)
    mean = _mean(wide, axis_name)
    var = jnp.maximum(_mean(wide * wide, axis_name) - mean * mean, 0)
    y = normalize(x, shortcut, mean, var, scale, bias, relu=relu)
    return (y, mean, var), (x, y if relu else None, mean, var, scale, None if shortcut is None else ())


def _batch_norm_backward(relu: bool, axis_name: str | None, kept: tuple, gradients: tuple) -> tuple:
    x, y, mean, var, scale, shortcut = kept
    dy = gradients[0]
    if relu:
        dy = jnp.where(y > 0, dy, jnp.zeros((), dy.dtype))
    wide, g = _wide(x), _wide(dy)
    inverse = lax.rsqrt(var + EPS)
    count = x.size // x.shape[-1]
    mean_g = jnp.mean(g, (0, 1, 2))
    mean_gx = (jnp.mean(g * wide, (0, 1, 2)) - mean * mean_g) * inverse
    dscale, dbias = count * mean_gx, count * mean_g
    if axis_name:
        mean_g, mean_gx = lax.pmean((mean_g, mean_gx), axis_name)
    # dx = factor * (g - mean_g - normalised x * mean_gx), as three coefficients per channel
    factor = scale * inverse
    slope = -factor * mean_gx * inverse
    offset = -factor * mean_g - slope * mean
    dx = g * factor[None, None, None] + wide * slope[None, None, None] + offset[None, None, None]
    return dx.astype(x.dtype), None if shortcut is None else dy, dscale, dbias


batch_norm.defvjp(_batch_norm_forward, _batch_norm_backward)


def max_pool(x: Float[Array, "b h w c"], *, how: str) -> Float[Array, "b i j c"]:
    """Maximum over 3x3 windows, stride 2, padding 1; the gradient goes to the first maximum of a window."""
    if how == "matmul":
        return _max_of_slices(x)
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), [(0, 0), (1, 1), (1, 1), (0, 0)])


@jax.custom_vjp
def _max_of_slices(x: Float[Array, "b h w c"]) -> Float[Array, "b i j c"]:
    return reduce(jnp.maximum, _windows(x))


def _windows(x: Array) -> list[Array]:
    """The nine strided slices of padded x, in the order of a window's rows."""
    rows, columns = ((side + 1) // 2 for side in x.shape[1:3])
    padded = jnp.pad(x, ((0, 0), (1, 2), (1, 2), (0, 0)), constant_values=-jnp.inf)
    return [padded[:, r : r + 2 * rows : 2, c : c + 2 * columns : 2] for r in range(3) for c in range(3)]


def _max_forward(x: Array) -> tuple[Array, tuple[Array, Array]]:
    windows = _windows(x)
    y, first = windows[0], jnp.zeros(windows[0].shape, jnp.int8)
    for place, window in enumerate(windows[1:], 1):
        y, first = jnp.maximum(y, window), jnp.where(window > y, jnp.int8(place), first)
    return y, (first, x)


def _max_backward(kept: tuple[Array, Array], g: Array) -> tuple[Array]:
    first, x = kept
    share = [jnp.where(first == place, g, jnp.zeros((), g.dtype)) for place in range(9)]

    def at(place: int, row: int, column: int) -> Array:
        """Share of window (i + row, j + column) for its own place."""
        shifted = jnp.pad(share[place], ((0, 0), (0, row), (0, column), (0, 0)))
        return shifted[:, row:, column:]

    # Padded row 2i+1 (x row 2i) is the middle of window i; row 2i+2 (x row 2i+1) ends window i and starts window i+1.
    even = jnp.stack([share[4], share[5] + at(3, 0, 1)], 3)
    odd = jnp.stack([share[7] + at(1, 1, 0), share[8] + at(6, 0, 1) + at(2, 1, 0) + at(0, 1, 1)], 3)
    b, i, j, c = g.shape
    return (jnp.stack([even, odd], 2).reshape(b, 2 * i, 2 * j, c)[:, : x.shape[1], : x.shape[2]],)


_max_of_slices.defvjp(_max_forward, _max_backward)


def mean_pool(x: Float[Array, "b h w c"]) -> Float[Array, "b c"]:
    """Mean over positions, at least float32."""
    return jnp.mean(_wide(x), (1, 2))


def linear(x: Float[Array, "b d"], kernel: Float[Array, "d q"]) -> Float[Array, "b q"]:
    """x @ kernel."""
    return _few_columns(x, kernel) if kernel.shape[1] < FEW else x @ kernel


@jax.custom_vjp
def _few_columns(x: Array, kernel: Array) -> Array:
    return x @ kernel


def _few_columns_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ kernel, (x, kernel)


def _few_columns_backward(kept: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, kernel = kept
    return g @ kernel.T, _turned(g, x)


_few_columns.defvjp(_few_columns_forward, _few_columns_backward)


def pooled(x: Float[Array, "b *positions d"]) -> Float[Array, "b d"]:
    """Features as they are, maps averaged over positions; at least float32."""
    return mean_pool(x) if x.ndim == 4 else _wide(x)


def positions(x: Float[Array, "b h w d"]) -> Float[Array, "b p d"]:
    """Maps as one row per position, at least float32."""
    if x.ndim != 4:
        raise ValueError(f"inputs: shape {x.shape}; pass maps (b, h, w, d): this head attends to positions")
    return _wide(x).reshape(len(x), -1, x.shape[-1])
