"""The Transformer block, and where it drops out in training."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layer_formulas import attention, dense, gelu, layer_norm, random_params

from msajax.config import ModelConfig
from msajax.layers.basic import Dropout
from msajax.layers.transformer import TransformerBlock

B, D, TQ, TK = 3, 8, 4, 6
CONFIG = ModelConfig(
    model_dim=D, num_heads=2, ff_dim=12, n_layers_mod=0, dropout_rate=0.25, norm_eps=1e-2
)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, TQ, D)).astype(np.float32)
CONTEXT = RNG.normal(size=(B, TK, D)).astype(np.float32)
CONTEXT_MASK = np.array([[0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]], bool)
BLOCK = TransformerBlock(CONFIG)
BLOCK_PARAMS = random_params(BLOCK.init, X, CONTEXT, (CONTEXT_MASK,), train=False)
SITES = ("probabilities", "attention output", "inner", "output")


def numpy_block(x, context, mask, dropped=None):
    """The block in float64; what one dropout site lets through can be replaced by zeros."""
    p = jax.tree.map(np.float64, BLOCK_PARAMS)

    def site(name, value):
        return 0 * value if name == dropped else value

    weights = functools.partial(site, "probabilities")
    attended = attention(p["attention"], x, context, context, mask, weights)
    x = layer_norm(p["norm_attention"], x + site("attention output", attended), CONFIG.norm_eps)
    inner = site("inner", gelu(dense(p["ffn"]["inner"], x)))
    outer = site("output", dense(p["ffn"]["outer"], inner))
    return layer_norm(p["norm_ffn"], x + outer, CONFIG.norm_eps)


def dropout_calls(module, *arguments, replace=None):
    """Runs a module with train on; lists its dropout sites as (path, rate, shape).

    The site number `replace` gives zeros, the others are left out.
    """
    calls = []

    def record(call, args, kwargs, context):
        if not isinstance(context.module, Dropout) or context.method_name != "__call__":
            return call(*args, **kwargs)
        assert kwargs["train"]
        calls.append(("/".join(context.module.path), context.module.rate, args[0].shape))
        return jnp.zeros_like(args[0]) if len(calls) - 1 == replace else args[0]

    with nn.intercept_methods(record):
        out = jax.jit(functools.partial(module.apply, train=True))(*arguments)
    return calls, out


@pytest.mark.parametrize("site", [None, *range(4)], ids=("none", *SITES))
def test_a_post_norm_block_has_its_four_dropout_sites_where_the_specification_says(site):
    calls, out = dropout_calls(
        BLOCK, {"params": BLOCK_PARAMS}, X, CONTEXT, (CONTEXT_MASK,), replace=site
    )
    shapes = [(B, CONFIG.num_heads, TQ, TK), (B, TQ, D), (B, TQ, CONFIG.ff_dim), (B, TQ, D)]
    assert [call[1:] for call in calls] == [(CONFIG.dropout_rate, shape) for shape in shapes]
    dropped = None if site is None else SITES[site]
    expected = numpy_block(X, CONTEXT, CONTEXT_MASK, dropped=dropped)
    chex.assert_trees_all_close(out, expected, atol=3e-6, rtol=0)
