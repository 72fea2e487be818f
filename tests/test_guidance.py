"""Guidance (XAIguiFormer's, R31): what explains the first pass, and what it does to the second."""

import dataclasses
import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from layer_formulas import attention, dense, gelu, layer_norm
from tiny import rates_of

from msajax.config import Config, ModelConfig, OptimConfig, TrainConfig
from msajax.errors import UserError
from msajax.layers.basic import rows_of_batch
from msajax.layers.prng import dropout_key
from msajax.layers.transformer import ModalityEncoder, TransformerBlock
from msajax.models.build import build_model, declared, parameter_shapes
from msajax.models.contract import blank_sample
from msajax.preparation.batches import Batch
from msajax.spec import CorpusSpec
from msajax.training.objective import make_objective
from msajax.training.optimizers import make_optimizer
from msajax.training.step import Recipe, begin, train_step

METHODS = ("gradient_x_input", "integrated_gradients", "deeplift")
NAMES, B, T, D = ("text", "audio"), 4, 3, 8
SPEC = CorpusSpec(NAMES, (6, 5), (T, T))
TEXT = CorpusSpec(("text",), (6,), (T,))
SMALL = ModelConfig(
    model_dim=D,
    num_heads=2,
    ff_dim=12,
    n_layers_mod=1,
    n_layers_fuse=0,
    dropout_rate=0.25,
    norm_eps=1e-2,
    attention_dropout=0.0,
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


@functools.partial(jax.jit, static_argnames=("model", "kept", "train", "layer"))
def compiled(model, kept, train, layer, params, features, read, **more):
    """One program for each model and shape of what it is given, whichever test asks for it."""
    if layer is not None:
        more["begin"] = {"text": (layer, read)}
    mutable = "intermediates" if kept else False
    return model.apply({"params": params}, features, MASKS, train=train, mutable=mutable, **more)


def run(
    model, params, features=FEATURES, *, kept=False, train=False, layer=None, read=None, **more
):
    """A prediction, and what a model keeps beside it if asked for; of text from a layer on."""
    return compiled(model, kept, train, layer, params, features, read, **more)


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
    models = [make(guidance=g) for g in ("none", *METHODS)]
    trees = [jax.eval_shape(m.init, jax.random.key(3), *blank_sample(TEXT)) for m in models]
    assert all(tree == trees[0] for tree in trees)


# --- the first pass ---


def gradients_of_what_layers_read(model, params, **settings):
    """What every layer of an encoder reads, and the gradient of each sample's largest score there.

    By adding to the inputs, in one pass: another way than beginning with a layer.
    """
    apply = functools.partial(model.apply, {"params": params}, FEATURES, MASKS, **settings)

    def largest(extra):
        read = {}

        def add(call, args, kwargs, context):
            where = tuple(context.module.path)
            if not isinstance(context.module, TransformerBlock) or where[0] == "fusion":
                return call(*args, **kwargs)
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


@pytest.mark.parametrize("spec", [TEXT, SPEC], ids=["two layers in training", "fusion"])
def test_every_layer_is_explained_by_its_own_input_for_the_largest_score(spec):
    in_training = {"train": True, "rngs": DROPOUT, "attention_masks": {"text": SEEN}}
    settings = in_training if spec is TEXT else {}
    spec = dataclasses.replace(spec, label_names=("a", "b", "c"))
    depth = {"text": 2} if len(spec.modalities) == 1 else {"text": 1, "audio": 1}
    layers = {"n_layers_mod": depth["text"], "n_layers_fuse": len(depth) - 1}
    plain, guided = (make(spec, guidance=g, **layers) for g in ("none", METHODS[0]))
    params = parameters(plain)
    read, gradient = gradients_of_what_layers_read(plain, params, **settings)
    _, guides = explained(guided, params, **settings)
    assert {m: len(found) for m, found in guides.items()} == depth
    for m in depth:
        for layer in range(depth[m]):
            where = (f"{m}_encoder", f"blocks_{layer}")
            expected = np.asarray(read[where] * gradient[where])
            assert np.abs(expected).max() > 1e-3
            np.testing.assert_allclose(guides[m][layer], expected, atol=1e-6)


@pytest.mark.parametrize("guidance", METHODS)
def test_attributions_explain_their_layers_part_of_the_score_and_padding_has_none(guidance):
    model = make(SPEC, guidance=guidance, guidance_steps=64)
    params = parameters(model)
    prediction, guides = explained(model, params)
    plain = make(SPEC, guidance="none")
    coarse = prediction.aux["coarse_score"]
    np.testing.assert_allclose(coarse, run(plain, params).score, atol=1e-6)
    if guidance != "gradient_x_input":  # which adds up to nothing
        zeros = np.zeros((B, T, D), np.float32)
        without_text = run(plain, params, layer=0, read=zeros).score
        change = np.asarray(coarse - without_text)[:, 0]
        tolerance = 2e-6 if guidance == "deeplift" else 2e-2 * np.abs(change).max()
        np.testing.assert_allclose(guides["text"][0].sum((1, 2)), change, atol=tolerance)
    filled = {m: np.where(MASKS[m][..., None], x, np.nan) for m, x in FEATURES.items()}
    other, other_guides = explained(model, params, features=filled)
    chex.assert_trees_all_equal((other, other_guides), (prediction, guides))
    for m in NAMES:
        assert np.isfinite(guides[m][0]).all()
        np.testing.assert_array_equal(np.asarray(guides[m][0])[~MASKS[m]], 0)
        assert (np.asarray(guides[m][0])[MASKS[m]] != 0).any()


# --- the second pass ---


def numpy_guided_block(p, x, guide, mask, norm_position):
    """A block in float64 whose queries and keys come from `guide`."""
    pre, norm = norm_position == "pre", functools.partial(layer_norm, eps=SMALL.norm_eps)
    values = norm(p["norm_attention"], x) if pre else x
    attended = attention(p["attention"], guide, guide, values, mask)
    x = x + attended if pre else norm(p["norm_attention"], x + attended)
    inner = norm(p["norm_ffn"], x) if pre else x
    x = x + dense(p["ffn"]["outer"], gelu(dense(p["ffn"]["inner"], inner)))
    return x if pre else norm(p["norm_ffn"], x)


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
    plain = make(guidance="none", norm_position=norm_position)
    score = run(plain, params, layer=1, read=out).score
    np.testing.assert_allclose(prediction.score, score, atol=1e-6)


def test_guided_by_what_a_layer_reads_the_second_pass_is_the_first():
    settings = {"train": True, "rngs": DROPOUT}
    model = make(n_layers_mod=2)
    params = parameters(model)
    first, kept = run(make(guidance="none", n_layers_mod=2), params, kept=True, **settings)
    guides = kept["intermediates"]["text_encoder"]["read"][0][:-1]
    second = run(model, params, guides={"text": guides}, **settings)
    np.testing.assert_allclose(second.score, first.score, atol=3e-6)


def test_both_passes_and_the_attributions_share_their_dropout_masks():
    settings = {"train": True, "rngs": DROPOUT}
    guided = make()
    params = parameters(guided)
    prediction, guides = explained(guided, params, **settings)
    refined = run(make(guidance="none"), params, guides=guides, **settings).score
    np.testing.assert_allclose(prediction.score, refined, atol=1e-6)
    first, coarse = run(make(guidance="none"), params, **settings), prediction.aux["coarse_score"]
    assert (list(first.aux), list(prediction.aux)) == ([], ["coarse_score"])
    np.testing.assert_allclose(coarse, first.score, atol=1e-6)
    assert np.abs(prediction.score - coarse).max() > 1e-3
    # A batch that is a part of a larger one draws that one's masks, in every pass.
    @jax.jit
    def of_the_last_two(params):
        rows = [{m: x[2:] for m, x in arrays.items()} for arrays in (FEATURES, MASKS)]
        return guided.apply({"params": params, **rows_of_batch(2, np.ones(2))}, *rows, **settings)

    part = of_the_last_two(params)
    np.testing.assert_allclose(part.score, prediction.score[2:], atol=2e-6)
    np.testing.assert_allclose(part.aux["coarse_score"], coarse[2:], atol=2e-6)


def test_an_attention_mask_acts_in_every_pass():
    plain, guided = (make(guidance=g) for g in ("none", METHODS[0]))
    params = parameters(plain)
    added = np.where(SEEN, 0, -np.inf).astype(np.float32)
    of_masks = [{"attention_masks": {"text": mask}} for mask in (SEEN, added)]  # as constants
    prediction, guides = jax.jit(lambda p: explained(guided, p, **of_masks[0]))(params)
    other = jax.jit(lambda p: explained(guided, p, **of_masks[1]))(params)
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
        optimizer=make_optimizer(config.optim, paths),
        objective=make_objective(config, declaration, "regression"),
    )
    weights = np.float32([term.weight for term in recipe.objective.terms.values()])
    rates = rates_of(recipe, 30, config)
    step = functools.partial(train_step, batch=BATCH, recipe=recipe, rates=rates)
    init = functools.partial(begin, memory={}, recipe=recipe, spec=model.spec)
    return step, init, lambda metrics: metrics.sums @ weights


def test_no_gradient_flows_through_the_attributions():
    model, plain = make(), make(guidance="none")
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


def test_the_loss_weighs_the_two_passes_and_falls_for_seeds_one_after_another():
    model = make(guidance_weight=0.3, dropout_rate=0.0)
    step, init, loss_of = training(model, "mse")

    def train(seed):
        state = init(seed)
        _, metrics = jax.lax.scan(lambda state, _: step(state), state, length=30)
        return state.params, metrics

    begun, metrics = jax.jit(lambda seeds: jax.lax.map(train, seeds))(np.arange(2, dtype="u4"))
    losses = np.asarray(loss_of(metrics))
    assert np.isfinite(losses).all()
    assert (losses[:, -5:].mean(1) < 0.5 * losses[:, 0]).all()
    assert (losses[0] != losses[1]).all()

    def errors(params):
        prediction = model.apply({"params": params}, FEATURES, MASKS)
        scores = prediction.aux["coarse_score"], prediction.score
        sums = jnp.stack([jnp.square(score - LABELS).sum() for score in scores])
        return np.array([0.7, 0.3]) @ sums / B, sums

    of_seed_1 = jax.tree.map(lambda x: x[1], begun)
    gradient, sums = jax.jit(jax.grad(errors, has_aux=True))(of_seed_1)
    coarse, refined = map(float, sums)
    assert abs(coarse - refined) > 1e-3
    np.testing.assert_allclose(metrics.sums[1, 0], [coarse, refined], rtol=1e-5)
    np.testing.assert_array_equal(metrics.weights[1, 0], [B, B])
    assert losses[1, 0] == pytest.approx(0.7 * coarse + 0.3 * refined, rel=1e-5)
    norm = float(optax.tree.norm(gradient))
    assert float(metrics.grad_norm[1, 0]) == pytest.approx(norm, rel=1e-5)


def test_seeds_under_vmap_are_those_one_after_another():
    model, plain = make(guidance="deeplift"), make(guidance="none")
    several = [parameters(plain), jax.tree.map(lambda p: p / 2, parameters(plain))]
    stacked = jax.tree.map(lambda *p: np.stack(p), *several)
    together = jax.jit(jax.vmap(lambda params: explained(model, params)))(stacked)
    in_turn = [explained(model, params) for params in several]
    chex.assert_trees_all_close(together, jax.tree.map(lambda *x: np.stack(x), *in_turn), atol=2e-6)


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
