"""Adds position information to a sequence, or rotates its queries and keys by it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from msajax.layers.platform import platform

_SHORT = 128  # steps; the matrix of a product for more would be large


class LearnedPositions(nn.Module):
    """Adds a learned vector per time step (source 002), at first of standard deviation `init`."""

    max_len: int
    init: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Adds rows `[:T]` of the table to `x` `[B, T, D]`; raises `ValueError` if T exceeds it."""
        _, length, model_dim = x.shape
        if length > self.max_len:
            raise ValueError(
                f"a sequence of {length} steps is longer than its position table of "
                f"{self.max_len} rows ({'/'.join(self.path)}): raise model.max_len or truncate"
            )
        table = self.param(
            "embedding", nn.initializers.normal(self.init), (self.max_len, model_dim)
        )  # [max_len, model_dim]
        rows = table[:length].astype(x.dtype)
        is_short = isinstance(length, int) and length <= _SHORT
        return _add_rows(x, rows) if is_short and platform() == "gpu" else x + rows


def _add_rows(x: jax.Array, rows: jax.Array) -> jax.Array:
    """Adds `[T, D]` to `[B, T, D]` by an exact product with `[B T, T]`.

    The gradient of a sum is one over the batch, for which XLA on GPUs lays all that is computed of
    `x` out with the batch last, and turns it again for every product: a step had 100 kernels more.
    """
    batch, length, _ = x.shape
    which = jnp.tile(jnp.eye(length, dtype=x.dtype), (batch, 1))
    return x + jnp.matmul(which, rows, precision="highest").reshape(x.shape)


def sinusoids(length: int, model_dim: int) -> np.ndarray:
    """Computes the sinusoidal table `[T, D]` of source 001, float32, for odd D too.

    `PE(p, 2i) = sin(p / 10000^(2i/D))` and `PE(p, 2i+1) = cos(p / 10000^(2i/D))`.
    """
    columns = np.arange(model_dim)
    angles = np.arange(length)[:, None] / 10000.0 ** (columns // 2 * 2 / model_dim)
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles)).astype(np.float32)


# Lo and hi of a band in Hz, age in years, gender (0 or 1), in this order. They are the first
# features of a step, so that a file needs no other array.
DROFE_FEATURES = 4


def drofe(demographics: jax.Array, head_dim: int, age_unit: float) -> tuple[jax.Array, jax.Array]:
    """Computes the factors of the demographic rotary frequency encoding (dRoFE), for `rotate`.

    It is that of XAIguiFormer (Guo et al., ICLR 2025), but for the unit of age, which is our own.
    With `theta = pi linspace(1, 5, head_dim / 4)`, the angles of a head are `lo theta_j,
    lo theta_j, hi theta_j, hi theta_j` for one j after another; then `C = age cos(angle) + gender`
    and `S = age sin(angle) + gender`.

    Args:
        demographics: `[B, T, 4]`: each step's band edges lo and hi in Hz, age in years, gender.
        head_dim: size of a head, a multiple of 4.
        age_unit: years that count as 1.

    Returns:
        C and S, each `[B, T, head_dim]` float32; 0 for a step of zeros.
    """
    x = demographics.astype(jnp.float32)
    edges, age, gender = x[:, :, None, :2], x[..., 2:3] / age_unit, x[..., 3:4]
    # linspace(1, 5, n) = (n - 1 + 4 j) / (n - 1). Products of whole numbers are exact, and so are
    # the full turns taken off them: a float of hundreds of radians would lack the last digits.
    steps = max(head_dim // 4 - 1, 1)
    multiples = jnp.asarray(steps + 4 * np.arange(head_dim // 4)[:, None], jnp.float32)
    whole = jnp.floor(edges)
    half_turns = jnp.fmod(whole * multiples, 2 * steps) + (edges - whole) * multiples
    angles = half_turns.reshape(*x.shape[:2], -1) * (np.pi / steps)  # [batch, length, head_dim / 2]
    angles = jnp.repeat(angles, 2, axis=-1)
    return age * jnp.cos(angles) + gender, age * jnp.sin(angles) + gender


def rotate(x: jax.Array, factors: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotates queries or keys `[B, T, H, head_dim]` to `x C + rot(x) S`, computed in float32.

    The factors C and S are `[B, T, head_dim]`; rot maps each pair (x1, x2) to (-x2, x1).
    """
    cosine, sine = (f[:, :, None] for f in factors)  # [batch, length, 1, head_dim]
    wide = x.astype(jnp.float32)
    pairs = wide.reshape(*x.shape[:-1], -1, 2)
    turned = jnp.stack([-pairs[..., 1], pairs[..., 0]], axis=-1).reshape(x.shape)
    return (wide * cosine + turned * sine).astype(x.dtype)
