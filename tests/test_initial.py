"""Parameters that do not begin at random: which match, which rows, which seed, and what is said."""

import dataclasses

import flax.traverse_util
import numpy as np
import pytest

from msajax.config import ModelConfig
from msajax.config.registry import registered
from msajax.corpus.glove import WordVectors
from msajax.errors import UserError
from msajax.models.build import declared, parameter_shapes
from msajax.preparation.fit import Preparation
from msajax.preparation.words import PADDING, UNKNOWN
from msajax.spec import CorpusSpec
from msajax.training.initial import from_bundle, from_labels, from_words, with_initial

SMALL = {"model_dim": 8, "num_heads": 2, "ff_dim": 12, "n_layers_mod": 1}
MODEL = ModelConfig(**SMALL)
DECODER = ModelConfig(**SMALL, name="next_token", causal=True)
THERE = (PADDING, UNKNOWN, "film", "good", "bad")
HERE = (PADDING, UNKNOWN, "good", "plot", "film", "voice")


def prepared(spec: CorpusSpec, words=()) -> Preparation:
    return Preparation(spec, (), {}, 0.0, "error", True, words)


def of_features(*modalities: str, width=3, length=4, **spec) -> Preparation:
    sizes = len(modalities)
    return prepared(CorpusSpec(modalities, (width,) * sizes, (length,) * sizes, **spec))


def of_words(words, length=4, kind="regression", names=("sentiment",)) -> Preparation:
    return prepared(CorpusSpec(("text",), (0,), (length,), kind, names, (len(words),)), words)


def tree(shapes, seeds: int, first: float = 0.0):
    """Parameters of a bundle, every number another one."""
    flat, start = {}, first
    for path, shape in shapes.items():
        size = seeds * int(np.prod(shape))
        flat[path] = np.arange(start, start + size, dtype=np.float32).reshape(seeds, *shape)
        start += size
    return flax.traverse_util.unflatten_dict(flat, sep="/")


def flat(params) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(params, sep="/")


def loaded(here, there, config=MODEL, source=MODEL, seeds=2, source_seeds=2):
    """What a new run takes over, its report, all shapes here, and the parameters there."""
    shapes = parameter_shapes(config, here.spec)
    params = tree(parameter_shapes(source, there.spec), source_seeds)
    found = from_bundle(declared(config), here, shapes, there, params, seeds)
    return *found, shapes, flat(params)


# --- of a bundle ---


def test_the_same_model_takes_every_parameter_over():
    spec = of_features("text", "audio")
    initial, report, shapes, params = loaded(spec, spec)
    assert initial.keys() == shapes.keys()
    for path, values in initial.items():
        np.testing.assert_array_equal(values, params[path])
    total = sum(int(np.prod(shape)) for shape in shapes.values())
    assert (report["loaded"], report["of"]) == (total, total)
    assert set(report["notes"]) == set(shapes)
    positions = {f"{m}_encoder/positions/embedding" for m in ("text", "audio")}
    for path, note in report["notes"].items():
        assert note == ("4 of 4 rows" if path in positions else "loaded")


def test_seeds_begin_from_the_bundles_seeds_counted_around():
    spec = of_features("text")
    for seeds, source_seeds, order in ((5, 2, [0, 1, 0, 1, 0]), (2, 3, [0, 1]), (1, 1, [0])):
        initial, _, _, params = loaded(spec, spec, seeds=seeds, source_seeds=source_seeds)
        for path, values in initial.items():
            np.testing.assert_array_equal(values, params[path][order])


def test_other_shapes_and_names_stay_random_and_are_named():
    here = of_features("text", "video")
    wide = {"text": 3, "audio": 3}
    there = prepared(CorpusSpec(tuple(wide), tuple(wide.values()), (4, 4)))
    other = dataclasses.replace(MODEL, ff_dim=20)
    initial, report, shapes, params = loaded(here, there, other, MODEL)
    notes = report["notes"]
    assert notes["text_encoder/projection/kernel"] == "loaded"
    inner = notes["text_encoder/blocks_0/ffn/inner/kernel"]
    assert inner == "random: (8, 20) here, (8, 12) in the bundle"
    assert notes["video_encoder/projection/kernel"] == "random: the bundle has none"
    assert set(initial) == {path for path, note in notes.items() if "random" not in note}
    for path, values in initial.items():
        assert values.shape == (2, *shapes[path])
    for path in set(shapes) & set(params):
        alike = shapes[path] == params[path].shape[1:]
        of_all = path.startswith(("head/gate/", "regression/"))
        assert (path in initial) == (alike and not of_all), path
    counts = {path: int(np.prod(shape)) for path, shape in shapes.items()}
    assert report["of"] == sum(counts.values())
    assert report["loaded"] == sum(counts[path] for path in initial)
    for module, (n, of) in report["modules"].items():
        own = {path: size for path, size in counts.items() if path.split("/")[0] == module}
        assert of == sum(own.values())
        assert n == sum(size for path, size in own.items() if path in initial)


@pytest.mark.parametrize(
    "others", [("text", "video"), ("audio", "text"), ("text",), ("text", "audio", "video")]
)
def test_gate_and_output_are_those_of_the_same_modalities_in_the_same_order(others):
    """Their rows and columns stand for modalities, whatever the shapes say."""
    concat = dataclasses.replace(MODEL, head="concat")
    for config, module in ((MODEL, "head/gate/"), (concat, "regression/")):
        here = of_features("text", "audio")
        initial, _, shapes, _ = loaded(here, of_features("text", "audio"), config, config)
        assert all(path in initial for path in shapes if path.startswith(module))
        initial, report, shapes, _ = loaded(here, of_features(*others), config, config)
        paths = [path for path in shapes if path.startswith(module)]
        assert paths and not set(paths) & set(initial)
        assert {report["notes"][path] for path in paths} == {"random: other modalities"}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("regression", ("mood",)),
        ("regression", ("sentiment", "arousal")),
        ("classification", ("sentiment",)),
    ],
)
def test_the_output_for_other_labels_stays_random(kind, names):
    here, there = of_features("text"), of_features("text", label_kind=kind, label_names=names)
    initial, report, _, _ = loaded(here, there)
    for name in ("kernel", "bias"):
        assert f"regression/{name}" not in initial
        assert report["notes"][f"regression/{name}"] == "random: other labels"
    assert report["modules"]["regression"] == [0, 9]
    assert "head/gate/hidden/kernel" in initial


@pytest.mark.parametrize(("here", "there"), [(3, 5), (5, 3)])
def test_position_tables_share_their_first_rows(here, there):
    initial, report, _, params = loaded(
        of_features("text", length=here), of_features("text", length=there)
    )
    path = "text_encoder/positions/embedding"
    found = initial[path]
    assert found.shape == (2, here, 8)
    np.testing.assert_array_equal(found[:, :3], params[path][:, :3])
    assert np.isnan(found[:, 3:]).all()
    assert report["notes"][path] == f"3 of {here} rows"
    assert report["of"] - report["loaded"] == 8 * (here - 3)
    assert report["modules"]["text_encoder"][1] - report["modules"]["text_encoder"][0] == (
        8 * (here - 3)
    )


def test_embeddings_match_by_word():
    initial, report, _, params = loaded(of_words(HERE), of_words(THERE))
    table, source = initial["text_embedding/embedding"], params["text_embedding/embedding"]
    assert table.shape == (2, 6, 8)
    for row, word in enumerate(HERE):
        if word in THERE:
            np.testing.assert_array_equal(table[:, row], source[:, THERE.index(word)])
        else:
            assert np.isnan(table[:, row]).all()
    assert report["notes"]["text_embedding/embedding"] == "4 of 6 words"
    assert report["modules"]["text_embedding"] == [32, 48]


def test_a_decoder_gives_its_words_and_its_encoder():
    there = of_words(THERE, 6, "next_token", ("negative_log_likelihood", "tokens"))
    initial, report, shapes, params = loaded(of_words(HERE), there, MODEL, DECODER)
    of_encoder = [path for path in shapes if path.startswith("text_encoder/blocks_0/")]
    assert len(of_encoder) == 16
    for path in of_encoder:
        np.testing.assert_array_equal(initial[path], params[path])
    assert set(initial) == {
        *of_encoder,
        "text_embedding/embedding",
        "text_encoder/positions/embedding",
    }
    assert report["notes"]["regression/bias"] == "random: the bundle has none"


def test_ids_of_unknown_words_share_no_row_with_words():
    tokens = prepared(CorpusSpec(("text",), (0,), (4,), vocabularies=(len(THERE),)))
    for here, there in ((of_words(THERE), tokens), (tokens, of_words(THERE))):
        initial, report, _, _ = loaded(here, there)
        assert "text_embedding/embedding" not in initial
        assert report["modules"]["text_embedding"] == [0, 40]
    initial, _, _, _ = loaded(tokens, tokens)  # the same table, as far as one can know
    assert "text_embedding/embedding" in initial


def test_a_bundle_that_has_nothing_in_common_is_refused():
    with pytest.raises(UserError, match="model.init_from: no parameter of that bundle fits"):
        loaded(
            of_features("eeg"),
            of_features("gaze", label_names=("other",)),
            dataclasses.replace(MODEL, model_dim=4),
        )


# --- of words ---


def test_word_vectors_become_the_rows_of_their_words():
    shapes = parameter_shapes(MODEL, of_words(HERE).spec)
    vectors = np.arange(24, dtype=np.float32).reshape(3, 8)
    found, sentence = from_words(HERE, shapes, WordVectors(("voice", "good", "plot"), vectors))
    assert found.keys() == {"text_embedding/embedding"}
    table = found["text_embedding/embedding"]
    np.testing.assert_array_equal(table[[5, 2, 3]], vectors)
    assert table.shape == (6, 8) and np.isnan(table[[0, 1, 4]]).all()
    assert sentence == "3 of 6 words begin with their word vector"
    none = WordVectors((), np.zeros((0, 8), np.float32))
    found, sentence = from_words(HERE, shapes, none)
    assert np.isnan(found["text_embedding/embedding"]).all() and sentence.startswith("0 of 6")


def test_word_vectors_of_another_width_are_refused_with_the_setting():
    shapes = parameter_shapes(MODEL, of_words(HERE).spec)
    with pytest.raises(UserError, match="vectors of 5 numbers, embeddings have 8: set .*_dim = 5"):
        from_words(HERE, shapes, WordVectors(("good",), np.zeros((1, 5), np.float32)))


# --- of labels ---


def test_outputs_of_ratings_begin_at_their_training_median():
    labels = np.array([[1.0, 4.0], [7.0, 4.5], [2.0, 9.0]])
    spec = of_features("text", label_names=("a", "b")).spec
    np.testing.assert_array_equal(from_labels(MODEL, spec, labels)["regression/bias"], [2.0, 4.5])
    ratings = from_labels(MODEL, of_features("text").spec, labels[:, :1])
    assert ratings.keys() == {"regression/bias"}
    np.testing.assert_array_equal(ratings["regression/bias"], [2.0])


def test_scores_of_sentiment_classes_and_tokens_begin_at_random():
    sentiment = np.array([[-3.0], [3.0], [2.0]])
    assert from_labels(MODEL, of_features("text").spec, sentiment) == {}
    for kind, names in (("classification", ("a", "b", "c", "d")), ("next_token", ("n", "t"))):
        spec = of_features("text", label_kind=kind, label_names=names).spec
        assert from_labels(MODEL, spec, np.array([[3.0], [0.0]])) == {}


# --- in their place ---


def test_given_values_take_their_place_and_nan_keeps_the_random_ones():
    random = {"a": {"b": np.ones((2, 3), np.float32)}, "c": np.full((2, 2), 5, np.float32)}
    of_each_seed = np.array([[np.nan, 7.0, 8.0], [9.0, np.nan, np.nan]])
    found = with_initial(random, {"a/b": of_each_seed})
    np.testing.assert_array_equal(found["a"]["b"], np.float32([[1, 7, 8], [9, 1, 1]]), strict=True)
    np.testing.assert_array_equal(found["c"], random["c"], strict=True)
    of_all_seeds = np.array([np.nan, 0.1])
    found = with_initial(random, {"c": of_all_seeds})
    np.testing.assert_array_equal(found["c"], np.float32([[5, 0.1], [5, 0.1]]), strict=True)
    np.testing.assert_array_equal(random["a"]["b"], np.ones((2, 3)))  # the old ones are untouched


# --- of a bundle of a peer ---

# Parameters that follow the order of modalities, by how their paths begin.
IN_ORDER = {
    "ef_lstm": ("lstm/input_kernel",), "lf_dnn": ("post_0/kernel",), "tfn": ("post_0/kernel",),
    "misa": ("head/",), "self_mm": ("fusion/feature/kernel",),
    "mmim": ("fusion_0/kernel", "audio_estimator/"), "almt": ("hyper", "fusion/"),
    "mult": ("between/", "memory/", "post_", "regression/"),
    "dlf": ("private/", "common/", "between/", "memory/", "shared_", "post_", "regression/"),
}  # fmt: skip
OF_LABELS = {"lmf": ("_factor", "fusion_bias"), "self_mm": ("/score/",)}  # a part of their paths
PEERS = [name for name, entry in registered().items() if entry.module.startswith("peers.")]


@pytest.mark.parametrize("name", [name for name in PEERS if name != "mag"])  # which has no table
def test_a_peer_takes_over_what_stands_for_the_same(name):
    def of(words, order=("text", "audio"), label="sentiment"):
        order = order if name != "text_only" else ("text",)
        widths, rows = {"text": 0, "audio": 3}, {"text": len(words), "audio": 0}
        sizes = tuple(widths[m] for m in order), (8,) * len(order)
        rows = tuple(rows[m] for m in order)
        groups = (order,) if len(order) > 1 else ()
        names = {"label_names": (label,), "vocabularies": rows, "groups": groups}
        return prepared(CorpusSpec(order, *sizes, **names), words)

    config, path = ModelConfig(name=name), "text_embedding/embedding"
    there = of(THERE)
    initial, _, _, params = loaded(of(HERE), there, config, config)
    known = {row: THERE.index(word) for row, word in enumerate(HERE) if word in THERE}
    for row in range(len(HERE)):
        expected = params[path][:, known[row]] if row in known else np.nan
        np.testing.assert_array_equal(initial[path][:, row], expected + 0 * initial[path][:, row])
    # Every other parameter is loaded from a bundle of the same labels and modalities.
    assert initial.keys() == params.keys()

    _, report, shapes, _ = loaded(of(THERE, label="mood"), there, config, config)
    random = {path for path, note in report["notes"].items() if note == "random: other labels"}
    parts = OF_LABELS.get(name, ("regression/",))
    assert random == {path for path in shapes if any(part in path for part in parts)}

    _, report, shapes, _ = loaded(of(THERE, ("audio", "text")), there, config, config)
    random = {path for path, note in report["notes"].items() if note != "loaded"}
    random -= {path for path, note in report["notes"].items() if note.split()[0].isdigit()}
    begin = IN_ORDER.get(name, ())
    assert random == {path for path in shapes if path.startswith(begin)}
    assert bool(random) == bool(begin)
