"""Random changes of batches do exactly what they say, and no layout changes them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_text import architecture

from msajax.errors import UserError
from msajax.preparation.batches import Batch
from msajax.spec import CorpusSpec
from msajax.training.transforms import amounts, make_transforms

SPEC = CorpusSpec(("text", "audio"), (2, 3), (6, 4))
ROWS = 4000


def batch_of(rows=ROWS):
    rng = np.random.default_rng(0)
    masks = {m: rng.random((rows, SPEC.length(m))) < 0.6 for m in SPEC.modalities}
    features = {
        m: np.where(masks[m][..., None], rng.normal(size=(*masks[m].shape, SPEC.width(m))), 0)
        for m in SPEC.modalities
    }
    return Batch(
        {m: jnp.asarray(x, jnp.float32) for m, x in features.items()},
        {m: jnp.asarray(x) for m, x in masks.items()},
        jnp.zeros((rows, 1)),
        jnp.ones(rows),
        jnp.arange(rows),
    )


def changed(entry, batch, seed=0, step=0, first=0):
    one = make_transforms((entry,), SPEC)
    return one(batch, amounts((entry,)), jnp.uint32(seed), jnp.int32(step), first)


def test_modality_dropout_hides_whole_modalities_but_never_the_last():
    batch = batch_of()
    after = changed("modality_dropout:audio=0.3", batch)
    np.testing.assert_array_equal(after.masks["text"], batch.masks["text"])
    was, is_ = batch.masks["audio"], after.masks["audio"]
    gone = np.array(was.any(1) & ~is_.any(1))
    np.testing.assert_array_equal(np.array(is_)[~gone], np.array(was)[~gone])
    np.testing.assert_array_equal(np.array(after.features["audio"])[gone], 0)
    np.testing.assert_array_equal(
        np.array(after.features["audio"])[~gone], np.array(batch.features["audio"])[~gone]
    )
    has_text = np.array(batch.masks["text"].any(1))
    assert not gone[~has_text].any()
    share = gone[has_text & np.array(was.any(1))].mean()
    assert share == pytest.approx(0.3, abs=4 * np.sqrt(0.3 * 0.7 / ROWS))


@pytest.mark.parametrize("count", [2, 3])
def test_all_modalities_are_hidden_equally_often_and_one_is_left(count):
    names = ("text", "audio", "video")[:count]
    spec, amount, rows = CorpusSpec(names, (2,) * count, (1,) * count), 0.6, 20_000
    there = {m: jnp.ones((rows, 1), bool).at[:1000].set(m != "text") for m in names}
    batch = batch_of(rows).replace(features={m: jnp.ones((rows, 1, 2)) for m in names}, masks=there)
    step = make_transforms((f"modality_dropout:*={amount}",), spec)
    after = step(batch, jnp.float32([amount]), jnp.uint32(0), jnp.int32(0), 0)
    kept = np.stack([np.array(after.masks[m][:, 0]) for m in names], 1)
    assert kept.any(1).all() and not kept[:1000, 0].any()
    # M modalities all draw below p with probability p^M, and then any of them stays, as likely as
    # any other: each is hidden with probability p - p^M / M.
    for present in (kept[1000:], kept[:1000, 1:]):
        alone = present.shape[1]
        expected = amount - amount**alone / alone
        found = 1 - present.mean(0)
        sd = np.sqrt(expected * (1 - expected) / len(present))
        np.testing.assert_allclose(found, expected, atol=4 * sd)


def test_step_dropout_hides_valid_steps_alone_and_leaves_one():
    batch = batch_of()
    after = changed("step_dropout:text=0.4", batch)
    was, is_ = np.array(batch.masks["text"]), np.array(after.masks["text"])
    assert not (is_ & ~was).any()
    np.testing.assert_array_equal(is_.any(1), was.any(1))
    several = was.sum(1) > 3
    share = (was & ~is_)[several].sum() / was[several].sum()
    # A row whose n steps all draw below p keeps one of them: n p less p^n is hidden on average.
    n = was[several].sum(1)
    expected = (0.4 * n - 0.4**n).sum() / n.sum()
    assert share == pytest.approx(expected, abs=4 * np.sqrt(0.24 / was[several].sum()))
    np.testing.assert_array_equal(np.array(after.features["text"])[~is_], 0)


def test_feature_noise_has_its_deviation_at_valid_steps_alone():
    batch = batch_of()
    after = changed("feature_noise:audio=0.5", batch)
    noise = np.array(after.features["audio"] - batch.features["audio"])
    mask = np.array(batch.masks["audio"])
    np.testing.assert_array_equal(noise[~mask], 0)
    drawn = noise[mask]
    assert drawn.std() == pytest.approx(0.5, rel=4 / np.sqrt(2 * drawn.size))
    assert abs(drawn.mean()) < 4 * 0.5 / np.sqrt(drawn.size)
    np.testing.assert_array_equal(after.features["text"], batch.features["text"])


@pytest.mark.parametrize(
    "entry", ["modality_dropout:*=0.5", "step_dropout:*=0.5", "feature_noise:*=1"]
)
def test_rows_draw_by_their_position_in_the_whole_batch(entry):
    batch = batch_of(8)
    whole = changed(entry, batch, seed=3, step=5)
    part = jax.tree.map(lambda x: x[2:5], batch)
    alone = changed(entry, part, seed=3, step=5, first=2)
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(x[2:5], y), whole, alone
    )
    masks_and_features = jax.tree.leaves((whole.masks, whole.features))
    for other in (changed(entry, batch, seed=4, step=5), changed(entry, batch, seed=3, step=6)):
        found = jax.tree.leaves((other.masks, other.features))
        assert any((x != y).any() for x, y in zip(masks_and_features, found, strict=True))


def test_an_amount_of_0_changes_nothing():
    batch = batch_of(16)
    for name in ("modality_dropout", "step_dropout", "feature_noise"):
        jax.tree.map(np.testing.assert_array_equal, changed(f"{name}:*=0", batch), batch)


def test_an_entry_that_cannot_be_is_refused():
    named = "must be name:modality=amount"
    for entry, message in (
        ("dropout:text=0.1", f"{named}, where name is one of modality_dropout"),
        ("step_dropout", named),
        ("step_dropout:video=0.1", "'video' is not among the run's modalities: choose one of text"),
        ("step_dropout:text=1", "the amount must be 0 or more and below 1"),
        *((f"feature_noise:text={amount}", "the amount must be 0 or more")
          for amount in (-1, "inf")),
        ("feature_noise:text", named),
    ):
        with pytest.raises(UserError, match=message):
            make_transforms((entry,), SPEC)


def test_token_ids_have_no_features_to_add_noise_to():
    spec = CorpusSpec(("text", "audio"), (0, 3), (6, 4), vocabularies=(9, 0))
    assert len(make_transforms(("feature_noise:*=1",), spec).steps) == 1
    with pytest.raises(UserError, match="'text' is token ids"):
        make_transforms(("feature_noise:text=1",), spec)


def test_pieces_that_are_hidden_become_padding():
    spec = CorpusSpec(("text",), (0,), (6,), vocabularies=(17,), encoders=(architecture(),))
    x = jnp.tile(jnp.array([5, 1, 2], jnp.int32), (200, 6, 1))
    batch = batch_of(200).replace(features={"text": x}, masks={"text": jnp.ones((200, 6), bool)})
    step = make_transforms(("step_dropout:text=0.5",), spec)
    after = step(batch, jnp.float32([0.5]), jnp.uint32(0), jnp.int32(0), 0)
    found, kept = np.array(after.features["text"]), np.array(after.masks["text"])
    assert found.dtype == np.int32 and 0.4 < kept.mean() < 0.6
    np.testing.assert_array_equal(found[kept], np.tile([5, 1, 2], (kept.sum(), 1)))
    np.testing.assert_array_equal(found[~kept], np.tile([0, 0, -1], ((~kept).sum(), 1)))
    with pytest.raises(UserError, match="is token ids, which have no features"):
        make_transforms(("feature_noise:text=0.1",), spec)
