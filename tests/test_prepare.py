"""Preparation against small computations written another way, and what it must never depend on."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from msajax.config import DataConfig, ModelConfig
from msajax.corpus import in_memory, on_demand
from msajax.corpus.corpus import Corpus, Source, Split
from msajax.corpus.steps import step_mask
from msajax.errors import UserError
from msajax.preparation import lost as losing
from msajax.preparation.apply import check_split, prepare
from msajax.preparation.fit import fit
from msajax.preparation.lost import count_lost, describe_counts, say_lost, say_repairs

PLAIN = DataConfig(standardize=())
STANDARD = DataConfig(clip=0.0)
MODEL = ModelConfig()
QUICK = settings(max_examples=80, deadline=None)


def a_split(features, masks=None, labels=None, first_id=0) -> Split:
    size = len(next(iter(features.values())))
    ids = np.array([f"s{first_id + i}" for i in range(size)])
    return Split(ids, features, masks or {}, np.zeros((size, 1)) if labels is None else labels)


def corpus_of(**splits: Split) -> Corpus:
    return in_memory.corpus_of(splits, source=Source("c", "f"))


def prepared(split: Split, data: DataConfig = PLAIN, model: ModelConfig = MODEL, name="text"):
    """Features, mask and repairs of one modality, fitted on the split itself."""
    found, repairs = prepare(split, fit(corpus_of(train=split), data, model))
    return found.features[name], found.masks[name], repairs


def letters(text: str) -> tuple[np.ndarray, np.ndarray]:
    """ "..ab.c" -> features [1, 6, 1], a valid step's being its letter, and the mask [1, 6]."""
    codes = np.array([[ord(c) for c in text]], np.float64)
    return codes[..., None], codes != ord(".")


def read_letters(x: np.ndarray, mask: np.ndarray) -> str:
    assert (x[~mask] == 0).all()
    return "".join(
        chr(int(v)) if kept else "." for v, kept in zip(x[0, :, 0], mask[0], strict=True)
    )


masks_of_any_shape = npst.arrays(
    bool, st.tuples(st.integers(1, 5), st.integers(1, 7)), elements=st.booleans()
).filter(lambda mask: mask.any())


# --- masks and compaction ---


@QUICK
@given(mask=masks_of_any_shape, seed=st.integers(0, 2**16))
def test_the_first_valid_step_moves_to_0_and_distances_stay(mask, seed):
    x = np.random.default_rng(seed).normal(size=(*mask.shape, 2))
    x[~mask] = np.nan
    out, kept, repairs = prepared(a_split({"text": x}, {"text": mask}))

    valid = [[t for t in range(mask.shape[1]) if row[t]] for row in mask]
    length = max(steps[-1] - steps[0] + 1 for steps in valid if steps)
    wanted, wanted_mask = np.zeros((len(mask), length, 2)), np.zeros((len(mask), length), bool)
    for row, steps in enumerate(valid):
        for t in steps:
            wanted[row, t - steps[0]] = x[row, t]
            wanted_mask[row, t - steps[0]] = True
    np.testing.assert_array_equal(kept, wanted_mask)
    np.testing.assert_array_equal(out, wanted.astype(np.float32), strict=True)
    assert repairs.get("text", {}).get("hidden_steps", 0) == (~mask).sum()


@QUICK
@given(
    mask=masks_of_any_shape, seed=st.integers(0, 2**16), junk=st.sampled_from([np.nan, 1e300, 7])
)
def test_padding_content_never_matters(mask, seed, junk):
    x = np.random.default_rng(seed).normal(size=(*mask.shape, 3))
    clean, dirty = np.where(mask[..., None], x, 0), np.where(mask[..., None], x, junk)
    one = prepared(a_split({"eeg": clean}, {"eeg": mask}), STANDARD, name="eeg")
    other = prepared(a_split({"eeg": dirty}, {"eeg": mask}), STANDARD, name="eeg")
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])
    hidden = int((~mask).sum())  # what is not zero is counted, and nothing else is
    counts = {"non_finite": 0, "clipped": 0, "hidden_steps": hidden}
    assert one[2] == {} and other[2] == ({"eeg": counts} if hidden else {})


def test_a_derived_mask_keeps_inner_zero_steps():
    values = {"0": (0, 0), "3": (0, 3), "-": (-1, 0), "z": (-0.0, 0), "N": (np.nan, 0)}
    values["I"] = 0, np.inf
    rows = {"0300-0": "011110", "00000z": "000000", "300003": "111111", "00N000": "001000",
            "000I30": "000110"}
    x = np.array([[values[step] for step in row] for row in rows])
    wanted = np.array([[step == "1" for step in row] for row in rows.values()])
    np.testing.assert_array_equal(step_mask(a_split({"text": x}), "text", True), wanted)
    integers = a_split({"text": np.nan_to_num(x, posinf=1, nan=1).astype(np.int32)})
    np.testing.assert_array_equal(step_mask(integers, "text", True), wanted)


def test_without_mask_from_zeros_every_step_counts():
    x = np.array([[[0.0], [2.0], [0.0]], [[0.0], [0.0], [0.0]]])
    out, kept, _ = prepared(a_split({"text": x}), DataConfig(standardize=(), mask_from_zeros=False))
    assert kept.tolist() == [[True] * 3] * 2
    np.testing.assert_array_equal(out, x)


# --- standardisation ---


def ragged(seed: int, rows: int = 40) -> Split:
    """Audio with a column each: plain, large, tiny, constant, non-finite here and there."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 6, 5)) * [1, 1e5, 1e-4, 0, 1] + [0, 1e3, 0, 7.3, -2]
    x[rng.random(x.shape) < 0.1 * np.array([0, 0, 0, 0, 1])] = np.nan
    x[0, 0, 4] = -np.inf
    mask = rng.random((rows, 6)) < 0.6
    mask[0] = True, True, False, False, False, False
    return a_split({"audio": x}, {"audio": mask})


@QUICK
@given(seed=st.integers(0, 2**16))
def test_statistics_are_those_of_finite_values_in_valid_training_steps(seed):
    train = ragged(seed)
    mean, deviation = fit(corpus_of(train=train), DataConfig(), MODEL).statistics["audio"]
    assert mean.dtype == deviation.dtype == np.float64
    for column in range(5):
        values = train.features["audio"][..., column][train.masks["audio"]]
        values = values[np.isfinite(values)]
        # The exact sum, and the error that adding in float64 may have: the mean may be near 0.
        allowed = len(values) * np.finfo(np.float64).eps * np.abs(values).mean()
        assert abs(mean[column] - math.fsum(values) / len(values)) <= allowed
        wanted = 1.0 if column == 3 else np.std(values)
        np.testing.assert_allclose(deviation[column], wanted, rtol=1e-12)


def test_statistics_do_not_depend_on_the_block_size(monkeypatch):
    train = ragged(3)
    preparation = fit(corpus_of(train=train), DataConfig(), MODEL)
    whole = prepare(train, preparation)
    monkeypatch.setattr(on_demand, "_ROWS", 7)
    again = fit(corpus_of(train=train), DataConfig(), MODEL)
    for one, other in zip(preparation.statistics["audio"], again.statistics["audio"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)
    blocks = prepare(train, preparation)
    np.testing.assert_array_equal(blocks[0].features["audio"], whole[0].features["audio"])
    assert blocks[1] == whole[1] and whole[1]["audio"]["non_finite"] > 10


def test_valid_and_test_do_not_touch_what_is_fitted():
    train = ragged(1)
    alone = fit(corpus_of(train=train), DataConfig(), MODEL)
    wild = a_split({"audio": np.full((3, 90, 5), 1e6), "eeg": np.ones((3, 2, 2))})
    other = fit(corpus_of(train=train, valid=wild, test=ragged(2)), DataConfig(), MODEL)
    assert other.spec == alone.spec
    for one, two in zip(alone.statistics["audio"], other.statistics["audio"], strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("constant", [0.0, 0.1, -7.25, 1e6 + 0.1, 1e-9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_constant_column_becomes_0_and_a_new_value_stays_finite(constant, dtype):
    x = np.full((30, 3, 1), constant, dtype)
    masks = {"audio": np.ones((30, 3), bool)}
    preparation = fit(corpus_of(train=a_split({"audio": x}, masks)), STANDARD, MODEL)
    assert preparation.statistics["audio"][1].tolist() == [1.0]
    out, _ = prepare(a_split({"audio": x}, masks), preparation)
    np.testing.assert_allclose(out.features["audio"], 0, atol=1e-7 * max(1, abs(constant)))
    new, _ = prepare(a_split({"audio": x.astype(np.float64) + 3}, masks), preparation)
    np.testing.assert_allclose(new.features["audio"], 3, rtol=1e-6)


def test_non_finite_values_become_0_after_standardisation_and_are_counted():
    x = np.array([[[2.0], [np.nan], [4.0], [np.nan]], [[np.inf], [-np.inf], [6.0], [0.0]]])
    mask = np.array([[True, True, True, False], [True, True, True, False]])
    out, kept, repairs = prepared(
        a_split({"audio": x}, {"audio": mask}), DataConfig(), name="audio"
    )
    z = np.sqrt(1.5)  # finite and valid: 2, 4, 6; the mean is 4, so 0 stands for 4
    np.testing.assert_allclose(out[..., 0], [[-z, 0, 0], [0, 0, z]], rtol=1e-6)
    counts = {"non_finite": 3, "clipped": 0, "hidden_steps": 1}
    assert kept.all() and repairs == {"audio": counts}
    # A column without finite values:
    x = np.array([[[np.nan, 1.0], [np.inf, 3.0]]])
    out, kept, repairs = prepared(a_split({"audio": x}), DataConfig(), name="audio")
    np.testing.assert_array_equal(out, [[[0, -1], [0, 1]]])
    assert kept.all() and repairs == {"audio": {"non_finite": 2, "clipped": 0}}


def test_values_beyond_a_million_are_no_measurements():
    for values, standardize, wanted in (
        ([1.0, 1e39, 3.0, -1e300], (), [1, 0, 3, 0]),
        ([1.0, 1e39, 3.0, -1e300], ("text",), [-1, 0, 1, 0]),
        ([1.0, 3e38, 1e6, -1.1e6], (), [1, 0, 1e6, 0]),
    ):
        split = a_split({"text": np.array([values])[..., None]}, {"text": np.ones((1, 4), bool)})
        out, _, repairs = prepared(split, DataConfig(standardize=standardize, clip=0.0))
        np.testing.assert_array_equal(out[0, :, 0], np.float32(wanted))
        assert repairs == {"text": {"non_finite": 2, "clipped": 0}}


def test_clipping_is_counted_and_can_be_turned_off():
    # 99 values of 0 and one of 1: mean .01, deviation sqrt(.0099), so 1 -> 9.9499.
    x = np.zeros((100, 1, 1))
    x[42] = 1.0
    split = a_split(
        {"audio": x, "text": x * 500}, {m: np.ones((100, 1), bool) for m in "audio text".split()}
    )
    top = 0.99 / np.sqrt(0.0099)
    for clip, wanted, count in ((9.0, 9.0, 1), (10.0, top, 0), (0.0, top, 0)):
        found, repairs = prepare(split, fit(corpus_of(train=split), DataConfig(clip=clip), MODEL))
        np.testing.assert_allclose(found.features["audio"][42, 0, 0], wanted, rtol=1e-6)
        assert found.features["text"][42, 0, 0] == 500  # not standardised, so not clipped
        assert repairs == ({"audio": {"non_finite": 0, "clipped": count}} if count else {})
    # A value on the bound is not clipped, nor is infinity.
    for values, clip, wanted, counts in (
        ([0.0, 2.0], 1.0, [-1.0, 1.0], {}),
        ([0.0, 1.0, np.inf], 0.5, [-0.5, 0.5, 0], {"audio": {"non_finite": 1, "clipped": 2}}),
    ):
        split = a_split({"audio": np.array([values])[..., None]},
                        {"audio": np.ones((1, len(values)), bool)})
        out, _, repairs = prepared(split, DataConfig(clip=clip), name="audio")
        assert (out[0, :, 0].tolist(), repairs) == (wanted, counts)


def test_standardize_chooses_modalities():
    corpus = corpus_of(train=a_split({m: np.ones((2, 2, 1)) for m in ("eeg", "text", "audio")}))
    for standardize, wanted in (
        (("auto",), {"audio", "eeg"}),
        ((), set()),
        (("auto", "text"), {"text", "audio", "eeg"}),
        (("eeg",), {"eeg"}),
    ):
        preparation = fit(corpus, DataConfig(standardize=standardize), MODEL)
        assert set(preparation.statistics) == wanted


# --- truncation ---


@pytest.mark.parametrize(
    "truncate, length, stored, wanted",
    [
        ("first", 4, "abcdef", "abcd"),
        ("first", 4, "..ab.cdef.", "ab.c"),
        ("first", 3, "a..b..c", "a.."),
        ("first", 6, "..ab.c..", "ab.c.."),
        ("last", 4, "abcdef", "cdef"),
        ("last", 4, "..ab.cdef.", "cdef"),
        ("last", 5, "..ab.cdef.", "cdef."),  # the window begins in a hole: compacted again
        ("last", 3, "a..b..c", "c.."),
        ("last", 6, "..ab.c..", "ab.c.."),
        ("last", 1, "ab.", "b"),
        ("uniform", 3, "abcdefg", "adg"),  # 0 3 6
        ("uniform", 4, ".ab.cdef..", "acdf"),  # of the six valid ones 0 1.67 3.33 5
        ("uniform", 3, ".ab.cdef..", "acf"),  # 0 2.5 5, half to even
        ("uniform", 6, "a.b.c.d.e.f.g", "abcefg"),  # 0 1.2 2.4 3.6 4.8 6
        ("uniform", 5, "a..b....c.d", "abcd."),  # all of them fit: none is lost
        ("uniform", 2, "ab.cd.", "ad"),
        ("uniform", 1, ".ab.cd", "a"),
        ("uniform", 6, "..ab.c..", "ab.c.."),
        ("error", 4, "..ab.c..", "ab.c"),
        ("error", 6, "ab.c", "ab.c.."),  # the table is longer than what is stored
    ],
)
def test_truncation_by_hand(truncate, length, stored, wanted):
    x, mask = letters(stored)
    data = dataclasses.replace(PLAIN, truncate=truncate)
    out, kept, _ = prepared(a_split({"text": x}, {"text": mask}), data, ModelConfig(max_len=length))
    assert read_letters(out, kept) == wanted


@QUICK
@given(
    mask=masks_of_any_shape,
    length=st.integers(1, 8),
    truncate=st.sampled_from(["first", "last", "uniform"]),
)
def test_a_truncated_sequence_begins_valid_and_keeps_its_order(mask, length, truncate):
    steps = np.broadcast_to(np.arange(1.0, mask.shape[1] + 1), mask.shape)[..., None]
    data = dataclasses.replace(PLAIN, truncate=truncate)
    out, kept, _ = prepared(
        a_split({"text": steps}, {"text": mask}), data, ModelConfig(max_len=length)
    )
    assert out.shape == (len(mask), length, 1)
    np.testing.assert_array_equal(kept[:, 0], mask.any(axis=1))
    for row, x, k in zip(mask, out[..., 0], kept, strict=True):
        assert (x[~k] == 0).all()
        assert row[x[k].astype(int) - 1].all()  # only valid steps
        assert (np.diff(x[k]) > 0).all()  # each once, in order
        valid = np.flatnonzero(row) + 1
        if truncate == "uniform" and valid.size and valid[-1] - valid[0] >= length:
            assert k.sum() == min(valid.size, length)  # none is lost for a hole
            assert length == 1 or x[k][-1] == valid[-1]


def test_a_sequence_too_long_for_its_table_is_refused_by_id():
    x, mask = letters("abc.e")
    x, mask = np.repeat(x, 3, axis=0), np.repeat(mask, 3, axis=0)
    mask[0] = True, True, True, False, False
    split = a_split({"text": x}, {"text": mask})
    preparation = fit(corpus_of(train=split), PLAIN, ModelConfig(max_len=4))
    message = (
        r"2 sequence\(s\) of modality 'text' are longer than the model's 4 steps, the first that "
        r"of 's1' with 5: --config\.data\.truncate=first, last or uniform keeps as many of "
        r"each, at prediction too \(in Python bundle\.with_data\(truncate='last'\)\); a model "
        r"that is trained with a larger model\.max_len reads more\.$"
    )
    with pytest.raises(UserError, match=message):
        prepare(split, preparation)
    with pytest.raises(UserError, match=message):
        check_split(split, preparation)


def test_checking_a_split_finds_what_preparing_it_finds_and_reads_no_feature_it_need_not():
    class Unread(np.ndarray):
        def __getitem__(self, key):
            raise AssertionError("features were read")

    def texts(*rows):
        parts = [letters(text) for text in rows]
        x, mask = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return a_split({"text": x}, {"text": mask})

    train, same, longer = texts(".abc.", "a...."), texts("...abc"), texts("ab....", "a.cd..")
    preparation = fit(corpus_of(train=train), PLAIN, MODEL)
    assert preparation.spec.lengths == (3,)
    for split in (same, longer):
        split.features["text"] = split.features["text"].view(Unread)
    assert check_split(same, preparation) == ({}, 0)
    with pytest.raises(UserError, match="1 sequence.* 'text' .* 3 steps, .* 's1' with 4"):
        check_split(longer, preparation)
    for truncate in ("first", "last", "uniform"):
        losses, _ = check_split(longer, dataclasses.replace(preparation, truncate=truncate))
        assert losses == {}  # what truncation leaves out was asked for


@pytest.mark.parametrize("hides", [True, False])
@pytest.mark.parametrize("truncates", [True, False])
@pytest.mark.parametrize("block", [1, 1024])
def test_losses_are_counted_by_what_is_read_whatever_was_meant_to_be(
    hides, truncates, block, monkeypatch
):
    """A compaction that is wrong in each row, of rows of six steps for a table of three."""
    monkeypatch.setattr(losing, "_ROWS", block)
    table = [  # stored, its mask, which stored steps are read; lost: whole, and cut to three steps
        ("abc...", "111...", [0, 1], 1, 1),  # the third one is left out
        (".abc..", ".111..", [0, 1, 2], 1, 1),  # one too early
        ("abcde.", "11111.", [0, 1, 2], 2, 0),
        ("abcdef", "111111", [], 6, 6),  # cutting leaves something
        ("ab.cde", "111.11", [0, 1, 2], 2, 0),  # the mask hides c
        ("......", "111111", [], 0, 0),
    ]
    lost = [row[3 + truncates] for row in table]
    x = np.concatenate([letters(stored)[0] for stored, *_ in table])
    x[x == ord(".")] = 0
    masks = {"text": np.array([[c == "1" for c in mask] for _, mask, *_ in table])}
    source, kept = np.zeros((6, 3), int), np.zeros((6, 3), bool)
    for row, (_, _, read, *_) in enumerate(table):
        source[row, : len(read)], kept[row, : len(read)] = read, True
    split = a_split({"text": x}, masks)
    if not hides:  # a mask that the reader made
        split = dataclasses.replace(split, derived=frozenset({"text"}))
        lost[4] += 1
    found = count_lost(split, masks, {"text": (source, kept)}, truncates=truncates)
    assert found == {"text": (sum(lost), sum(map(bool, lost)), 1, 5)}


def test_repairs_and_losses_are_told_in_words(caplog):
    made = {
        "audio": {"non_finite": 3, "clipped": 17, "lost_steps": 0, "emptied_samples": 0},
        "video": {"non_finite": 0, "clipped": 2},
        "text": {"unknown_ids": 7, "lost_steps": 5, "emptied_samples": 1},
    }
    say_repairs("train", made, 10.0)
    say_lost("train", made, 3, 40)
    say_repairs("valid", {}, 10.0)
    say_lost("valid", {}, 0, 40)
    assert [record.getMessage() for record in caplog.records] == [
        "Repaired in train: audio: 3 value(s) that were not finite, or beyond 1e6, are 0, 17 "
        "value(s) beyond +-10 standard deviations are clipped; video: 2 value(s) beyond +-10 "
        "standard deviations are clipped; text: 7 token id(s) that the model has no row for are "
        "padding.",
        "Lost in train: text: 5 stored step(s) that are not zero are not read, which leaves 1 "
        "sample(s) without it.",
        "train: 3 of 40 have no valid step in any modality: their score is that of an "
        "empty input.",
    ]
    read = {"length_disagrees": 4, "cut_lengths": 1, "clipped_labels": 2}
    assert describe_counts(read) == (
        "4 length(s) end before steps that are not zero, which are kept, 1 length(s) beyond the "
        "stored steps count as all of them, 2 label(s) outside [-3, 3] are clipped"
    )
    with pytest.raises(KeyError, match="bent"):
        describe_counts({"bent": 1})


# --- which modalities ---


def test_the_specification_describes_the_prepared_corpus():
    shapes = {"video": (4, 7), "zeta": (2, 1), "text": (6, 3), "beta": (3, 2)}
    split = a_split({m: np.ones((5, *shape)) for m, shape in shapes.items()})
    spec = fit(corpus_of(train=split), PLAIN, MODEL).spec
    assert spec.modalities == ("text", "video", "beta", "zeta")
    assert spec.widths == (3, 7, 2, 1)
    assert spec.lengths == (6, 4, 3, 2)
    chosen = fit(corpus_of(train=split), PLAIN, ModelConfig(modalities=("zeta", "text"), max_len=9))
    assert (chosen.spec.modalities, chosen.spec.lengths) == (("zeta", "text"), (9, 9))
    found, _ = prepare(split, chosen)
    assert list(found.features) == list(found.masks) == ["zeta", "text"]
    assert found.features["zeta"].shape == (5, 9, 1)


@pytest.mark.parametrize("empty", ["zeros", "not there", "masked"])
def test_a_modality_without_a_valid_training_step_is_left_out_with_one_warning(empty, caplog):
    ones = np.ones((3, 2, 2))
    train, masks = {"text": ones, "audio": ones}, {}
    if empty != "not there":
        train["video"] = ones * (empty == "masked")
    if empty == "masked":
        masks["video"] = np.zeros((3, 2), bool)
    valid = a_split({"text": ones, "audio": ones, "video": ones})
    corpus = corpus_of(train=a_split(train, masks), valid=valid)
    for model in (MODEL, ModelConfig(modalities=("video", "audio", "text"))):
        caplog.clear()
        preparation = fit(corpus, DataConfig(), model)
        assert sorted(preparation.spec.modalities) == ["audio", "text"]
        (warning,) = caplog.records
        assert warning.levelname == "WARNING"
        assert "Modality 'video' has no valid training step" in warning.getMessage()
        assert sorted(prepare(valid, preparation)[0].features) == ["audio", "text"]


def test_a_corpus_without_a_valid_training_step_or_of_another_width_is_refused():
    corpus = corpus_of(train=a_split({"text": np.zeros((3, 2, 2))}))
    with pytest.raises(UserError, match=r"^c: no modality has a valid training step\.$"):
        fit(corpus, PLAIN, MODEL)
    with pytest.raises(UserError, match=r"c has no split 'train'; it has test\."):
        fit(corpus_of(test=a_split({"text": np.ones((3, 2, 2))})), PLAIN, MODEL)
    preparation = fit(corpus_of(train=a_split({"audio": np.ones((3, 2, 74))})), PLAIN, MODEL)
    with pytest.raises(UserError, match="Modality 'audio' is 73 wide here, .* trained on 74 feat"):
        prepare(a_split({"audio": np.ones((3, 2, 73))}), preparation)


def test_a_modality_missing_in_a_split_is_absent_there():
    train = a_split({"text": np.ones((3, 2, 2)), "audio": np.full((3, 4, 5), 2.0)})
    test = a_split({"text": np.ones((6, 2, 2))})
    found, repairs = prepare(test, fit(corpus_of(train=train, test=test), PLAIN, MODEL))
    np.testing.assert_array_equal(
        found.features["audio"], np.zeros((6, 4, 5), np.float32), strict=True
    )
    np.testing.assert_array_equal(found.masks["audio"], np.zeros((6, 4), bool), strict=True)
    assert found.masks["text"].all() and repairs == {}


@pytest.mark.parametrize(
    ("name", "near"), [("vidoe", ""), ("txet", " Did you mean 'text'?")], ids=["far", "near"]
)
@pytest.mark.parametrize("key", ["model.modalities", "data.standardize"])
def test_a_name_that_the_corpus_lacks_is_refused_with_the_names_there_are(key, name, near):
    corpus = corpus_of(train=a_split({m: np.ones((3, 2, 2)) for m in ("eeg", "text")}))
    data = DataConfig(standardize=(name,)) if key.startswith("data") else PLAIN
    model = ModelConfig(modalities=("text", name)) if key.startswith("model") else MODEL
    with pytest.raises(UserError) as caught:
        fit(corpus, data, model)
    there = f"which c does not have: it has text, eeg.{near}"
    assert str(caught.value) == f"{key} names {name!r}, {there}"


# --- what comes out ---


def test_prepared_arrays_are_float32_and_bool():
    for dtype in (np.float16, np.float32, np.float64, np.int8, np.uint16, ">f8"):
        x = np.arange(1, 25).reshape(2, 4, 3).astype(dtype)
        split = a_split({"text": x, "audio": x})
        found, _ = prepare(split, fit(corpus_of(train=split), DataConfig(), MODEL))
        assert {a.dtype for a in found.features.values()} == {np.dtype(np.float32)}
        assert {a.dtype for a in found.masks.values()} == {np.dtype(bool)}
        np.testing.assert_array_equal(found.features["text"], np.arange(1.0, 25).reshape(2, 4, 3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("explicit", [True, False])
def test_what_was_read_is_never_changed_and_ids_and_labels_pass_through(dtype, explicit):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 6, 3)).astype(dtype)
    x[0, 2, 1], x[1, :2] = np.nan, 0
    mask = rng.random((5, 6)) < 0.8
    before, mask_before = x.copy(), mask.copy()
    x.flags.writeable = mask.flags.writeable = False
    split = a_split({"text": x}, {"text": mask} if explicit else {}, rng.normal(size=(5, 1)))
    split = dataclasses.replace(split, raw_text=np.array(list("abcde")))
    data = DataConfig(standardize=("text",), clip=0.5, truncate="last")
    preparation = fit(corpus_of(train=split), data, ModelConfig(max_len=3))
    found, _ = prepare(split, preparation)
    assert found.ids is split.ids and found.labels is split.labels
    assert found.raw_text is split.raw_text
    found.features["text"][:] = 7
    found.masks["text"][:] = True
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(mask, mask_before)
