"""What is hidden of a split, and how curves are measured: exact shares and closed forms."""

import dataclasses
import types

import numpy as np
import pytest
from tiny_text import architecture

from msajax.corpus.corpus import Split
from msajax.corpus.on_demand import OnDemand
from msajax.encoders.tokens import NOTHING
from msajax.errors import UserError
from msajax.robustness import disturbances, measure
from msajax.spec import CorpusSpec
from msajax.tasks import make_task

SPEC = CorpusSpec(("text", "audio"), (2, 3), (6, 4))
RNG = np.random.default_rng(0)
N = 50
IDS = np.array([f"v{i // 3}[{i % 3}]" for i in range(N)])


def made() -> Split:
    masks = {m: RNG.random((N, SPEC.length(m))) < 0.7 for m in SPEC.modalities}
    features = {
        m: RNG.normal(size=(*mask.shape, SPEC.width(m))).astype(np.float32) * mask[..., None]
        for m, mask in masks.items()
    }
    return Split(IDS, features, masks, RNG.uniform(-3, 3, (N, 1)))


SPLIT = made()


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_steps_are_lost_in_exactly_their_share_and_stay_where_they_were(rate):
    was = SPLIT.masks["text"]
    after = disturbances.drop_steps(SPLIT, SPEC, "text", rate, 0)
    now = after.masks["text"]
    assert not (now & ~was).any()
    assert (was & ~now).sum() == round(rate * was.sum())
    np.testing.assert_array_equal(after.features["text"][now], SPLIT.features["text"][now])
    assert not after.features["text"][~now].any()
    assert after.features["audio"] is SPLIT.features["audio"]
    less = disturbances.drop_steps(SPLIT, SPEC, "text", rate - 0.1, 0).masks["text"]
    assert not (now & ~less).any()  # a larger rate loses what a smaller one does, and more
    other = disturbances.drop_steps(SPLIT, SPEC, "text", rate, 1).masks["text"]
    assert (other != now).any()


def test_a_modality_is_lost_in_exactly_its_share_of_samples():
    rows = disturbances.drawn_rows(N, 0.3, 2, [0, 1])
    assert rows.sum() == 15
    np.testing.assert_array_equal(rows, disturbances.drawn_rows(N, 0.3, 2, [0, 1]))
    assert (rows <= disturbances.drawn_rows(N, 0.4, 2, [0, 1])).all()
    both = disturbances.hide_modalities(SPLIT, SPEC.modalities, rows)
    for m in SPEC.modalities:
        assert not both.masks[m][rows].any() and not both.features[m][rows].any()
        np.testing.assert_array_equal(both.masks[m][~rows], SPLIT.masks[m][~rows])


def test_what_streams_is_disturbed_like_what_is_in_memory():
    source = np.broadcast_to(np.arange(6), (N, 6))
    streamed = OnDemand(SPLIT.features["text"], source, SPLIT.masks["text"], None, 0)
    features = {**SPLIT.features, "text": streamed}
    streamed = dataclasses.replace(SPLIT, features=features)
    deviation = np.array([2.0, 0.5])
    for disturb in (
        lambda split: disturbances.drop_steps(split, SPEC, "text", 0.5, 0),
        lambda split: disturbances.add_noise(split, SPEC, "text", deviation, 0),
    ):
        one, other = (disturb(split).features["text"] for split in (SPLIT, streamed))
        np.testing.assert_array_equal(one[:, :4], other[:, :4])


def test_noise_is_drawn_by_sample_has_its_deviation_and_spares_padding():
    deviation = np.array([2.0, 0.5])
    split = dataclasses.replace(
        SPLIT,
        features={"text": np.zeros((2000, 6, 2), np.float32)},
        masks={"text": RNG.random((2000, 6)) < 0.5},
    )
    noise = disturbances.add_noise(split, SPEC, "text", deviation, 0).features["text"]
    whole, mask = noise[:, :6], split.masks["text"]
    assert not whole[~mask].any()
    drawn = whole[mask]
    np.testing.assert_allclose(drawn.std(0), deviation, rtol=4 / np.sqrt(2 * len(drawn)))
    np.testing.assert_allclose(drawn.mean(0) / deviation, 0, atol=4 / np.sqrt(len(drawn)))
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 4 / np.sqrt(len(drawn))
    rows = np.array([7, 3, 1999])  # how a split is cut into batches changes nothing
    np.testing.assert_array_equal(noise[rows, :2], whole[rows, :2])
    twice = disturbances.add_noise(split, SPEC, "text", 2 * deviation, 0).features["text"]
    np.testing.assert_array_equal(twice[:, :6], 2 * whole)


def pieces(steps: list[list[int]]) -> tuple[CorpusSpec, Split]:
    """Text whose pieces are of these words, -1 for a special piece and -2 for padding."""
    step = np.array(steps)
    mask = step > -2
    values = np.stack([np.where(mask, 5, 0), np.zeros_like(step), np.maximum(step, -1)], -1)
    values[~mask] = NOTHING
    spec = CorpusSpec(
        ("text",), (0,), step.shape[1:], vocabularies=(17,), encoders=(architecture(),)
    )
    ids = np.arange(len(step)).astype(str)
    return spec, Split(ids, {"text": values.astype(np.int32)}, {"text": mask})


def test_pieces_of_a_word_go_together_and_special_ones_with_the_last_of_them():
    spec, split = pieces([[-1, 0, 0, 1, -1, -2]] * 400)  # [CLS] a word of two pieces, one, [SEP]
    after = disturbances.drop_steps(split, spec, "text", 0.5, 0)
    kept = after.masks["text"]
    assert {tuple(row) for row in kept.astype(int).tolist()} == {
        (1, 1, 1, 1, 1, 0),
        (1, 1, 1, 0, 1, 0),
        (1, 0, 0, 1, 1, 0),
        (0, 0, 0, 0, 0, 0),  # nothing but special pieces is no text
    }
    assert (kept[:, 1].sum() + kept[:, 3].sum()) == 400  # of 800 words
    np.testing.assert_array_equal(after.features["text"][~kept], [NOTHING] * (~kept).sum())
    assert disturbances.steps_of(split, spec, "text")[1].sum() == 800


@pytest.mark.parametrize("kind", ["score", "outputs", "classes"])
def test_a_point_averages_draws_and_seeds(kind):
    if kind == "classes":
        task = make_task("classification", ("a", "b", "c"), np.arange(3.0)[:, None])
        labels = RNG.integers(0, 3, (N, 1)).astype(float)
        scores = RNG.dirichlet(np.ones(3), (3, 2, N))
        naive = (scores.argmax(-1) == labels[:, 0]).mean(-1)
        name = "accuracy"
    else:
        names = ("a",) if kind == "score" else ("a", "b")
        task = make_task("regression", names, np.full((2, len(names)), 9.0))
        labels = RNG.normal(size=(N, len(names)))
        scores = RNG.normal(size=(3, 2, N, len(names)))
        naive = np.abs(scores - labels).mean((-1, -2))
        name = "mae"
    found = measure.metrics_of_draws(scores, labels, task)
    assert list(found) == list(task.reported)
    assert found[name]["mean"] == pytest.approx(naive.mean(), abs=1e-12)
    assert found[name]["sd"] == pytest.approx(naive.mean(0).std(ddof=1), abs=1e-12)
    low, high = found[name]["ci95"]
    assert low < found[name]["mean"] < high
    alone = measure.metrics_of_draws(scores[:, :1], labels, task)
    assert alone[name]["sd"] is None


def test_the_area_is_the_mean_of_the_metric_over_the_rates():
    points = [
        {"rate": r, "metrics": {"mae": {"mean": 2 + 3 * r}, "corr": {"mean": None}}}
        for r in measure.RATES
    ]
    assert measure.area(points, "mae") == pytest.approx(2 + 3 * 0.45)
    assert np.isnan(measure.area(points, "corr"))


def test_a_model_of_tokens_is_refused():
    task = types.SimpleNamespace(reads_labels=False, usual_selection="cross_entropy")
    spec = types.SimpleNamespace(label_kind="next_token")
    bundle = types.SimpleNamespace(preparation=types.SimpleNamespace(spec=spec))
    folder = types.SimpleNamespace(path="runs/decoder")
    run = types.SimpleNamespace(task=task, bundle=bundle, folder=folder)
    with pytest.raises(UserError, match="runs/decoder holds a model of the next_token task, whose"):
        measure.begin(run)
