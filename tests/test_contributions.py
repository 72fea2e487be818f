"""What steps contribute to a score: closed forms, sums, padding, words."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_text import PIECES, TOKENIZERS, WORDPIECE, architecture

from msajax.config import ModelConfig
from msajax.corpus.corpus import Split, pad_words
from msajax.corpus.on_demand import take_rows
from msajax.encoders.tokens import Tokenizer
from msajax.models.build import build_model
from msajax.models.contract import Prediction, blank_sample
from msajax.models.contributions import Explainer, Map
from msajax.preparation.apply import prepare, words_of_steps
from msajax.preparation.fit import Preparation
from msajax.report.explanation.explain import (
    choose_samples,
    explained_outputs,
    output_of,
    rank_samples,
)
from msajax.report.explanation.integrate import (
    Detail,
    _parts_of_path,
    asking_and_answering,
    choose_detail,
    in_cells,
)
from msajax.spec import CorpusSpec

rng = np.random.default_rng(0)
SMALL = {"model_dim": 8, "num_heads": 2, "ff_dim": 12, "position_init": 0.1}


class Linear(nn.Module):
    """A linear function of the valid steps of two modalities."""

    @nn.compact
    def __call__(self, features, masks, *, train=False):
        score = self.param("bias", nn.initializers.ones, (2,))
        for m, x in features.items():
            w = self.param(m, nn.initializers.normal(1.0), (*x.shape[1:], 2))
            score = score + jnp.einsum("btd,tdk->bk", jnp.where(masks[m][..., None], x, 0), w)
        return Prediction(score, jnp.ones((len(score), 2)) / 2)


def explain(module, spec, variables, features, masks, of, points=32, scores=lambda x: x):
    """Contributions, score and baseline of every sample, and what a pass shows."""
    explainer = Explainer(module, spec, scores)
    given, of = (features, masks), jnp.asarray(of)

    @jax.jit
    def run(variables, given):
        look = explainer.look(variables, *given)
        blank = jax.tree.map(jnp.zeros_like, look.read)
        path = map(np.concatenate, zip(*_parts_of_path(points), strict=True))
        total = explainer.contributions(variables, given, look, of, tuple(path))
        return total, look, explainer.score(variables, given, look, blank, of)

    total, look, baseline = run(variables, given)
    score = np.take_along_axis(np.asarray(look.scores), np.asarray(of)[:, None], 1)[:, 0]
    return {m: np.asarray(x) for m, x in total.items()}, score, np.asarray(baseline), look


def random_variables(module, spec: CorpusSpec) -> dict:
    """Random weights without a program to make them; scales are 1."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), *blank_sample(spec))

    def draw(path, shape):
        x = rng.normal(size=shape.shape).astype(np.float32) * 0.3
        return 1 + 0 * x if path[-1].key == "scale" else x

    return jax.tree_util.tree_map_with_path(draw, shapes)


def masks_of(rows: int, lengths: dict[str, int]) -> dict[str, np.ndarray]:
    """Masks with padding anywhere; the first modality is absent in the last row."""
    masks = {m: rng.random((rows, length)) < 0.7 for m, length in lengths.items()}
    for mask in masks.values():
        mask[:, 1] = True
    next(iter(masks.values()))[-1] = False
    return masks


def test_a_linear_model_contributes_weight_times_input_and_sums_exactly():
    spec = CorpusSpec(("text", "audio"), (3, 2), (4, 5), label_names=("one", "two"))
    masks = masks_of(6, {"text": 4, "audio": 5})
    features = {
        m: np.where(masks[m][..., None], rng.normal(size=(6, 4 + k, 3 - k)), np.nan).astype("f4")
        for k, m in enumerate(spec.modalities)
    }
    variables = jax.jit(Linear().init)(jax.random.key(0), features, masks)
    of = np.array([0, 1, 0, 1, 1, 0])
    found, score, baseline, _ = explain(Linear(), spec, variables, features, masks, of, 16)
    np.testing.assert_array_equal(baseline, np.ones(6))
    for m, x in features.items():
        weight = np.asarray(variables["params"][m])[..., of]  # [T, d, B]
        expected = np.einsum("btd,tdb->bt", np.where(masks[m][..., None], x, 0), weight)
        np.testing.assert_allclose(found[m], expected, atol=1e-5)
        assert (found[m][~masks[m]] == 0).all()
    np.testing.assert_allclose(sum(x.sum(1) for x in found.values()), score - baseline, atol=1e-5)
    order = rng.permutation(6)
    of_others = ({m: x[order] for m, x in values.items()} for values in (features, masks))
    moved, *_ = explain(Linear(), spec, variables, *of_others, of[order], 16)
    for m, x in found.items():
        np.testing.assert_array_equal(moved[m], x[order])


class Embedding(nn.Module):
    """Reads token ids by a table of its own."""

    @nn.compact
    def __call__(self, features, masks, *, train=False):
        x = nn.Embed(9, 1)(features["text"])
        return Prediction(x.sum(1), jnp.ones((len(x), 1)))


def test_a_table_that_is_not_found_is_named():
    spec = CorpusSpec(("text",), (0,), (4,), vocabularies=(9,))
    features, masks = blank_sample(spec)
    variables = random_variables(Embedding(), spec)
    with pytest.raises(LookupError, match="text"):
        explain(Embedding(), spec, variables, features, masks, [0])


FAMILY = {
    "features": ({}, {"widths": (6, 5)}),
    "token ids": (
        {"norm_position": "pre", "bidirectional_fusion": True},
        {"widths": (0, 5), "vocabularies": (9, 0)},
    ),
    "pieces pooled to words": (
        {"text_pool": "words"},
        {
            **{"widths": (0, 5), "vocabularies": (17, 0), "encoders": (architecture(), None)},
            "text_steps": 4,
        },
    ),
    "guided": ({"n_layers_mod": 1, "guidance": "gradient_x_input"}, {"widths": (6, 5)}),
}


@pytest.mark.parametrize("kind", FAMILY)
def test_contributions_sum_to_what_a_table_of_zeros_takes_from_the_score(kind):
    settings, sizes = FAMILY[kind]
    spec = CorpusSpec(("text", "audio"), lengths=(6, 4), **sizes)
    module = build_model(ModelConfig(**SMALL | {"n_layers_mod": 0} | settings), spec)
    masks, rows = masks_of(4, {"text": 6, "audio": 4}), 4
    audio = rng.normal(size=(rows, 4, 5)).astype(np.float32) * masks["audio"][..., None]
    if spec.encoders:
        ids = rng.integers(4, 17, (rows, 6))
        step = np.cumsum(masks["text"], 1) // 2
        text = np.stack([ids, 0 * ids, np.where(masks["text"], step, -1)], -1).astype(np.int32)
    elif spec.vocabularies:
        text = rng.integers(0, 9, (rows, 6)).astype(np.int32)
    else:
        text = rng.normal(size=(rows, 6, 6)).astype(np.float32) * masks["text"][..., None]
    features = {"text": text, "audio": audio}
    variables = random_variables(module, spec)
    of = [0] * rows
    found, score, baseline, look = explain(module, spec, variables, features, masks, of, 256)
    error = np.abs(sum(x.sum(1) for x in found.values()) - (score - baseline))
    assert np.median(error / np.abs(score - baseline)) < 0.01
    for m, x in found.items():
        assert (x[~masks[m]] == 0).all() and (x[masks[m]] != 0).all()
    if kind == "guided":
        return  # its baseline keeps the guides of the sample
    zeros = {"audio": 0 * audio, "text": text if spec.vocabularies else 0 * text}
    params = variables["params"]
    if spec.encoders:
        encoder = params["text_pretrained"]["encoder"]
        words = jax.tree.map(jnp.zeros_like, encoder["embeddings"]["words"])
        embeddings = {**encoder["embeddings"], "words": words}
        encoder = {**encoder, "embeddings": embeddings}
        params = {**params, "text_pretrained": {"encoder": encoder}}
    elif spec.vocabularies:
        blank = jax.tree.map(jnp.zeros_like, params["text_embedding"])
        params = {**params, "text_embedding": blank}
    expected = jax.jit(module.apply)({"params": params}, zeros, masks).score[:, 0]
    np.testing.assert_allclose(baseline, expected, atol=1e-6)
    pairs = {(key.asks, key.answers) for key in look.attention if key.part == "fusion"}
    both = {("text", "audio"), ("audio", "text")}
    assert pairs == (both if kind == "token ids" else {("text", "audio")})
    require_rows_that_sum_to_one(look.attention, spec, features, masks)


def require_rows_that_sum_to_one(attention, spec, features, masks):
    """Every head of every step that asks, where there is one to answer, and nothing elsewhere."""
    there = asking_and_answering(spec, features, masks, True, attention)
    for key, x in attention.items():
        asks, answers = there[key]
        assert x.shape == (len(asks), 2, asks.shape[1], answers.shape[1]), key
        seen = np.where(answers[:, None, None], x, 0).sum(-1)  # [B, H, T_asks]
        some = asks & answers.any(1)[:, None]
        np.testing.assert_allclose(np.moveaxis(seen, 1, -1)[some], 1, atol=1e-5)


def layers(part: str, *modalities: str) -> list[Map]:
    return [Map(part, 0, m, m) for m in modalities]


BOTH = ("text", "audio")
MAPS = {
    "encoders, fusion, encoders after it": (
        {"n_layers_mod": 1, "n_layers_post_fuse": 1},
        [*layers("encoder", *BOTH), Map("fusion", 0, *BOTH), *layers("after_fusion", *BOTH)],
    ),
    "pooled": ({"fusion": "pooled", "n_layers_mod": 0}, [Map("pooled", 0, "", "")]),
    "recurrent": ({"mixer": "lstm", "n_layers_fuse": 0}, []),
    "pretrained, its layers computed again": (
        {"n_layers_mod": 1, "text_pool": "words", "gradient_checkpointing": True},
        [*layers("pretrained", "text"), *layers("encoder", *BOTH), Map("fusion", 0, *BOTH)],
    ),
}


@pytest.mark.parametrize("kind", MAPS)
def test_every_layer_of_attention_shows_the_map_of_every_head(kind):
    settings, expected = MAPS[kind]
    sizes = {"widths": (6, 5)}
    masks = masks_of(4, {"text": 6, "audio": 4})
    text = rng.normal(size=(4, 6, 6)).astype(np.float32)
    if kind.startswith("pretrained"):
        sizes = {"widths": (0, 5), "vocabularies": (17, 0), "text_steps": 4}
        sizes["encoders"] = (architecture(), None)
        step = np.where(masks["text"], np.cumsum(masks["text"], 1) // 2, -1)
        text = np.stack([rng.integers(4, 17, (4, 6)), 0 * step, step], -1).astype(np.int32)
    spec = CorpusSpec(BOTH, lengths=(6, 4), **sizes)
    module = build_model(ModelConfig(**SMALL | {"n_layers_fuse": 1} | settings), spec)
    features = {"text": text, "audio": rng.normal(size=(4, 4, 5)).astype(np.float32)}
    variables = random_variables(module, spec)
    shown = []

    @jax.jit
    def attention_of(variables):
        look = Explainer(module, spec, lambda x: x).look(variables, features, masks)
        shown.extend(look.attention)  # a program gives them back in another order
        return look.attention

    found = attention_of(variables)
    assert shown == expected
    require_rows_that_sum_to_one({key: found[key] for key in shown}, spec, features, masks)


def test_special_pieces_that_fusion_does_not_read_do_not_ask():
    spec = CorpusSpec(("text",), (0,), (3,), vocabularies=(17,), encoders=(architecture(),))
    features = {"text": np.array([[[2, 0, -1], [6, 0, 1], [3, 0, -1]]])}
    masks, maps = {"text": np.ones((1, 3), bool)}, layers("encoder", "text")
    maps += layers("pretrained", "text")
    there = asking_and_answering(spec, features, masks, False, maps)
    assert [there[key][0].tolist() for key in maps] == [[[False, True, False]], [[True] * 3]]


def test_cells_of_attention_keep_rows_that_sum_to_one():
    attention = rng.dirichlet(np.ones(5), size=(2, 1, 7))
    asking = np.ones((2, 7), bool)
    asking[1, 4:] = False
    np.testing.assert_array_equal(
        in_cells(attention, asking, (1, 1)), np.where(asking[:, None, :, None], attention, 0)
    )
    cells = in_cells(attention, asking, (3, 2))
    assert cells.shape == (2, 1, 3, 3)
    np.testing.assert_allclose(cells.sum(-1)[:, 0], [[1, 1, 1], [1, 1, 0]], atol=1e-12)
    np.testing.assert_allclose(cells[1, 0, 1, 2], attention[1, 0, 3, 4])
    np.testing.assert_allclose(cells[0, 0, 0, 0], attention[0, 0, :3, :2].sum() / 3)


def test_many_maps_get_few_cells_and_then_lose_their_heads_so_that_a_page_stays_small():
    def detail(samples, steps, maps, heads=4):
        there = np.ones((samples, steps), bool)
        keys = [Map("encoder", k, "text", "text") for k in range(maps)]
        shapes = {key: (16, heads, steps, steps) for key in keys}
        return choose_detail(shapes, dict.fromkeys(keys, (there, there)))

    assert detail(6, 50, 14) == (64, True)  # 6 * 14 * 5 * 50 * 50 = 1,050,000
    assert detail(20, 50, 14) == (32, True)  # 3,500,000; cells of 2 steps: 875,000
    assert detail(100, 50, 10) == (64, False)  # of 2 steps, with heads: 3,125,000; 2,500,000
    assert detail(1000, 50, 10) == (16, False)
    assert Detail(64, True).sizes((50, 500)) == (1, 8)
    # What counts is how long the samples are, not how long they may be.
    shapes = {Map("encoder", 0, "text", "text"): (16, 8, 500, 500)}
    short = np.arange(500) < np.full((50, 1), 20)
    assert choose_detail(shapes, {key: (short, short) for key in shapes}) == (64, True)


def test_samples_are_taken_in_turn_by_rule_and_never_twice():
    rankings = {"best": [3, 1, 0, 2], "worst": [2, 0, 1, 3], "moved": [3, 2, 1, 0]}
    chosen = choose_samples(rankings, 4)
    assert chosen == [(3, "best"), (0, "best"), (2, "worst"), (1, "moved")]
    assert sorted(row for row, _ in choose_samples(rankings, 99)) == [0, 1, 2, 3]


def test_the_explained_output_and_the_rankings_follow_the_task():
    scores = np.array([[0.2, 0.8], [0.9, 0.1], [0.5, 0.5]])
    classes = CorpusSpec(("text",), (1,), (1,), "classification", ("no", "yes"))
    outputs = explained_outputs(scores, output_of(classes, ""))
    assert outputs.tolist() == [1, 0, 0]
    found = rank_samples(scores, outputs, np.array([[0], [0], [1]]), True)
    assert {k: v.tolist() for k, v in found.items()} == {
        "best predicted": [1, 2, 0], "worst predicted": [0, 2, 1],
    }  # fmt: skip
    assert list(rank_samples(scores, outputs, None, True)) == ["most certain", "least certain"]
    several = CorpusSpec(("text",), (1,), (1,), label_names=("joy", "anger"))
    outputs = explained_outputs(scores, output_of(several, "anger"))
    assert outputs.tolist() == [1, 1, 1]
    labels = np.array([[9, 0.8], [9, 0.6], [9, 0.6]])
    assert rank_samples(scores, outputs, labels, False)["best predicted"].tolist() == [0, 2, 1]
    assert rank_samples(scores, outputs, None, False)["highest"].tolist() == [0, 2, 1]


# --- words ---


def preparation_of(spec: CorpusSpec, **more) -> Preparation:
    return Preparation(spec, (), {}, 0.0, "last", True, allow_loss=True, **more)


def words_in(stored: Split, preparation: Preparation, rows=(0, 1)) -> list[list[str]] | None:
    prepared, _ = prepare(stored, preparation)
    rows = np.array(rows)
    return words_of_steps(take_rows(stored, rows), take_rows(prepared, rows), preparation)


def stored_split(**more) -> Split:
    return Split(ids=np.array(["x", "y"]), **{"masks": {}, "features": {}, **more})


def test_words_move_with_the_steps_of_features_that_are_compacted_and_cut():
    x = np.zeros((2, 5, 2), np.float32)
    x[0, 2:], x[1, :4] = 1, 1  # leading padding; trailing padding
    words = pad_words([["", "", "so", "very", "good"], ["not", "", "at", "all"]])
    stored = stored_split(features={"text": x}, words=words, labels=np.zeros((2, 1)))
    preparation = preparation_of(CorpusSpec(("text",), (2,), (3,)))
    assert words_in(stored, preparation) == [["so", "very", "good"], ["", "at", "all"]]
    assert words_in(stored, preparation, [1]) == [["", "at", "all"]]
    without = stored_split(features={"text": x}, labels=np.zeros((2, 1)))
    assert words_in(without, preparation) is None


def test_pieces_of_embedded_text_move_with_its_steps():
    x = np.ones((2, 4, 2), np.float32)
    pieces = np.array([["[CLS]", "film", "##s", "[SEP]"], ["[CLS]", "a", "[SEP]", ""]])
    mask = {"text": pieces != ""}
    words = pad_words([["films"], ["a"]])
    stored = stored_split(
        features={"text": x}, masks=mask, words=words, pieces=pieces, labels=np.zeros((2, 1))
    )
    preparation = preparation_of(CorpusSpec(("text",), (2,), (5,)))
    assert words_in(stored, preparation, [1]) == [["[CLS]", "a", "[SEP]", "", ""]]
    assert words_in(stored, preparation)[0] == ["[CLS]", "film", "##s", "[SEP]", ""]


def test_words_of_transcripts_are_those_that_a_vocabulary_cut_them_into():
    stored = stored_split(raw_text=np.array(["So good, SO good", "Odd"]), labels=np.zeros((2, 1)))
    spec = CorpusSpec(("text",), (0,), (3,), vocabularies=(4,))
    preparation = preparation_of(spec, words=("<padding>", "<unknown>", "so", "good"))
    assert words_in(stored, preparation) == [["good", "so", "good"], ["odd", "", ""]]
    ids = stored_split(features={"text": np.array([[3, 1], [2, 2]])}, labels=np.zeros((2, 1)))
    assert words_in(ids, preparation_of(spec)) == [["#3", "#1", ""], ["#2", "#2", ""]]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pieces_that_go_on_a_word_say_so_whatever_the_tokenizer(kind):
    tokenizer = Tokenizer.from_json(TOKENIZERS[kind], "a tokenizer")
    texts = {"wordpiece": "films", "byte level": " aé", "unigram": "aab"}
    ids = tokenizer.encode([texts[kind]]).values[0, :, 0]
    names = tokenizer.names(ids)
    assert names[0].startswith(("[CLS]", "<s>")) and names[-1] in ("[SEP]", "</s>")
    assert not names[1].startswith("##") and all(n.startswith("##") for n in names[2:-1])
    if kind != "byte level":  # where é is two pieces, neither of which is a letter
        assert "".join(n.removeprefix("##") for n in names[1:-1]) == texts[kind]


def test_pieces_are_named_at_their_steps():
    spec = CorpusSpec(
        ("text",), (0,), (5,), vocabularies=(len(PIECES),), encoders=(architecture(),)
    )
    more = {"tokenizer": WORDPIECE, "text_from": "raw_text"}
    stored = stored_split(raw_text=np.array(["good films", ""]), labels=np.zeros((2, 1)))
    assert words_in(stored, preparation_of(spec, **more)) == [
        ["[CLS]", "good", "film", "##s", "[SEP]"],
        [""] * 5,
    ]
