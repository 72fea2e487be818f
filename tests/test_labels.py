"""What labels are taken for, what a model is to predict of them, and how an archive holds them."""

import dataclasses

import numpy as np
import pytest
from refusals import refusal

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.corpus import Corpus, Source, Split, SplitHeader
from msajax.corpus.formats import open_corpus
from msajax.corpus.formats.native import save_native
from msajax.corpus.labels import MOST_CLASSES, LabelKind, as_targets, describe_labels, label_kind
from msajax.errors import UserError
from msajax.preparation.apply import check_split, prepare
from msajax.preparation.fit import fit
from msajax.preparation.inspection import inspect_corpus
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS

AUTO = ModelConfig()
REGRESSION, CLASSIFICATION = ModelConfig(task="regression"), ModelConfig(task="classification")
next_tokens = TASKS["next_token"].targets_from
NEXT_TOKEN = ModelConfig(name="next_token", causal=True)


def column(*values) -> np.ndarray:
    return np.array(values, float)[:, None]


# --- one split ---

DESCRIBED = {
    "scores": ([-1.5, 0.25], False, (), ("scores", ("sentiment",), {})),
    "a named score": ([-1.5, 0.25], False, ("mood",), ("scores", ("mood",), {})),
    "classes": ([2, 0, 2], True, (), ("classes", ("sentiment",), {0: "0", 2: "2"})),
    "named classes": ([2, 0, 2], True, ("sad", "calm", "glad"),
                      ("classes", ("class",), {0: "sad", 1: "calm", 2: "glad"})),
    "a name for the column": ([0, 1], True, ("mood",), ("classes", ("mood",), {0: "0", 1: "1"})),
    "a name for a column of zeros": ([0, 0], True, ("mood",), ("classes", ("mood",), {0: "0"})),
    "negative": ([-1, 0, 1], True, (), ("scores", ("sentiment",), {-1: "-1", 0: "0", 1: "1"})),
    "whole floats": ([1, -3], False, (), ("scores", ("sentiment",), {-3: "-3", 1: "1"})),
    "nearly whole floats": ([1, 2 + 1e-9], False, (), ("scores", ("sentiment",), {})),
    "beyond what a float counts": ([0, 2**60], True, (), ("scores", ("sentiment",), {})),
    "no sample": ([], True, (), ("scores", ("sentiment",), {})),
}
ROWS = {  # one-hot only with one 1 among zeros
    "one_hot": [[[0, 1, 0], [1, 0, 0]]],
    "binary": [[[0, 1, 1], [1, 0, 0]], [[0, 0, 0], [1, 0, 0]]],
    "scores": [[[0, 1, 0.5], [1, 0, 0]],
               [[0, 2, 0], [1, 0, 0]], [[0, -1, 0], [1, 0, 0]], [[1, 5, 3], [7, 1, 1]]],
}


def test_columns_of_labels_are_described():
    cases = [(column(*given), integers, *more) for given, integers, *more in DESCRIBED.values()]
    for kind, tables in ROWS.items():
        wanted = kind, ("0", "1", "2"), {}
        cases += [(np.array(rows, float), i, (), wanted) for rows in tables for i in (True, False)]
    for values, integers, names, wanted in cases:
        found = describe_labels(values, integers=integers, names=names)
        kind = tuple(found[k] for k in ("label_kind", "label_names", "classes"))
        assert kind == wanted, values


def test_more_classes_than_a_model_should_have_are_scores():
    most = np.arange(MOST_CLASSES, dtype=float)
    assert describe_labels(most[:, None], integers=True)["label_kind"] == "classes"
    found = describe_labels(np.append(most, MOST_CLASSES)[:, None], integers=True)
    assert (found["label_kind"], found["classes"]) == ("scores", {})


def test_names_that_fit_neither_columns_nor_classes_are_refused():
    for labels, integers, names in (
        (column(0, 3), True, "abc"),  # class 3 has no name
        (column(0, 1), False, "ab"),  # scores
        (column(-1, 1), True, "ab"),
        (np.zeros((2, 3)), False, "ab"),
        (np.zeros((2, 3)), False, "abcd"),
    ):
        message = rf"{len(names)} label name\(s\) for {labels.shape[1]} column\(s\)"
        with pytest.raises(ValueError, match=message):
            describe_labels(labels, integers=integers, names=tuple(names))


@pytest.mark.parametrize("clash", ["joy_sd", "joy_seed0", "joy_seed12"])
def test_names_that_would_share_a_column_of_predictions_are_refused(clash):
    for labels, integers in ((np.zeros((2, 2)), False), (column(0, 1), True)):
        with pytest.raises(ValueError, match=f"{clash}.* column of 'joy'"):
            describe_labels(labels, integers=integers, names=("joy", clash))
        describe_labels(labels, integers=integers, names=("anger", clash))
        describe_labels(labels, integers=integers, names=("joy", f"{clash}x"))
        for further in (f"{clash}_sd", f"{clash}_seed3_sd"):  # such a column of such a column
            with pytest.raises(ValueError, match=f"{further}.* column of 'joy'"):
                describe_labels(labels, integers=integers, names=("joy", further))


# --- a corpus ---


def corpus_of(**labels) -> Corpus:
    """A corpus of headers alone; labels of a split as (values [N, K], integers, names), or None."""
    headers = {}
    for name, given in labels.items():
        described = {"label_names": ()}
        if given is not None:
            values, integers, *names = given
            described = describe_labels(values, integers=integers, names=names)
        headers[name] = SplitHeader(
            3, {"text": (2, 4)}, {"text": "float32"}, frozenset(), has_raw_text=False, **described
        )
    return Corpus(source=Source("c", "f"), digest="d", headers=headers, ids={}, read=None)


INTS = (column(0, 1, 3), True)
FLOATS = (column(0.5, 1, -2), False)
WHOLE = (column(-2, 0, 1), False)
ONE_HOT = (np.eye(3), False)
RATINGS = (np.array([[1.0, 5, 3], [2, 2, 7]]), False)


@pytest.mark.parametrize(
    ("model", "labels", "expected"),
    [
        (AUTO, FLOATS, ("regression", ("sentiment",), ())),
        (AUTO, WHOLE, ("regression", ("sentiment",), ())),
        (AUTO, RATINGS, ("regression", ("0", "1", "2"), ())),
        (AUTO, INTS, ("classification", ("0", "1", "3"), (0, 1, 3))),
        (AUTO, ONE_HOT, ("classification", ("0", "1", "2"), ())),
        (REGRESSION, INTS, ("regression", ("sentiment",), ())),
        (REGRESSION, ONE_HOT, ("regression", ("0", "1", "2"), ())),
        (CLASSIFICATION, WHOLE, ("classification", ("-2", "0", "1"), (-2, 0, 1))),
        (CLASSIFICATION, INTS, ("classification", ("0", "1", "3"), (0, 1, 3))),
        (NEXT_TOKEN, INTS, ("next_token", ("negative_log_likelihood", "tokens"), ())),
    ],
)
def test_the_task_follows_from_the_labels_and_the_setting(model, labels, expected):
    for corpus in (corpus_of(train=labels), corpus_of(train=labels, valid=labels, test=None)):
        assert label_kind(corpus, model) == LabelKind(*expected)


def test_splits_that_disagree_are_scores_and_no_classes():
    for train, test in ((INTS, FLOATS), (FLOATS, INTS), (INTS, WHOLE), (ONE_HOT, RATINGS)):
        assert label_kind(corpus_of(train=train, test=test), AUTO).kind == "regression"
    said = "model.task = classification: the labels of c are no cl"
    for train, test in ((FLOATS, None), (FLOATS, INTS), (RATINGS, None), (RATINGS, ONE_HOT)):
        with pytest.raises(UserError, match=said):
            label_kind(corpus_of(train=train, test=test), CLASSIFICATION)
    with pytest.raises(UserError, match="every label is of the same class, '4': .*task=regression"):
        label_kind(corpus_of(train=(column(4, 4), True), test=(column(4), True)), AUTO)


def test_classes_of_any_split_count_each_with_its_name():
    few, more = (column(7, 7), True), (column(1, 3), True)
    found = label_kind(corpus_of(train=few, test=more), AUTO)
    assert found == LabelKind("classification", ("1", "3", "7"), (1, 3, 7))
    names = ("sad", "calm", "glad")
    of_names = corpus_of(train=(column(0, 0), True, *names), test=(column(1, 0), True, *names))
    assert label_kind(of_names, AUTO) == LabelKind("classification", names, (0, 1, 2))
    for zeros in ("train", "valid", "test"):  # a column's name is no class, even of zeros alone
        labels = {s: (column(0, 1, 2), True, "mood") for s in ("train", "valid", "test")}
        labels[zeros] = (column(0, 0, 0), True, "mood")
        assert label_kind(corpus_of(**labels), AUTO).names == ("0", "1", "2")
        assert label_kind(corpus_of(**labels), REGRESSION).names == ("mood",)


# --- targets ---


def spec_of(kind: str, *names: str) -> CorpusSpec:
    return CorpusSpec(("text",), (4,), (2,), kind, names)


def test_classes_are_counted_from_0_in_their_order():
    spec = spec_of("classification", "1", "3", "7")
    found = as_targets(column(7, 1, 3, 3), spec, (1, 3, 7))
    np.testing.assert_array_equal(found, column(2, 0, 1, 1), strict=True)
    spec = spec_of("classification", "a", "b", "c")
    one_hot = np.array([[0, 0, 1], [1, 0, 0]], float)
    np.testing.assert_array_equal(as_targets(one_hot, spec, ()), column(2, 0), strict=True)


@pytest.mark.parametrize(
    ("labels", "spec", "classes"),
    [
        (column(1, 2), spec_of("classification", "1", "3"), (1, 3)),  # a class unknown
        (column(1, 1.5), spec_of("classification", "1", "2"), (1, 2)),
        (np.eye(2), spec_of("classification", "0", "1"), (0, 1)),
        (column(0, 1), spec_of("classification", "a", "b"), ()),
        (np.array([[1.0, 1.0]]), spec_of("classification", "a", "b"), ()),
        (np.array([[1.0, 5.0]]), spec_of("classification", "a", "b"), ()),  # ratings, not one-hot
        (np.zeros((2, 3)), spec_of("regression", "a", "b"), ()),
        (np.zeros((2, 2)), spec_of("regression", "a"), ()),
    ],
)
def test_labels_of_another_kind_are_left_out_with_a_warning(labels, spec, classes, caplog):
    assert as_targets(labels, spec, classes) is None
    (record,) = caplog.records
    assert f"{spec.label_kind} of {', '.join(spec.label_names)}" in record.getMessage()


def test_the_next_token_is_that_of_the_next_step_if_both_are_valid():
    ids = np.array([[4, 5, 6, 7, 8], [4, 5, 6, 7, 8], [4, 5, 6, 7, 8], [4, 0, 6, 7, 8]])
    mask = np.array([[1, 1, 0, 1, 1], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 0]], bool)
    expected = [[5, -1, -1, 8, -1], [-1] * 5, [-1] * 5, [0, 6, 7, -1, -1]]
    np.testing.assert_array_equal(next_tokens(ids, mask), np.array(expected, float), strict=True)
    np.testing.assert_array_equal(next_tokens(ids[:, :1], mask[:, :1]), np.full((4, 1), -1.0))


# --- the native archive ---


def a_split(labels=None, masks=None, **features) -> Split:
    features = features or {"text": np.ones((4, 2, 3))}
    size = len(next(iter(features.values())))
    ids = np.array([f"s{i}" for i in range(size)], np.str_)
    return Split(ids, features, masks or {}, labels)


@pytest.fixture
def opened(tmp_path):
    """Writes splits as they are, labels as their type says, and opens them."""

    def call(label_names=(), **splits: Split) -> Corpus:
        arrays = {"label_name": np.array(label_names)} if len(label_names) else {}
        for name, split in splits.items():
            arrays[f"{name}/id"] = split.ids
            arrays |= {f"{name}/{m}": x for m, x in split.features.items()}
            arrays |= {f"{name}/{m}_mask": x for m, x in split.masks.items()}
            arrays |= {} if split.labels is None else {f"{name}/label": split.labels}
        np.savez(tmp_path / "c.npz", **arrays)
        return open_corpus(tmp_path / "c.npz")

    return call


@pytest.mark.parametrize("dtype", [np.int8, ">i4", np.uint64])
def test_whole_numbers_of_two_axes_are_token_ids(dtype, opened):
    ids = np.array([[1, 2, 0], [3, 0, 5], [0, 0, 0], [0, 7, 0]], dtype)
    corpus = opened(train=a_split(text=ids), test=a_split(text=ids[:, :2]))
    header = corpus.headers["train"]
    assert (header.shapes, header.dtypes) == ({"text": (3, 0)}, {"text": np.dtype(dtype).name})
    assert corpus.width("text") == 0 and corpus.summary()["widths"] == {"text": 0}
    np.testing.assert_array_equal(corpus.split("train").features["text"], ids, strict=True)
    preparation = fit(corpus, DataConfig(), AUTO)
    spec = preparation.spec
    assert (spec.widths, spec.lengths, spec.vocabularies) == ((0,), (3,), (8,))
    found, repairs = prepare(corpus.split("train"), preparation)
    # 0 is padding before the first and after the last other id, and a token between them.
    np.testing.assert_array_equal(
        found.features["text"],
        np.array([[1, 2, 0], [3, 0, 5], [0, 0, 0], [7, 0, 0]], np.int32),
        strict=True,
    )
    np.testing.assert_array_equal(
        found.masks["text"], np.array([[1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0]], bool)
    )
    assert repairs == {}


def test_ids_without_a_row_become_padding_and_are_counted(opened):
    train = np.array([[1, 4, 2], [3, 1, -1]])
    test = np.array([[5, 4, 9], [-1, 2, -7], [9, 9, 9]])
    corpus = opened(train=a_split(text=train), test=a_split(text=test))
    preparation = fit(corpus, DataConfig(), AUTO)
    assert preparation.spec.vocabularies == (5,)
    for refused in (check_split, prepare):
        assert refusal(refused, corpus.split("test"), preparation) == (
            f"{corpus.path}: test: 6 stored steps of 'text' that are not zero would not be read, "
            "which would leave 1 of 3 samples without it: look for a mistake in its masks, lengths "
            "or token ids, or accept it with --config.data.allow_loss=true."
        )
    preparation = dataclasses.replace(preparation, allow_loss=True)
    found, repairs = prepare(corpus.split("test"), preparation)
    np.testing.assert_array_equal(found.features["text"], [[4, 0, 0], [2, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(found.masks["text"], found.features["text"] > 0)
    # An id of -1 is padding: repaired, but no loss.
    lost = {"lost_steps": 6, "emptied_samples": 1}
    assert repairs == {"text": {"unknown_ids": 7, **lost}}
    inspected = inspect_corpus(corpus, DataConfig())["splits"]
    assert inspected["test"]["lost"] == {"text": {"steps": 6, "samples": 3, "emptied": 1, "of": 3}}
    assert inspected["train"]["lost"] == {}
    found, repairs = prepare(corpus.split("train"), preparation)
    np.testing.assert_array_equal(found.features["text"], [[1, 4, 2], [3, 1, 0]])
    assert repairs == {"text": {"unknown_ids": 1}}


def test_steps_that_ids_pad_by_minus_1_do_not_make_a_sequence_longer(opened):
    train, test = np.full((2, 6), -1), np.full((2, 9), -1)
    train[:, :2], test[:, 3:5] = [[1, 2], [2, 3]], [[2, 1], [3, 3]]
    corpus = opened(train=a_split(text=train), test=a_split(text=test))
    preparation = fit(corpus, DataConfig(), AUTO)
    assert preparation.spec.lengths == (2,)
    check_split(corpus.split("test"), preparation)
    found, _ = prepare(corpus.split("test"), preparation)
    np.testing.assert_array_equal(found.features["text"], test[:, 3:5])
    assert found.masks["text"].all()
    # An explicit mask decides which ids count.
    ids = np.array([[0, 9, 3], [2, 0, 0]])
    mask = np.array([[1, 0, 1], [1, 1, 0]], bool)
    corpus = opened(train=a_split(text=ids, masks={"text": mask}))
    preparation = fit(corpus, DataConfig(), AUTO)
    assert preparation.spec.vocabularies == (4,)
    found, repairs = prepare(corpus.split("train"), preparation)
    np.testing.assert_array_equal(found.features["text"], [[0, 0, 3], [2, 0, 0]])
    np.testing.assert_array_equal(found.masks["text"], mask)
    assert repairs == {"text": {"unknown_ids": 0, "hidden_steps": 1}}  # 9, which is counted


def test_token_ids_that_no_table_can_hold_are_refused(opened):
    corpus = opened(train=a_split(text=np.array([[10**6 - 1]], np.uint64)))
    assert fit(corpus, DataConfig(), AUTO).spec.vocabularies == (10**6,)
    for largest in (10**6, 2**63):
        corpus = opened(train=a_split(text=np.array([[1, largest]], np.uint64)))
        said = f"token ids of 'text' reach {largest}; .* 1000000 rows"
        with pytest.raises(UserError, match=said):
            fit(corpus, DataConfig(), AUTO)
    with pytest.raises(UserError, match=r"train/text is bool of shape \(4, 3\)"):
        opened(train=a_split(text=np.ones((4, 3), bool)))
    with pytest.raises(UserError, match="train/text has no steps"):
        opened(train=a_split(text=np.ones((4, 0), int)))
    corpus = opened(train=a_split(text=np.array([[1, 2]])))
    with pytest.raises(UserError, match="data.standardize names 'text', whose token ids"):
        fit(corpus, DataConfig(standardize=("text",)), AUTO)
    assert fit(corpus, DataConfig(standardize=("auto",)), AUTO).statistics == {}


def test_ids_in_one_place_and_features_in_another_are_refused(opened):
    ids, features = a_split(text=np.ones((4, 2), int)), a_split(text=np.ones((4, 2, 3)))
    with pytest.raises(UserError, match="test/text is 3 wide, but train/text holds token ids"):
        opened(train=ids, test=features)
    with pytest.raises(UserError, match="test/text holds token ids, but train/text is 3 wide"):
        opened(train=features, test=ids)
    of_ids = fit(opened(train=ids), DataConfig(), AUTO)
    of_features = fit(opened(train=features), DataConfig(), AUTO)
    with pytest.raises(UserError, match="'text' is 3 wide here, .* trained on token ids"):
        prepare(features, of_ids)
    with pytest.raises(UserError, match="'text' holds token ids here, .* trained on 3 features"):
        prepare(ids, of_features)


def test_names_of_columns_are_read(opened):
    rng = np.random.default_rng(0)
    splits = {s: a_split(rng.normal(size=(4, 3))) for s in ("train", "valid", "test")}
    corpus = opened(("glad", "sad", "größer 更"), **splits)
    for name, split in splits.items():
        header = corpus.headers[name]
        assert (header.label_names, header.label_kind) == (("glad", "sad", "größer 更"), "scores")
        np.testing.assert_array_equal(corpus.split(name).labels, split.labels, strict=True)
    assert corpus.digest != opened(("glad", "sad", "other"), **splits).digest
    assert opened(**splits).headers["train"].label_names == ("0", "1", "2")


@pytest.mark.parametrize(("shape", "dtype"), [((4,), np.int64), ((4, 1), np.uint8)])
def test_names_of_classes_are_read(shape, dtype, opened):
    labels = np.array([0, 2, 1, 2], dtype).reshape(shape)
    corpus = opened(("sad", "calm", "glad", "absent"), train=a_split(labels))
    header = corpus.headers["train"]
    assert (header.label_kind, header.label_names) == ("classes", ("class",))
    assert header.classes == {0: "sad", 1: "calm", 2: "glad", 3: "absent"}
    np.testing.assert_array_equal(corpus.split("train").labels, column(0, 2, 1, 2), strict=True)
    preparation = fit(corpus, DataConfig(), AUTO)
    assert preparation.spec.label_names == ("sad", "calm", "glad", "absent")
    assert preparation.classes == (0, 1, 2, 3)
    found, _ = prepare(corpus.split("train"), preparation)
    np.testing.assert_array_equal(found.labels, column(0, 2, 1, 2))


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (np.array([0, 2, 1]), ("sad", "calm", "glad", "absent")),
        (np.array([0, 2, 5]), ()),
        (np.array([0, 2, 5]), ("mood",)),
        (np.array([[0.5, 2.0], [1.0, -1.0]]), ("sad", "glad")),
        (np.array([[0.5, 2.0], [1.0, -1.0]]), ()),
        (np.eye(3), ("a", "b", "c")),
        (np.eye(3), ()),
        (np.array([0.0, 1.0]), ()),
        (np.array([0.0, 1.0]), ("mood",)),
        (np.array([-1, 1]), ("mood",)),
    ],
)
def test_labels_and_their_names_survive_being_written_again(labels, names, opened, tmp_path):
    ids = np.arange(2 * len(labels)).reshape(-1, 2)
    corpus = opened(names, train=a_split(labels, text=ids), test=a_split(None, text=ids))
    save_native(tmp_path / "again.npz", corpus)
    again = open_corpus(tmp_path / "again.npz")
    assert again.headers == corpus.headers
    assert label_kind(again, AUTO) == label_kind(corpus, AUTO)
    for name in corpus.headers:
        one, other = corpus.split(name), again.split(name)
        np.testing.assert_array_equal(one.features["text"], other.features["text"], strict=True)
        if one.labels is not None:
            np.testing.assert_array_equal(one.labels, other.labels, strict=True)
    assert again.split("test").labels is None


def test_wrong_names_are_refused(tmp_path):
    for names, message in (
        (("a", "a", "b"), "label_name must be different strings of shape"),
        (("a", "b", ""), "label_name has a name that is empty, ends in space"),
        (("a", "b", " c"), "label_name has a name that is empty, ends in space"),
        (("a", "b\nc", "d"), "label_name has a name"),
        (("a", "\x1b[31mb", "c"), "label_name has a name .* not printable"),
        (("a", "b"), r"train/label has 2 label name\(s\) for 3 column\(s\) of labels"),
        (("a", "a_sd", "b"), "train/label has a name 'a_sd', which in predictions is a column"),
        *((bad, "label_name must be different strings") for bad in ([1, 2, 3], [["a", "b", "c"]])),
        *((bad, "label_name must be different strings") for bad in ("a", [b"a", b"b", b"c"])),
        (np.array(["a", "b", "c"], object), "'label_name' holds Python objects"),
    ):
        arrays = {"train/label": np.ones((2, 3)), "train/text": np.ones((2, 1, 1))}
        arrays |= {"train/id": np.array(["a", "b"]), "label_name": np.asarray(names)}
        np.savez(tmp_path / "c.npz", **arrays)
        with pytest.raises(UserError, match=message) as caught:
            open_corpus(tmp_path / "c.npz")
        assert str(tmp_path / "c.npz") in str(caught.value) and "\n" not in str(caught.value)
