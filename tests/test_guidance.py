"""Guidance (XAIguiFormer's, R31): what explains the first pass, and what it does to the second."""

import dataclasses
import functools
import itertools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special

from msajax.config import Config, ModelConfig, OptimConfig, TrainConfig
from msajax.errors import UserError
from msajax.layers.basic import rows_of_batch
from msajax.layers.transformer import ModalityEncoder, TransformerBlock
from msajax.models import blank_sample, build_model, declared, parameter_shapes
from msajax.preparation.batches import Batch
from msajax.spec import CorpusSpec
from msajax.training.objective import make_objective
from msajax.training.optimizers import make_optimizer
from msajax.training.prng import dropout_key
from msajax.training.step import Recipe, begin, train_step

METHODS = ("gradient_x_input", "integrated_gradients", "deeplift")
NAMES, B, T, D = ("text", "audio"), 4, 3, 8
SPEC = CorpusSpec(NAMES, (6, 5), (T, T))
TEXT = CorpusSpec(("text",), (6,), (T,))
THREE_SCORES = dataclasses.replace(SPEC, label_names=("a", "b", "c"))
SMALL = ModelConfig(
    model_dim=D,
    num_heads=2,
    ff_dim=12,
    n_layers_mod=1,
    n_layers_fuse=0,
    dropout_rate=0.25,
    norm_eps=1e-2,
    guidance="gradient_x_input",
    guidance_steps=2,
)
RNG = np.random.default_rng(0)
MASKS = {m: RNG.random((B, T)) < 0.7 for m in NAMES}
MASKS["text"][:, 1] = True
MASKS["audio"][:, 0] = True
MASKS["audio"][0] = False  # a sample without audio
FEATURES = {m: RNG.normal(size=(B, T, SPEC.width(m))).astype(np.float32) for m in NAMES}
SEEN = np.tri(T, dtype=bool) | (RNG.random((B, T, T)) < 0.3)  # an attention mask
SEEN[1, 1] = False  # a step that sees nothing
DROPOUT = {"dropout": dropout_key(jnp.uint32(5), jnp.int32(0))}


def make(spec=TEXT, **settings):
    return build_model(dataclasses.replace(SMALL, **settings), spec)


def parameters(model):
    """Every weight, biases and scales included, is a random number."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), FEATURES, MASKS)["params"]
    random = np.random.default_rng(1)
    return jax.tree.map(lambda s: random.normal(size=s.shape).astype(np.float32) / 2, shapes)


def run(model, params, features=FEATURES, *, kept=False, **settings):
    """A prediction, and what a model keeps beside it if asked for."""
    apply = functools.partial(model.apply, mutable="intermediates" if kept else False, **settings)
    return jax.jit(lambda params, features: apply({"params": params}, features, MASKS))(
        params, features
    )


def explained(model, params, **settings):
    """The prediction, and the attributions `{modality: (E_0, …)}`."""
    prediction, kept = run(model, params, kept=True, **settings)
    return prediction, kept["intermediates"]["guides"][0]


# --- the same parameters ---


def test_a_guided_model_has_the_parameters_of_the_unguided_one():
    plain, guided = (
        jax.jit(make(guidance=g).init)(jax.random.key(3), *blank_sample(TEXT))
        for g in ("none", "gradient_x_input")
    )
    chex.assert_trees_all_equal(plain, guided)
    models = [make(SPEC, guidance=g, n_layers_fuse=1) for g in ("none", *METHODS)]
    trees = [jax.eval_shape(m.init, jax.random.key(3), *blank_sample(SPEC)) for m in models]
    assert all(tree == trees[0] for tree in trees)


# --- the first pass ---


@pytest.mark.parametrize("train", [False, True])
def test_the_coarse_score_is_that_of_the_unguided_model(train):
    settings = {"train": train, "rngs": DROPOUT if train else {}}
    plain, guided = (make(SPEC, guidance=g, n_layers_fuse=1) for g in ("none", METHODS[0]))
    params = parameters(plain)
    expected, got = run(plain, params, **settings), run(guided, params, **settings)
    assert (list(expected.aux), list(got.aux)) == ([], ["coarse_score"])
    np.testing.assert_allclose(got.aux["coarse_score"], expected.score, atol=1e-6)
    assert np.abs(got.score - got.aux["coarse_score"]).max() > 1e-3


def gradients_of_what_layers_read(model, params, **settings):
    """Every block's input, and the gradient of each sample's largest score with respect to it.

    By adding to the inputs, in one pass: another way than beginning with a layer.
    """
    apply = functools.partial(model.apply, {"params": params}, FEATURES, MASKS, **settings)

    def largest(extra):
        read = {}

        def add(call, args, kwargs, context):
            is_block = isinstance(context.module, TransformerBlock)
            if not is_block or context.method_name != "__call__":
                return call(*args, **kwargs)
            where = tuple(context.module.path)
            x = args[0] + extra.get(where, 0)
            read[where] = args[0]
            return call(x, x, *args[2:], **kwargs)

        with nn.intercept_methods(add):
            score = apply().score
        return score.max(-1).sum(), read

    _, read = jax.eval_shape(largest, {})
    nothing = {where: jnp.zeros(x.shape) for where, x in read.items()}
    gradient, read = jax.jit(jax.grad(largest, has_aux=True))(nothing)
    return read, gradient


@pytest.mark.parametrize("spec", [TEXT, THREE_SCORES], ids=["one score", "three scores"])
def test_every_layer_is_explained_by_its_own_input_for_the_largest_score(spec):
    settings = {"train": True, "rngs": DROPOUT, "attention_masks": {"text": SEEN}}
    plain = make(spec, guidance="none", n_layers_mod=2)
    params = parameters(plain)
    read, gradient = gradients_of_what_layers_read(plain, params, **settings)
    _, guides = explained(make(spec, n_layers_mod=2), params, **settings)
    assert {m: len(found) for m, found in guides.items()} == dict.fromkeys(spec.modalities, 2)
    for m, layer in itertools.product(spec.modalities, (0, 1)):
        where = (f"{m}_encoder", f"blocks_{layer}")
        expected = np.asarray(read[where] * gradient[where])
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(guides[m][layer], expected, atol=1e-6)


@pytest.mark.parametrize("guidance", METHODS[1:])
def test_attributions_of_a_layer_explain_its_part_of_the_score(guidance):
    model = make(SPEC, guidance=guidance, guidance_steps=64)
    params = parameters(model)
    prediction, guides = explained(model, params)
    plain = make(SPEC, guidance="none")
    zeros = {"text": (0, np.zeros((B, T, D), np.float32))}
    without_text = run(plain, params, begin=zeros).score
    change = np.asarray(prediction.aux["coarse_score"] - without_text)[:, 0]
    tolerance = 2e-6 if guidance == "deeplift" else 2e-2 * np.abs(change).max()
    np.testing.assert_allclose(guides["text"][0].sum((1, 2)), change, atol=tolerance)


@pytest.mark.parametrize("guidance", METHODS)
def test_padding_neither_enters_an_attribution_nor_gets_one(guidance):
    model = make(SPEC, guidance=guidance)
    params = parameters(model)
    filled = {m: np.where(MASKS[m][..., None], x, np.nan) for m, x in FEATURES.items()}
    prediction, guides = explained(model, params)
    other, other_guides = explained(model, params, features=filled)
    chex.assert_trees_all_equal((other, other_guides), (prediction, guides))
    for m in NAMES:
        assert np.isfinite(guides[m][0]).all()
        np.testing.assert_array_equal(np.asarray(guides[m][0])[~MASKS[m]], 0)
        assert (np.asarray(guides[m][0])[MASKS[m]] != 0).any()


# --- the second pass ---


def numpy_norm(params, x):
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + SMALL.norm_eps)
    return normal * params["scale"] + params["bias"]


def numpy_guided_block(p, x, guide, mask, norm_position):
    """A block in float64 whose queries and keys come from `guide`."""
    pre = norm_position == "pre"
    values = numpy_norm(p["norm_attention"], x) if pre else x
    attended = np.zeros(x.shape)
    for b, valid in enumerate(mask):
        if valid.any():
            attended[b] = p["attention"]["out"]["bias"]
        for h in range(SMALL.num_heads if valid.any() else 0):
            q, k, v = (
                source @ p["attention"][name]["kernel"][:, h] + p["attention"][name]["bias"][h]
                for name, source in (("query", guide[b]), ("key", guide[b]), ("value", values[b]))
            )
            scores = (q @ k.T / np.sqrt(D / SMALL.num_heads))[:, valid]
            weights = scipy.special.softmax(scores, axis=-1)
            attended[b] += weights @ v[valid] @ p["attention"]["out"]["kernel"][h]
    x = x + attended if pre else numpy_norm(p["norm_attention"], x + attended)
    inner = numpy_norm(p["norm_ffn"], x) if pre else x
    inner = inner @ p["ffn"]["inner"]["kernel"] + p["ffn"]["inner"]["bias"]
    inner = inner * scipy.special.ndtr(inner)
    x = x + inner @ p["ffn"]["outer"]["kernel"] + p["ffn"]["outer"]["bias"]
    return x if pre else numpy_norm(p["norm_ffn"], x)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_the_second_pass_takes_queries_and_keys_from_the_attributions(norm_position):
    model = make(norm_position=norm_position)
    params = parameters(model)
    prediction, kept = run(model, params, kept=True)
    kept = kept["intermediates"]
    p = jax.tree.map(np.float64, params["text_encoder"])
    x, out = kept["text_encoder"]["read"][0]  # of the second pass
    guide = np.float64(kept["guides"][0]["text"][0])
    expected = numpy_guided_block(
        p["blocks_0"], np.float64(x), guide, MASKS["text"], norm_position
    )
    np.testing.assert_allclose(out, expected, atol=5e-6)
    # What the head makes of the encoders' outputs is the refined score.
    begin = {"text": (1, out)}
    score = run(make(guidance="none", norm_position=norm_position), params, begin=begin).score
    np.testing.assert_allclose(prediction.score, score, atol=1e-6)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_guided_by_what_a_layer_reads_the_second_pass_is_the_first(norm_position):
    settings = {"train": True, "rngs": DROPOUT}
    model = make(norm_position=norm_position, n_layers_mod=2)
    params = parameters(model)
    first, kept = run(
        make(guidance="none", norm_position=norm_position, n_layers_mod=2),
        params,
        kept=True,
        **settings,
    )
    guides = kept["intermediates"]["text_encoder"]["read"][0][:-1]
    if norm_position == "pre":  # a guide is not normalised
        guides = [
            np.float32(numpy_norm(params["text_encoder"][f"blocks_{i}"]["norm_attention"], x))
            for i, x in enumerate(np.asarray(guides))
        ]
    second = run(model, params, guides={"text": guides}, **settings)
    np.testing.assert_allclose(second.score, first.score, atol=3e-6)


def test_both_passes_and_the_attributions_share_their_dropout_masks():
    settings = {"train": True, "rngs": DROPOUT}
    guided = make(guidance="deeplift")
    params = parameters(guided)
    prediction, guides = explained(guided, params, **settings)
    refined = run(make(guidance="none"), params, guides=guides, **settings).score
    np.testing.assert_allclose(prediction.score, refined, atol=1e-6)
    # A batch that is a part of a larger one draws that one's masks, in every pass.
    apply = functools.partial(guided.apply, **settings)

    @jax.jit
    def of_the_last_two(params):
        rows = [{m: x[2:] for m, x in arrays.items()} for arrays in (FEATURES, MASKS)]
        return apply({"params": params, **rows_of_batch(2, np.ones(2))}, *rows)

    part = of_the_last_two(params)
    np.testing.assert_allclose(part.score, prediction.score[2:], atol=2e-6)
    coarse = prediction.aux["coarse_score"]
    np.testing.assert_allclose(part.aux["coarse_score"], coarse[2:], atol=2e-6)


def test_an_attention_mask_acts_in_every_pass():
    plain, guided = (make(guidance=g) for g in ("none", "deeplift"))
    params = parameters(plain)
    added = np.where(SEEN, 0, -np.inf).astype(np.float32)
    prediction, guides = explained(guided, params, attention_masks={"text": SEEN})
    other = explained(guided, params, attention_masks={"text": added})
    chex.assert_trees_all_equal((prediction, guides), other)
    refined = [
        run(plain, params, guides=guides, **settings).score
        for settings in ({"attention_masks": {"text": SEEN}}, {})
    ]
    np.testing.assert_allclose(prediction.score, refined[0], atol=1e-6)
    assert np.abs(refined[1] - refined[0]).max() > 1e-3


def test_drofe_rotates_in_both_passes():
    plain, guided = (make(guidance=g, positions="drofe") for g in ("none", "gradient_x_input"))
    params = parameters(plain)
    older = {"text": FEATURES["text"] + np.float32([0, 0, 3, 0, 0, 0])}
    _, guides = explained(guided, params)
    for settings in ({}, {"guides": guides}):
        young, old = (run(plain, params, x, **settings).score for x in (FEATURES, older))
        assert np.abs(young - old).max() > 1e-4


# --- training ---


LABELS = np.random.default_rng(2).normal(size=(B, 1)).astype(np.float32)
BATCH = Batch(FEATURES, MASKS, LABELS, np.ones(B, np.float32), np.arange(B))


def training(model, loss):
    """A step on the batch, how a seed's training begins, and the loss of what a step measures."""
    config = Config(
        model=model.config, optim=OptimConfig(learning_rate=2e-2), train=TrainConfig(loss=loss)
    )
    declaration, paths = declared(model.config), parameter_shapes(model.config, model.spec)
    recipe = Recipe(
        module=model,
        model=declaration,
        optimizer=make_optimizer(config.optim, 30, paths),
        objective=make_objective(config, declaration, "regression"),
    )
    weights = np.float32([term.weight for term in recipe.objective.terms.values()])
    step = functools.partial(train_step, batch=BATCH, recipe=recipe)
    init = functools.partial(begin, memory={}, recipe=recipe, spec=model.spec)
    return step, init, lambda metrics: metrics.sums @ weights


def test_no_gradient_flows_through_the_attributions():
    model, plain = make(guidance="deeplift"), make(guidance="none")
    params = parameters(plain)
    _, guides = explained(model, params)

    def guided(params):
        prediction = model.apply({"params": params}, FEATURES, MASKS)
        return jnp.square(prediction.score).sum() + jnp.sin(prediction.aux["coarse_score"]).sum()

    def constant(params):
        refined = plain.apply({"params": params}, FEATURES, MASKS, guides=guides).score
        coarse = plain.apply({"params": params}, FEATURES, MASKS).score
        return jnp.square(refined).sum() + jnp.sin(coarse).sum()

    got, expected = (jax.jit(jax.grad(f))(params) for f in (guided, constant))
    chex.assert_trees_all_close(got, expected, atol=5e-6)
    assert np.abs(got["text_encoder"]["blocks_0"]["attention"]["query"]["kernel"]).max() > 1e-5


def test_the_loss_weighs_the_two_passes():
    model = make(guidance_weight=0.3)
    step, init, loss_of = training(model, "l1")
    state, metrics = jax.jit(lambda seed: (init(seed), step(init(seed))[1]))(jnp.uint32(4))
    rngs = {"dropout": dropout_key(jnp.uint32(4), jnp.int32(0))}

    def errors(params):
        prediction = run(model, params, train=True, rngs=rngs)
        scores = prediction.aux["coarse_score"], prediction.score
        return [jnp.abs(score - LABELS).sum() for score in scores]

    coarse, refined = map(float, errors(state.params))
    assert abs(coarse - refined) > 1e-3
    np.testing.assert_allclose(metrics.sums, [coarse, refined], rtol=1e-5)
    np.testing.assert_array_equal(metrics.weights, [B, B])
    assert float(loss_of(metrics)) == pytest.approx(0.7 * coarse + 0.3 * refined, rel=1e-5)
    loss = jax.jit(jax.grad(lambda p: np.array([0.7, 0.3]) / B @ jnp.stack(errors(p))))
    gradient = loss(state.params)
    assert float(metrics.grad_norm) == pytest.approx(float(optax.tree.norm(gradient)), rel=1e-5)


def test_seeds_train_one_after_another_and_the_loss_falls():
    model = make(guidance="deeplift", dropout_rate=0.1)
    step, init, loss_of = training(model, "mse")

    def train(seed):
        _, metrics = jax.lax.scan(lambda state, _: step(state), init(seed), length=30)
        return loss_of(metrics)

    losses = np.asarray(jax.jit(lambda seeds: jax.lax.map(train, seeds))(jnp.arange(2, dtype="u4")))
    assert np.isfinite(losses).all()
    assert (losses[:, -5:].mean(1) < 0.5 * losses[:, 0]).all()
    assert (losses[0] != losses[1]).all()


def test_seeds_under_vmap_are_those_one_after_another():
    model = make(guidance="deeplift")
    several = jax.tree.map(lambda p: np.stack([p, p / 2]), parameters(model))

    def predict(params):
        return model.apply({"params": params}, FEATURES, MASKS)

    together, in_turn = (
        jax.jit(over)(several)
        for over in (jax.vmap(predict), functools.partial(jax.lax.map, predict))
    )
    chex.assert_trees_all_close(together, in_turn, atol=2e-6)


def test_in_16_bits_scores_are_finite_and_gradients_too():
    model = make(guidance="deeplift", dtype="bfloat16")
    params = parameters(model)

    def total(params):
        prediction = model.apply({"params": params}, FEATURES, MASKS)
        return prediction.score.sum() + prediction.aux["coarse_score"].sum(), prediction

    gradient, prediction = jax.jit(jax.grad(total, has_aux=True))(params)
    chex.assert_tree_all_finite((gradient, prediction))
    assert prediction.score.dtype == prediction.aux["coarse_score"].dtype == jnp.float32


# --- refusals ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixer": "lstm"}, "a recurrent model.mixer has none"),
        ({"overrides": ("audio.mixer=gru",)}, "of 'audio': .*a recurrent model.mixer has none"),
        ({"n_layers_mod": 0}, "set model.n_layers_mod to 1 or more"),
        ({"overrides": ("audio.n_layers_mod=0",)}, "of 'audio': .*model.n_layers_mod to 1 or more"),
        ({"guidance": "shap"}, "model.guidance = 'shap': must be one of none, gradient_x_input"),
        ({"guidance_weight": 1.5}, "model.guidance_weight = 1.5: must lie in"),
        ({"guidance_steps": 0}, "model.guidance_steps = 0: must be 1 or more"),
    ],
)
def test_what_cannot_be_guided_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(SMALL, **settings)


def test_an_encoder_that_begins_after_its_last_layer_multiplies_no_matrices():
    encoder, x, mask = ModalityEncoder(SMALL, T), FEATURES["text"], MASKS["text"]
    read = np.zeros((B, T, D), np.float32)

    def run_from(layer):
        init = functools.partial(encoder.init, train=False)
        params = jax.eval_shape(init, jax.random.key(0), x, mask)
        apply = functools.partial(encoder.apply, train=False, begin=(layer, read))
        return str(jax.make_jaxpr(apply)(params, x, mask))

    assert "dot_general" in run_from(0) and "dot_general" not in run_from(1)
