"""Token embeddings, causal encoders and the next-token model against numpy, and nothing leaks."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import descent, rates_of

from msajax.config import Config, ModelConfig
from msajax.errors import UserError
from msajax.layers.basic import TokenEmbedding
from msajax.layers.transformer import ModalityEncoder, make_embedding
from msajax.models.build import build_model, declared
from msajax.models.contract import blank_sample
from msajax.preparation.batches import Batch, row_numbers
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS
from msajax.training.objective import make_objective
from msajax.training.state import TrainState
from msajax.training.step import Recipe, train_step

V, T, D = 11, 6, 8  # V is no other size of these models
SMALL = {
    "model_dim": D, "num_heads": 2, "ff_dim": 12, "n_layers_mod": 1, "dropout_rate": 0.0,
}
DECODER = {**SMALL, "name": "next_token", "causal": True}
NAMES = TASKS["next_token"].own_names
next_tokens = TASKS["next_token"].targets_from
TOKENS = CorpusSpec(("text",), (0,), (T,), "next_token", NAMES, (V,))
ENCODERS = {
    "post-norm, learned": {},
    "pre-norm, sinusoidal": {"norm_position": "pre", "positions": "sinusoidal"},
    "post-norm, sinusoidal": {"positions": "sinusoidal", "n_layers_mod": 2},
    "rnn": {"mixer": "rnn"},
    "gru": {"mixer": "gru"},
    "lstm": {"mixer": "lstm", "n_layers_mod": 2},
}
# Padding behind, inside, in front, everywhere, and a hole after every step.
MASK = np.array(
    [
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 1, 1, 1],
        [0, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 0, 0],
        [1, 0, 1, 0, 1, 0],
        [1, 1, 1, 1, 1, 1],
    ],
    bool,
)
IDS = np.random.default_rng(0).integers(0, V, MASK.shape)


def parameters_of(model, spec: CorpusSpec, seed: int = 0):
    """Random parameters, biases and scales as well, so that no zero hides a mistake."""
    params = jax.eval_shape(model.init, jax.random.key(0), *blank_sample(spec))["params"]
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        is_scale = path[-1].key == "scale"
        return np.float32(is_scale + 0.4 * rng.normal(size=leaf.shape))

    return jax.tree_util.tree_map_with_path(draw, params)


@functools.cache
def decoder(name: str = "post-norm, learned"):
    """A model, its parameters and a compiled function from ids and mask to score and logits."""
    model = build_model(ModelConfig(**{**DECODER, **ENCODERS[name]}), TOKENS)
    params = parameters_of(model, TOKENS)

    @jax.jit
    def run(params, ids, mask):
        found, kept = model.apply(
            {"params": params}, {"text": ids}, {"text": mask}, mutable="intermediates"
        )
        (logits,) = kept["intermediates"]["logits"]
        return found.score, logits, found.modality_weights

    return model, params, run


def shapes(params) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(p, simple=True, separator="/"): x.shape for p, x in leaves}


# --- the embedding ---


def test_scaled_embeddings_are_multiplied_by_the_root_of_their_width_where_they_are_read():
    _, params, _ = decoder()
    outputs = {}
    for scale in ("none", "sqrt_dim"):
        config = ModelConfig(**DECODER, embedding_scale=scale)
        layer = make_embedding(config, V, "x")
        bound = {"params": {"embedding": params["text_embedding"]["embedding"]}}
        outputs[scale] = layer.apply(bound, IDS)
        projected = layer.apply(bound, outputs["none"], method="attend")
        table = np.asarray(bound["params"]["embedding"])
        np.testing.assert_allclose(projected, outputs["none"] @ table.T, atol=1e-5)
    np.testing.assert_allclose(outputs["sqrt_dim"], outputs["none"] * D**0.5, rtol=1e-6)


def test_embeddings_begin_with_length_1():
    table = TokenEmbedding(3000, 16, jnp.float32).init(jax.random.key(0), IDS)["params"]
    lengths = np.linalg.norm(table["embedding"], axis=1)
    assert np.square(lengths).mean() == pytest.approx(1, abs=0.02)
    assert abs(np.asarray(table["embedding"]).mean()) < 0.005


def test_16_bits_are_for_the_vectors_and_not_for_the_table_or_the_projection():
    layer = TokenEmbedding(V, 4, jnp.bfloat16)
    params = layer.init(jax.random.key(0), IDS)
    assert params["params"]["embedding"].dtype == jnp.float32
    vectors = layer.apply(params, IDS)
    assert vectors.dtype == jnp.bfloat16
    assert layer.apply(params, vectors, method="attend").dtype == jnp.float32


# --- the tied projection ---


def test_logits_are_the_encoders_output_times_the_embedding_transposed():
    model, params, _ = decoder()
    apply = functools.partial(model.apply, capture_intermediates=True, mutable="intermediates")
    _, kept = jax.jit(apply)({"params": params}, {"text": IDS}, {"text": MASK})
    (hidden,) = kept["intermediates"]["text_encoder"]["__call__"]
    table = np.float64(params["text_embedding"]["embedding"])
    expected = np.einsum("btd,vd->btv", np.float64(hidden), table)
    (logits,) = kept["intermediates"]["logits"]
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, expected, atol=2e-5)
    assert np.abs(expected).max() > 1


def test_the_embedding_is_the_only_parameter_that_knows_the_vocabulary():
    for name in ENCODERS:
        _, params, _ = decoder(name)
        found = {path: shape for path, shape in shapes(params).items() if V in shape}
        assert found == {"text_embedding/embedding": (V, D)}
        assert {path.split("/")[0] for path in shapes(params)} == {"text_embedding", "text_encoder"}


def test_the_gradient_reaches_the_embedding_from_both_of_its_uses():
    model, params, _ = decoder()
    table, mask = params["text_embedding"]["embedding"], jnp.asarray(MASK)
    encoder = ModalityEncoder(model.config, T, project=False)

    @jax.jit
    @jax.grad
    def of_model(table):
        tied = params | {"text_embedding": {"embedding": table}}
        return model.apply({"params": tied}, {"text": IDS}, {"text": MASK}).score[:, 0].sum()

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1))
    def of_uses(read, projected):
        variables = {"params": params["text_encoder"]}
        hidden = encoder.apply(variables, read[IDS], mask, train=False)
        log_p = jax.nn.log_softmax(hidden[:, :-1] @ projected.T)
        chosen = (log_p * jax.nn.one_hot(IDS[:, 1:], V)).sum(-1)
        return -(chosen * (mask[:, :-1] & mask[:, 1:])).sum()

    reading, projecting = of_uses(table, table)
    assert np.abs(reading).max() > 0.1 and np.abs(projecting).max() > 0.1
    expected = np.asarray(reading) + np.asarray(projecting)
    np.testing.assert_allclose(of_model(table), expected, atol=3e-5)


# --- the score ---


def numpy_score(logits: np.ndarray, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Nats and number of the predicted tokens, one at a time."""
    score = np.zeros((len(ids), 2))
    for b in range(len(ids)):
        for t in range(ids.shape[1] - 1):
            if mask[b, t] and mask[b, t + 1]:
                z = np.float64(logits[b, t])
                score[b, 0] += np.log(np.exp(z - z.max()).sum()) + z.max() - z[ids[b, t + 1]]
                score[b, 1] += 1
    return score


@pytest.mark.parametrize("name", ENCODERS)
def test_the_score_is_the_negative_log_likelihood_of_tokens_that_follow_a_valid_step(name):
    _, params, run = decoder(name)
    score, logits, weights = run(params, IDS, MASK)
    expected = numpy_score(logits, IDS, MASK)
    np.testing.assert_array_equal(expected[:, 1], [3, 3, 4, 0, 0, 5])
    np.testing.assert_allclose(score, expected, rtol=2e-6, atol=1e-5)
    np.testing.assert_array_equal(weights[:, 0], MASK.any(axis=1))
    assert score.dtype == jnp.float32 and np.isfinite(logits).all()


# --- nothing leaks ---


@pytest.mark.parametrize("name", ENCODERS)
def test_a_later_token_changes_no_bit_of_an_earlier_logit(name):
    _, params, run = decoder(name)
    logits = np.asarray(run(params, IDS, MASK)[1])
    for t in range(T):
        ids, mask = IDS.copy(), MASK.copy()
        ids[:, t] = (ids[:, t] + 1 + t) % V
        changed = np.asarray(run(params, ids, MASK)[1])
        np.testing.assert_array_equal(changed[:, :t], logits[:, :t])
        valid = MASK[:, t]
        differs = (changed != logits).any(axis=2)  # [batch, length]
        assert differs[valid, t].all()
        assert not differs[~valid].any(), "the content of padding was read"
        mask[:, t] ^= True
        np.testing.assert_array_equal(np.asarray(run(params, IDS, mask)[1])[:, :t], logits[:, :t])


def test_a_decoder_sees_what_its_attention_mask_leaves():
    """The step itself and the one before it."""
    model, params, _ = decoder()
    window = np.tri(T, dtype=bool) & ~np.tri(T, k=-2, dtype=bool)

    @jax.jit
    def logits(ids, window):
        _, kept = model.apply(
            {"params": params},
            {"text": ids},
            {"text": MASK},
            attention_masks={"text": window},
            mutable="intermediates",
        )
        return kept["intermediates"]["logits"][0]

    before = np.asarray(logits(IDS, window))
    additive = np.where(window, 0, -1e9).astype(np.float32)
    np.testing.assert_array_equal(logits(IDS, additive), before)
    for t in range(T):
        ids = IDS.copy()
        ids[:, t] = (ids[:, t] + 1 + t) % V
        differs = (np.asarray(logits(ids, window)) != before).any(axis=2)  # [batch, length]
        assert differs[MASK[:, t], t : t + 2].all()
        assert not np.delete(differs, slice(t, t + 2), axis=1).any()


# --- training ---


def a_batch(row_weight, order=slice(None)) -> Batch:
    ids, mask = IDS[order], MASK[order]
    labels = next_tokens(ids, mask).astype(np.float32)
    weight, rows = np.array(row_weight, np.float32), len(ids)
    numbers = row_numbers(np.arange(rows), weight, rows)
    return Batch({"text": ids}, {"text": mask}, labels, weight, numbers)


@functools.cache
def a_step(parts: int):
    """A state, and a compiled step that subtracts the gradient."""
    module, params, _ = decoder()
    model = declared(module.config)
    recipe = Recipe(
        module=module,
        model=model,
        optimizer=descent(1.0, shapes(params)),
        objective=make_objective(Config(model=module.config), model, "next_token"),
        accumulation_steps=parts,
    )
    zero = np.int32(0)
    state = TrainState(
        seed=np.uint32(0),
        step=zero,
        params=params,
        collections={},
        opt_state=recipe.optimizer.init(params),
        average={},
        memory={},
        learning_rate_scale=np.float32(1),
        skipped_in_a_row=zero,
    )
    return state, jax.jit(functools.partial(train_step, recipe=recipe, rates=rates_of(recipe)))


@functools.cache
def mean_over_tokens():
    model, _, _ = decoder()

    def mean(params, weights):
        score = model.apply({"params": params}, {"text": IDS}, {"text": MASK}).score
        return (score[:, 0] * weights).sum() / (score[:, 1] * weights).sum()

    return jax.jit(jax.value_and_grad(mean))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("weights", [[1, 1, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1]])
def test_the_loss_is_the_mean_over_the_tokens_of_a_batch(weights, parts):
    state, step = a_step(parts)
    after, log = jax.device_get(step(state, a_batch(weights)))
    loss, gradient = mean_over_tokens()(state.params, np.array(weights, np.float32))
    gradient = jax.device_get(gradient)
    tokens = np.dot(weights, [3, 3, 4, 0, 0, 5])
    assert log.weights.tolist() == [tokens]
    assert log.sums.tolist() == pytest.approx([float(loss) * tokens], rel=1e-6)
    moved = jax.tree.map(lambda before, new: before - new, state.params, after.params)
    chex.assert_trees_all_close(moved, gradient, atol=2e-6)
    norm = np.sqrt(sum(np.square(np.float64(g)).sum() for g in jax.tree.leaves(gradient)))
    assert float(log.grad_norm) == pytest.approx(norm, rel=1e-5)


def test_a_batch_without_a_token_to_predict_changes_nothing():
    state, step = a_step(1)
    after, log = step(state, a_batch([1] * 6, [3, 4, 3, 4, 3, 4]))
    chex.assert_trees_all_equal(after.params, state.params)
    assert float(log.sums[0]) == float(log.weights[0]) == float(log.grad_norm) == 0


# --- what can be built ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"causal": False}, "model.causal = False: must be on for model.name = next_token"),
        ({"embedding_dim": 4}, "model.embedding_dim = 4: .*'next_token' does not read it"),
        ({"guidance": "deeplift"}, "'next_token' does not read it, but model.model_dim, "),
        ({"mixer": "gru", "both_directions": True}, "both_directions = True: contradicts"),
        ({"mixer": "gru", "overrides": ("text.both_directions=true",)},
         "overrides of 'text': model.both_directions = True: contradicts model.causal"),
    ],
)
def test_settings_that_do_not_suit_a_decoder_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        build_model(ModelConfig(**{**DECODER, **settings}), TOKENS)


@pytest.mark.parametrize(
    "spec",
    [
        CorpusSpec(("text",), (3,), (T,), "next_token", NAMES),
        CorpusSpec(("text", "audio"), (0, 3), (T, T), "next_token", NAMES, (V, 0)),
        CorpusSpec(("text", "phones"), (0, 0), (T, T), "next_token", NAMES, (V, V)),
    ],
)
def test_a_decoder_of_anything_but_one_modality_of_tokens_is_refused(spec):
    expected = f"needs one modality of token ids, not {', '.join(spec.modalities)}: set"
    with pytest.raises(UserError, match=expected):
        build_model(ModelConfig(**DECODER), spec)


def test_inputs_that_are_no_tokens_are_refused():
    model, params, _ = decoder()
    for ids in (IDS.astype(np.float32), np.zeros((*IDS.shape, 1), int)):
        with pytest.raises(ValueError, match=r"token ids of 'text' .* expected integers \(6, T\)"):
            model.apply({"params": params}, {"text": ids}, {"text": MASK})


# --- tokens in the model family ---


@pytest.mark.parametrize("embedding_dim", [0, 5])
def test_a_model_of_tokens_is_the_model_of_their_embeddings(embedding_dim):
    width = embedding_dim or D
    config = ModelConfig(**SMALL, embedding_dim=embedding_dim)
    of_tokens = CorpusSpec(("text", "audio"), (0, 2), (T, T), vocabularies=(V, 0))
    model = build_model(config, of_tokens)
    params = parameters_of(model, of_tokens)
    found = shapes(params)
    assert found["text_embedding/embedding"] == (V, width)
    projection = {p: s for p, s in found.items() if p.startswith("text_encoder/projection/")}
    assert projection == (
        {"text_encoder/projection/kernel": (5, D), "text_encoder/projection/bias": (D,)}
        if embedding_dim
        else {}
    )
    audio = np.random.default_rng(3).normal(size=(*MASK.shape, 2)).astype(np.float32)
    masks = {"text": MASK, "audio": MASK[::-1]}
    inputs = {"text": IDS, "audio": audio}
    scores = jax.jit(model.apply)({"params": params}, inputs, masks).score

    # The same parameters in a model of features; without a projection it gets the identity.
    table = params.pop("text_embedding")["embedding"]
    if not embedding_dim:
        params["text_encoder"]["projection"] = {"kernel": np.eye(D, dtype=np.float32)}
        params["text_encoder"]["projection"]["bias"] = np.zeros(D, np.float32)
    of_features = CorpusSpec(("text", "audio"), (width, 2), (T, T))
    twin = build_model(ModelConfig(**SMALL), of_features)
    inputs["text"] = table[IDS]
    expected = jax.jit(twin.apply)({"params": params}, inputs, masks).score
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    assert np.ptp(expected) > 0.1
