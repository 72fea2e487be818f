"""Position information added to a sequence."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np


class LearnedPositions(nn.Module):
    """A learned vector per time step (source 002).

    Attributes:
        max_len: rows of the table.
    """

    max_len: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Adds rows `[:T]` of the table to `x` `[B, T, D]`.

        Raises:
            ValueError: if T exceeds the table.
        """
        _, length, model_dim = x.shape
        if length > self.max_len:
            raise ValueError(
                f"a sequence of {length} steps is longer than its position table of "
                f"{self.max_len} rows ({'/'.join(self.path)}): raise model.max_len or truncate"
            )
        table = self.param(
            "embedding", nn.initializers.normal(0.02), (self.max_len, model_dim)
        )  # [max_len, model_dim]
        return x + table[:length].astype(x.dtype)


def sinusoids(length: int, model_dim: int) -> np.ndarray:
    """The sinusoidal table `[T, D]` of source 001, float32, for odd D too.

    `PE(p, 2i) = sin(p / 10000^(2i/D))` and `PE(p, 2i+1) = cos(p / 10000^(2i/D))`.
    """
    columns = np.arange(model_dim)
    angles = np.arange(length)[:, None] / 10000.0 ** (columns // 2 * 2 / model_dim)
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles)).astype(np.float32)


def add_sinusoids(x: jax.Array) -> jax.Array:
    """Adds the sinusoidal table to `x` `[B, T, D]`."""
    return x + jnp.asarray(sinusoids(*x.shape[1:]), x.dtype)
