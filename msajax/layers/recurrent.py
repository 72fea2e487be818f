"""Defines recurrent layers over sequences with padding anywhere (source 001, R20)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

CELLS = {"rnn": nn.SimpleCell, "gru": nn.GRUCell, "lstm": nn.OptimizedLSTMCell}


class MaskedCell(nn.Module):
    """Runs one step of a recurrent cell, and leaves its state as it is at a padded step."""

    kind: str
    units: int
    dtype: Any

    @nn.compact
    def __call__(self, carry: tuple, inputs: tuple[jax.Array, jax.Array]) -> tuple:
        """Maps ((state, output `[B, units]`), (x `[B, D]`, mask `[B]`)) to the next and output."""
        state, output = carry
        x, mask = inputs
        cell = CELLS[self.kind](self.units, dtype=self.dtype, name="cell")
        new = cell(state, x)
        state, output = jax.tree.map(
            lambda n, o: jnp.where(mask[:, None], n, o), new, (state, output)
        )
        return (state, output), output


class Recurrence(nn.Module):
    """Applies a recurrent layer; a padded step has the output of the last valid one before it.

    Attributes:
        kind: rnn (tanh), gru or lstm.
        both_directions: half of the units read forwards, half backwards.
    """

    kind: str
    both_directions: bool
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps `x` `[B, T, D]` under `mask` `[B, T]` to `[B, T, D]`; the state starts at 0."""
        x = x.astype(self.dtype)
        if not self.both_directions:
            return self._run(x, mask, x.shape[-1], "forward")
        half = x.shape[-1] // 2  # a stack keeps its width whatever its layers are
        there = self._run(x, mask, half, "forward")
        back = self._run(x[:, ::-1], mask[:, ::-1], half, "backward")[:, ::-1]
        return jnp.concatenate([there, back], axis=-1)

    def _run(self, x: jax.Array, mask: jax.Array, units: int, name: str) -> jax.Array:
        zero = jnp.zeros((x.shape[0], units), self.dtype)
        state = (zero, zero) if self.kind == "lstm" else zero
        scan = nn.scan(
            MaskedCell,
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=1,
            out_axes=1,
        )
        _, outputs = scan(self.kind, units, self.dtype, name=name)((state, zero), (x, mask))
        return outputs  # [batch, length, units]
