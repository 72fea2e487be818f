"""Position information added to a sequence."""

import flax.linen as nn
import jax


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
