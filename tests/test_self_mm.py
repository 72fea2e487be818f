"""Self-MM: labels of single modalities over epochs, over devices, and after a stop."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import rates_of
from toys import recipe_of, steps

from msajax.config import Config, ModelConfig, OptimConfig
from msajax.errors import UserError
from msajax.models.build import build_model
from msajax.models.peers.common import text_vector
from msajax.models.peers.settings import SelfMmSettings
from msajax.preparation.batches import Batch
from msajax.spec import CorpusSpec
from msajax.training.step import begin, train_step

ALL = ("text", "audio")
SPEC = CorpusSpec(ALL, (4, 3), (3, 4))
SIZES = dict(audio_lstm=3, audio_out=3, post_fusion=5, post_text=4, post_audio=3)
NO_DROPOUT = {"text_dropout": 0.0, "audio_dropout": 0.0}
N, LACKS = 12, 5  # samples, and the one without audio
LABELS = np.linspace(-2, 2, N + 1)[:-1, None].astype("f4")  # the seventh is 0


def config_of(**own) -> Config:
    return Config(
        model=ModelConfig(name="self_mm", own=SelfMmSettings(**SIZES | NO_DROPOUT, **own)),
        optim=OptimConfig(learning_rate=0.02, schedule="constant"),
    )


def batches_of(epochs: int, size: int = 4) -> list[Batch]:
    """Every sample once an epoch, in another order; the last batch has a row that only fills it."""
    rng = np.random.default_rng(0)
    x, masks = {}, {}
    for m in ALL:
        length, width = SPEC.length(m), SPEC.width(m)
        x[m] = rng.normal(size=(N, length, width)).astype("f4")
        masks[m] = np.arange(length) < rng.integers(1, length + 1, (N, 1))
    masks["audio"][LACKS] = False
    found = []
    for _ in range(epochs):
        for rows in np.array_split(rng.permutation(N), 4):
            rows = np.append(rows, N)[:size]  # N stands for no sample
            at = np.minimum(rows, N - 1)
            found.append(
                Batch(
                    {m: jnp.asarray(v[at]) for m, v in x.items()},
                    {m: jnp.asarray(v[at]) for m, v in masks.items()},
                    jnp.asarray(LABELS[at]),
                    jnp.float32(rows < N),
                    jnp.int32(rows),
                )
            )
    return found


def rendered(states, batches, per_epoch: int, module, own) -> dict[str, np.ndarray]:
    """What must be remembered in the end, by the formulas in float64."""
    y = np.float64(LABELS[:, 0])
    label = {m: y.copy() for m in ("", *ALL)}
    bank = {m: np.zeros((N, 5 if m == "" else getattr(own, f"post_{m}"))) for m in label}
    seen = {m: np.zeros(N, bool) for m in label}

    def lead(m, x):
        positive = label[m] >= 0 if own.zero_is_positive else label[m] > 0
        to = [np.linalg.norm(x - bank[m][seen[m] & c].mean(0)) for c in (positive, label[m] < 0)]
        return (to[1] - to[0]) / (to[0] + 1e-8)

    apply = jax.jit(module.apply)
    for number, (state, batch) in enumerate(zip(states[:-1], batches, strict=True)):
        aux = apply({"params": state.params}, batch.features, batch.masks).aux
        n = number // per_epoch + 1
        new = []
        for k, row in enumerate(np.asarray(batch.row)):
            x = {m: np.float64(aux[f"feature_{m}" if m else "feature"][k]) for m in label}
            for m in label:
                if row == N or (m == "audio" and row == LACKS):
                    continue
                moved = label[m][row]
                if n > 1 and m:
                    mine, all_of_them = lead(m, x[m]), lead("", x[""])
                    ratio = mine / (all_of_them + 1e-8)
                    candidate = 0.5 * ratio * y[row] + 0.5 * (y[row] + mine - all_of_them)
                    candidate = np.clip(candidate, -own.label_range, own.label_range)
                    moved = (n - 1) / (n + 1) * moved + 2 / (n + 1) * candidate
                new.append((m, row, moved, x[m]))
        for m, row, moved, x in new:
            label[m][row], bank[m][row], seen[m][row] = moved, x, True
    found = {}
    for m in label:
        end = f"_{m}" if m else ""
        found |= {f"label{end}": label[m], f"bank{end}": bank[m], f"seen{end}": seen[m]}
    return found


@pytest.mark.parametrize("own", [{}, {"exclude_zero": False, "label_range": 2.2}])
def test_three_epochs_leave_the_labels_and_features_that_the_formulas_say(own):
    config, batches = config_of(**own), batches_of(3)
    recipe = recipe_of(config, SPEC, passes=(4,))
    memory = recipe.model.memory.begin(LABELS, SPEC)
    states, log = steps(recipe, batches, jax.tree.map(jnp.asarray, memory), SPEC)
    expected = rendered(states, batches, 4, recipe.module, config.model.own)
    found = jax.device_get(states[-1].memory)
    chex.assert_trees_all_close(found, jax.tree.map(np.float32, expected), rtol=2e-4, atol=2e-5)
    moved = np.abs(found["label_text"] - LABELS[:, 0])
    assert (moved > 0.01).sum() > N // 2
    assert found["label_audio"][LACKS] == LABELS[LACKS, 0] and not found["bank_audio"][LACKS].any()
    # While labels are the samples' own, single modalities learn nothing; then they do.
    names = list(recipe.objective.terms)
    unimodal = [float(metrics.sums[names.index("unimodal")]) for metrics in log]
    assert unimodal[:5] == [0] * 5 and min(unimodal[8:]) > 0
    assert not any(metrics.skipped for metrics in log)


def test_devices_and_parts_give_the_same_labels():
    config, batches = config_of(), batches_of(2)
    recipe = recipe_of(config, SPEC, passes=(4,))
    memory = jax.tree.map(jnp.asarray, recipe.model.memory.begin(LABELS, SPEC))
    whole = steps(recipe, batches, memory, SPEC)[0][-1]
    in_parts = recipe_of(config, SPEC, passes=(4,), accumulation_steps=2)
    parts = steps(in_parts, batches, memory, SPEC)[0][-1]
    chex.assert_trees_all_close(parts.memory, whole.memory, rtol=1e-3, atol=1e-4)

    @jax.jit
    def over_devices(state, batch):
        def of_device(part):
            return train_step(state, part, recipe, rates_of(recipe), "data")[0]

        spread = jax.tree.map(lambda x: x.reshape(2, 2, *x.shape[1:]), batch)
        return jax.vmap(of_device, axis_name="data")(spread)

    state = begin(jnp.uint32(0), memory, recipe, SPEC)
    for batch in batches:
        both = over_devices(state, batch)
        first, second = (jax.tree.map(lambda x, d=d: x[d], both) for d in (0, 1))
        chex.assert_trees_all_equal(first.memory, second.memory)
        state = first
    assert (np.abs(state.memory["label_text"] - LABELS[:, 0]) > 0.01).any()
    chex.assert_trees_all_close(state.memory, whole.memory, rtol=1e-3, atol=1e-4)


def test_labels_of_one_sign_stay_and_nothing_is_lost():
    recipe = recipe_of(config_of(), SPEC, passes=(4,))
    labels = np.abs(LABELS) + 1
    memory = jax.tree.map(jnp.asarray, recipe.model.memory.begin(labels, SPEC))
    batches = [batch.replace(labels=jnp.abs(batch.labels) + 1) for batch in batches_of(2)]
    states, log = steps(recipe, batches, memory, SPEC)
    np.testing.assert_array_equal(states[-1].memory["label_text"], labels[:, 0])
    assert not any(metrics.skipped for metrics in log)


@pytest.mark.parametrize(
    ("kind", "names"), [("classification", ("no", "yes")), ("regression", ("joy", "anger"))]
)
def test_labels_without_a_sign_are_refused(kind, names):
    spec = CorpusSpec(ALL, (4, 3), (3, 4), kind, names)
    with pytest.raises(UserError, match=f"one real number a sample, not 2 labels .* as {kind}"):
        build_model(ModelConfig(name="self_mm"), spec)


def test_text_is_its_mean_or_its_first_valid_step():
    x = jnp.arange(24.0).reshape(2, 4, 3)
    mask = jnp.array([[False, True, True, False], [False] * 4])
    mean, first = (text_vector(ModelConfig(), SPEC, x, mask, first=f) for f in (False, True))
    np.testing.assert_array_equal(mean, [x[0, 1:3].mean(0), np.zeros(3)])
    np.testing.assert_array_equal(first, [x[0, 1], np.zeros(3)])
