"""The order of cross-modal fusion, and what it leaves alone."""

import dataclasses
import functools

import chex
import jax
import numpy as np
from layer_formulas import random_params

from msajax.config import ModelConfig
from msajax.layers.transformer import AnchoredFusion, TransformerBlock

# The alphabetical order differs from this one, and the anchor is not the first.
NAMES, ANCHOR = ("voice", "text", "face"), "text"
LENGTHS = {"voice": 3, "text": 4, "face": 3}
B, D = 2, 8
CONFIG = ModelConfig(model_dim=D, num_heads=2, ff_dim=8, n_layers_fuse=1, dropout_rate=0.0)
RNG = np.random.default_rng(0)
SEQUENCES = {m: RNG.normal(size=(B, LENGTHS[m], D)).astype(np.float32) for m in NAMES}
MASKS = {m: RNG.random((B, LENGTHS[m])) < 0.7 for m in NAMES}


def build(**settings):
    module = AnchoredFusion(dataclasses.replace(CONFIG, **settings), NAMES, ANCHOR)
    return module, random_params(module.init, SEQUENCES, MASKS, train=False)


@functools.cache
def run(bidirectional, layers=1):
    module, params = build(bidirectional_fusion=bidirectional, n_layers_fuse=layers)
    apply = jax.jit(functools.partial(module.apply, train=False))
    return apply({"params": params}, SEQUENCES, MASKS), params


@jax.jit
def cross_block(params, query, context, mask):
    block = TransformerBlock(CONFIG)
    return block.apply({"params": params}, query, context, (mask,), train=False)


def by_hand(order):
    """Two layers of fusion, block after block: each reads what those before it wrote."""
    state = dict(SEQUENCES)
    for layer in range(2):
        for query, context in order:
            params = run(True, 2)[1][f"layers_{layer}"][f"{query}_from_{context}"]
            state[query] = cross_block(params, state[query], state[context], MASKS[context])
    return state


ORDER = [("text", "voice"), ("text", "face"), ("voice", "text"), ("face", "text")]


def test_anchor_attends_in_modality_order_and_the_others_then_to_the_updated_anchor():
    fused, params = run(True, 2)
    assert {*params} == {"layers_0", "layers_1"}
    for layer in params.values():  # every direction has weights of its own
        assert {*layer} == {f"{query}_from_{context}" for query, context in ORDER}
    chex.assert_trees_all_close(fused, by_hand(ORDER), atol=2e-6, rtol=0)
    # Another order is another result: the check above can tell.
    for wrong in ([ORDER[1], ORDER[0], *ORDER[2:]], [*ORDER[2:], *ORDER[:2]]):
        assert np.abs(by_hand(wrong)["voice"] - fused["voice"]).max() > 1e-2


def test_unidirectional_fusion_changes_the_anchor_alone():
    fused, params = run(False)
    assert {*params["layers_0"]} == {"text_from_voice", "text_from_face"}
    for m in ("voice", "face"):
        np.testing.assert_array_equal(fused[m], SEQUENCES[m])
    assert np.abs(fused["text"] - SEQUENCES["text"]).max() > 0.1


def test_no_fusion_layer_changes_nothing_and_has_no_weights():
    module, params = build(n_layers_fuse=0, bidirectional_fusion=True)
    assert params == {}
    chex.assert_trees_all_equal(module.apply({}, SEQUENCES, MASKS, train=False), SEQUENCES)


def test_fusion_masks_the_context_alone():
    params = run(True, 2)[1]["layers_0"]["text_from_voice"]
    text, voice, mask = SEQUENCES["text"], SEQUENCES["voice"], MASKS["voice"]
    assert not mask.all() and not MASKS["text"].all()
    expected = cross_block(params, text, voice, mask)
    noise = np.where(mask[..., None], voice, 1e3).astype(np.float32)
    np.testing.assert_array_equal(cross_block(params, text, noise, mask), expected)
    # Padded query rows are computed like the others, to be pooled away later.
    fused = run(True, 2)[0]["text"]
    assert np.abs(np.asarray(fused)[~MASKS["text"]]).min() > 0
