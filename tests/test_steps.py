"""Modalities that share their steps still do once they are prepared, however that is done.

Features hold the number of their stored step, counted from 1, so that what was read can be seen.
"""

import dataclasses
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from refusals import refusal

from msajax.config import Config, DataConfig, ModelConfig
from msajax.corpus.corpus import Source, Split
from msajax.corpus.in_memory import corpus_of
from msajax.corpus.steps import describe_groups, find_groups
from msajax.errors import UserError
from msajax.inference import predict as predicting
from msajax.inference.bundle import Bundle, load_bundle, save_bundle
from msajax.preparation.apply import check_split, prepare
from msajax.preparation.fit import fit

PLAIN = DataConfig(standardize=())
MODEL = ModelConfig()
WIDTHS = {"text": 0, "audio": 3, "video": 1}  # 0: token ids


def numbered(masks: dict[str, np.ndarray]) -> Split:
    """A split whose features are the numbers of their stored steps, also where padding is."""
    features = {}
    for m, mask in masks.items():
        steps = np.broadcast_to(np.arange(1, mask.shape[1] + 1), mask.shape)
        width = WIDTHS.get(m, 2)
        features[m] = np.repeat(steps[..., None].astype(float), width, 2) if width else steps
    ids = np.array([f"s{i}" for i in range(len(next(iter(masks.values()))))])
    return Split(ids, features, masks, np.zeros((len(ids), 1)))


def of_patterns(*rows: dict[str, str]) -> Split:
    """Samples as `{modality: "..ab.c"}`: a point is no valid step."""
    return numbered(
        {m: np.array([[c != "." for c in row[m]] for row in rows]) for m in rows[0]}
    )


def steps_read(split: Split, modality: str) -> np.ndarray:
    """The stored step that each prepared step `[N, T]` holds, 0 where it is padding."""
    x, mask = split.features[modality], split.masks[modality]
    x = x[:, :]  # also what is prepared as it is read
    x = x.max(axis=2) if x.ndim == 3 else x
    assert (x[~mask] == 0).all() and (x[mask] > 0).all()
    return x.astype(int)


def pattern(split: Split, modality: str, row: int = 0) -> str:
    """Which stored steps a sample's prepared steps hold: "12.4"."""
    return "".join(str(t) if t else "." for t in steps_read(split, modality)[row])


def through_a_bundle(preparation):
    params = {"head": {"kernel": np.zeros((1, 2), np.float32)}}
    bundle = Bundle(Config(), preparation, [0], [0], params, "digest")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # Preparation alone is looked at: these are parameters of no model.
        patch.setattr("msajax.inference.bundle._require_shapes", lambda *_: None)
        save_bundle(f"{folder}/bundle", bundle)
        return load_bundle(f"{folder}/bundle").preparation


# --- what must hold of every corpus ---


@st.composite
def splits_of_a_corpus(draw) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Masks of train, with a valid step in each modality, and of a split that may lack some."""
    names = draw(st.lists(st.sampled_from(sorted(WIDTHS)), min_size=2, unique=True))
    found = []
    for there in (names, draw(st.lists(st.sampled_from(names), min_size=1, unique=True))):
        shape = draw(st.tuples(st.integers(1, 4), st.integers(2, 7)))
        masks = {m: draw(npst.arrays(bool, shape, elements=st.booleans())) for m in there}
        found.append(masks)
    for mask in found[0].values():
        mask[0, draw(st.integers(0, mask.shape[1] - 1))] = True
    return tuple(found)


@settings(max_examples=80, deadline=None)
@given(
    masks=splits_of_a_corpus(),
    truncate=st.sampled_from(["error", "first", "last", "uniform"]),
    max_len=st.integers(0, 5),
    streams=st.booleans(),
)
def test_a_prepared_step_is_of_one_stored_step_in_every_member(masks, truncate, max_len, streams):
    train, other = map(numbered, masks)
    corpus = corpus_of({"train": train, "test": other}, aligned=tuple(train.features))
    data = dataclasses.replace(PLAIN, truncate=truncate, allow_loss=True)
    fitted = fit(corpus, data, ModelConfig(max_len=max_len))
    preparation = through_a_bundle(fitted)
    assert preparation == fitted and preparation.groups == (fitted.spec.modalities,)
    for split in (train, other):
        # Token ids that train lacks are padding.
        most = {m: preparation.spec.vocabulary(m) or np.inf for m in split.masks}
        valid = [
            {m: {t for t in np.flatnonzero(split.masks[m][i]) + 1 if t < most[m]} for m in most}
            for i in range(len(split))
        ]
        together = [sorted(set.union(*row.values())) for row in valid]
        length = preparation.spec.lengths[0]
        assert set(preparation.spec.lengths) == {length}
        too_long = [steps and steps[-1] - steps[0] >= length for steps in together]
        if truncate == "error" and any(too_long):
            with pytest.raises(UserError, match="are longer than the model's"):
                prepare(split, preparation)
            continue
        found, repairs = prepare(split, preparation, 0 if streams else np.inf)
        assert check_split(split, preparation)[0] == {
            m: {"lost_steps": counts["lost_steps"], "emptied_samples": counts["emptied_samples"]}
            for m, counts in repairs.items()
            if "lost_steps" in counts
        }
        for m, mask in split.masks.items():
            # Truncation was asked for, masks are the file's own: what else is lost has no row.
            unknown = int(mask[:, int(min(most[m], mask.shape[1] + 1)) - 1 :].sum())
            assert repairs.get(m, {}).get("lost_steps", 0) == unknown
            if m in preparation.spec.modalities:  # every stored step holds its number
                assert repairs.get(m, {}).get("hidden_steps", 0) == (~mask).sum()
        read = {m: steps_read(found, m) for m in preparation.spec.modalities}
        for m in set(preparation.spec.modalities) - set(split.features):
            assert not read.pop(m).any()
        for i, steps in enumerate(together):
            chosen = [{int(r[i, k]) for r in read.values()} - {0} for k in range(length)]
            assert all(len(of_one_step) <= 1 for of_one_step in chosen)
            # Wherever one member has a step, so has every member that has it at all.
            for k, of_one_step in enumerate(chosen):
                for t in of_one_step:
                    assert all((r[i, k] == t) == (t in valid[i][m]) for m, r in read.items())
            kept = [t for of_one_step in chosen for t in of_one_step]
            assert kept == sorted(set(kept)) and bool(kept) == bool(steps)
            if steps:
                assert chosen[0]  # compacted, though perhaps not in every member
            if not too_long[i]:
                assert kept == steps  # nothing is lost, and distances stay
                assert [k for k in range(length) if chosen[k]] == [t - steps[0] for t in steps]


@settings(max_examples=30, deadline=None)
@given(masks=splits_of_a_corpus(), truncate=st.sampled_from(["first", "last", "uniform"]))
def test_a_modality_that_moves_alone_is_prepared_as_if_there_were_no_other(masks, truncate):
    splits = dict(zip(("train", "test"), map(numbered, masks), strict=True))
    corpus = corpus_of(splits, aligned=())
    data = dataclasses.replace(PLAIN, truncate=truncate, allow_loss=True)
    together = fit(corpus, data, ModelConfig(max_len=3))
    assert together.groups == ()
    for m in together.spec.modalities:
        alone = fit(corpus, data, ModelConfig(modalities=(m,), max_len=3))
        for split in splits.values():
            one, other = prepare(split, together)[0], prepare(split, alone)[0]
            np.testing.assert_array_equal(one.features[m], other.features[m], strict=True)
            np.testing.assert_array_equal(one.masks[m], other.masks[m], strict=True)


# --- by hand ---


def test_a_voice_that_begins_at_the_third_word_stays_at_the_third_word():
    split = of_patterns({"text": "abcdef..", "audio": "..CDEF.."})
    corpus = corpus_of({"train": split})
    for alignment, audio in (("auto", "..3456"), ("aligned", "..3456"), ("unaligned", "3456")):
        data = dataclasses.replace(PLAIN, alignment=alignment)
        found, _ = prepare(split, fit(corpus, data, MODEL))
        assert (pattern(found, "text"), pattern(found, "audio")) == ("123456", audio)
    # A sample is shifted by the members that it has.
    split = of_patterns(
        {"text": "......", "audio": "..abc.", "video": "......"},
        {"text": ".a....", "audio": "......", "video": "...bc."},
        {"text": "......", "audio": "......", "video": "......"},
    )
    found, _ = prepare(split, fit(corpus_of({"train": split}), PLAIN, MODEL))
    wanted = (["....", "345.", "...."], ["2...", "....", "..45"], ["...."] * 3)
    for row, patterns in enumerate(wanted):
        assert [pattern(found, m, row) for m in WIDTHS] == patterns


@pytest.mark.parametrize(
    "truncate, length, text, audio, wanted_text, wanted_audio",
    [
        ("first", 4, "..ab.cdef.", ".A...BC...", ".34.", "2..."),
        ("first", 4, "....ab.cde", "..ABC.....", "..56", "345."),
        ("last", 4, ".abcdef...", "..A...BC..", "567.", "..78"),
        ("last", 4, "ab.....c..", "AB....D..E", ".8..", "7..10"),
        ("uniform", 3, "a.bcd.....", "..AB..C...", "14.", ".47"),  # of 1 3 4 5 7
        ("uniform", 4, "ab........", ".B....C...", "12..", ".27."),  # 1 2 7 all fit
        ("uniform", 6, "a...e....j", "..c.ef.h..", "1.5..10", ".3568."),
        ("error", 9, "..ab......", ".....B....", "34..", "...6"),
    ],
)
def test_truncation_of_a_group_by_hand(truncate, length, text, audio, wanted_text, wanted_audio):
    split = of_patterns({"text": text, "audio": audio})
    data = dataclasses.replace(PLAIN, truncate=truncate)
    preparation = fit(corpus_of({"train": split}), data, ModelConfig(max_len=length))
    found, _ = prepare(split, preparation)
    wanted = [wanted.ljust(length, ".") for wanted in (wanted_text, wanted_audio)]
    wanted[1] = wanted_audio.ljust(length + wanted_audio.count("10"), ".")
    assert [pattern(found, "text"), pattern(found, "audio")] == wanted


def test_members_share_a_table_as_long_as_their_longest_union_in_train():
    train = of_patterns(
        {"text": "ab....", "audio": "...AB.", "video": "a.....", "eeg": "......"},
        {"text": ".abc..", "audio": "..A...", "video": ".a....", "eeg": "abcdef"},
    )
    for aligned, lengths in (
        (("text", "audio"), (5, 5, 1, 6)),
        (("audio", "video", "text"), (5, 5, 5, 6)),
        (("audio", "eeg"), (3, 6, 1, 6)),
        ((), (3, 2, 1, 6)),
    ):
        corpus = corpus_of({"train": train}, aligned=aligned)
        assert fit(corpus, PLAIN, MODEL).spec.lengths == lengths
        assert fit(corpus, PLAIN, ModelConfig(max_len=4)).spec.lengths == (4, 4, 4, 4)


def test_lengths_are_checked_of_the_union():
    train = of_patterns({"text": "abc.....", "audio": "...A...."})
    fits = of_patterns({"text": "..a.....", "audio": "..A..A.."})
    longer = of_patterns({"text": "ab......", "audio": "....AB.."})  # each alone would fit
    preparation = fit(corpus_of({"train": train}), PLAIN, MODEL)
    check_split(fits, preparation)
    for refuse in (check_split, prepare):
        assert refusal(refuse, longer, preparation) == (
            "1 sequence(s) of 'text', 'audio', aligned, are longer than the model's 4 steps, the "
            "first that of 's0' with 6: --config.data.truncate=first, last or uniform keeps as "
            "many of each, at prediction too (in Python bundle.with_data(truncate='last')); a "
            "model that is trained with a larger model.max_len reads more."
        )


# --- which modalities ---


def corpus_with(aligned=None, **splits: dict[str, int]):
    """A corpus whose modalities have so many stored steps, by split."""
    return corpus_of(
        {
            name: numbered({m: np.ones((2, t), bool) for m, t in steps.items()})
            for name, steps in splits.items()
        },
        source=Source("c", "f"),
        aligned=aligned,
    )


T4 = {"text": 4, "audio": 4, "video": 4}


@pytest.mark.parametrize(
    "train, test, wanted",
    [
        (T4, T4, (("text", "audio", "video"),)),
        (T4, {"text": 6, "audio": 6, "video": 6}, (("text", "audio", "video"),)),
        ({**T4, "video": 5}, {**T4, "video": 5}, (("text", "audio"),)),
        ({**T4, "video": 5}, T4, (("text", "audio"),)),
        (T4, {**T4, "video": 5}, (("text", "audio"),)),
        (T4, {"audio": 5, "video": 5}, (("text", "audio", "video"),)),  # no split disagrees
        (T4, {"audio": 5, "video": 6}, (("text", "audio"),)),
        ({"text": 4, "audio": 7, "video": 7}, {"video": 3}, (("audio", "video"),)),
        ({**T4, "audio": 5, "eeg": 5}, {"text": 1}, (("text", "video"), ("audio", "eeg"))),
        ({"text": 1, "audio": 1, "video": 1}, {"text": 1}, ()),  # a step is no time
        (T4, {"text": 1, "audio": 1, "video": 1}, ()),
        ({"text": 2, "audio": 3, "video": 4}, {"text": 2}, ()),
        ({"text": 4}, {"text": 4}, ()),
    ],
)
def test_without_a_word_of_the_format_equal_numbers_of_steps_decide(train, test, wanted):
    corpus = corpus_with(train=train, test=test)
    assert fit(corpus, PLAIN, MODEL).groups == wanted
    unaligned = dataclasses.replace(PLAIN, alignment="unaligned")
    assert fit(corpus, unaligned, MODEL).groups == ()


def test_what_the_format_says_goes_before_numbers_of_steps():
    everything = (("text", "audio", "video"),)
    for aligned, wanted in (
        ((), ()),
        (("video", "text"), (("text", "video"),)),
        (("audio",), ()),
        (everything[0], everything),
    ):
        corpus = corpus_with(aligned, train=T4)
        for alignment, groups in (("auto", wanted), ("aligned", everything), ("unaligned", ())):
            data = dataclasses.replace(PLAIN, alignment=alignment)
            assert fit(corpus, data, MODEL).groups == groups
    one_step = corpus_with(("text", "audio"), train=dict.fromkeys(T4, 1))
    assert fit(one_step, PLAIN, MODEL).groups == (("text", "audio"),)


def test_what_cannot_be_aligned_is_refused_by_name():
    data = dataclasses.replace(PLAIN, alignment="aligned")
    uneven = {**T4, "audio": 9}
    for splits in ({"train": uneven}, {"train": T4, "test": uneven}):
        corpus = corpus_with(**splits)
        assert refusal(fit, corpus, data, MODEL) == (
            f"data.alignment = aligned: c: {list(splits)[-1]}: text, audio, video have 4, 9, 4 "
            "steps; auto aligns only what shares its steps, unaligned nothing."
        )
        assert fit(corpus, data, ModelConfig(modalities=("text", "video"))).groups == (
            ("text", "video"),
        )


@pytest.mark.parametrize("alignment", ["auto", "aligned"])
def test_text_made_of_transcripts_moves_alone(alignment):
    split = of_patterns({"text": "...abc", "audio": "..ab..", "video": "...ab."})
    split = dataclasses.replace(split, raw_text=np.array(["one two three four five six seven"]))
    corpus = corpus_of({"train": split}, aligned=("text", "audio", "video"))
    data = DataConfig(standardize=(), text="words", min_count=1, alignment=alignment)
    preparation = fit(corpus, data, MODEL)
    assert preparation.groups == (("audio", "video"),)
    assert preparation.spec.lengths == (7, 3, 3)
    found, _ = prepare(split, preparation)
    assert found.masks["text"].all()
    assert [pattern(found, m) for m in ("audio", "video")] == ["34.", ".45"]


def test_what_is_aligned_is_told_with_the_reason():
    for aligned, alignment, said in (
        (None, "auto", "text + audio + video (by their numbers of stored steps)"),
        (("text", "video"), "auto", "text + video (as the corpus says)"),
        ((), "auto", "none (as the corpus says)"),
        ((), "aligned", "text + audio + video (data.alignment = aligned)"),
        (None, "unaligned", "none (data.alignment = unaligned)"),
    ):
        data = dataclasses.replace(PLAIN, alignment=alignment)
        corpus = corpus_with(aligned, train=T4)
        assert describe_groups(*find_groups(corpus, tuple(T4), data)) == said
    corpus = corpus_with(train={"text": 4, "audio": 4, "eeg": 5, "gaze": 5})
    told = describe_groups(*find_groups(corpus, corpus.modalities, PLAIN))
    assert told == "text + audio; eeg + gaze (by their numbers of stored steps)"
    alone = find_groups(corpus, ("text",), dataclasses.replace(PLAIN, alignment="aligned"))
    assert describe_groups(*alone) == "none (fewer than two could be)"


# --- corpora that do not fit the model, and prediction ---


def bundle_of(corpus, data=PLAIN) -> Bundle:
    config = Config(data=data, model=ModelConfig(model_dim=8, num_heads=2, ff_dim=8))
    preparation = fit(corpus, data, config.model)
    return Bundle(config, preparation, [0], [0], {"w": np.zeros((1, 1), np.float32)}, "digest")


@pytest.fixture
def predicted(monkeypatch) -> list[Split]:
    """The prepared splits that a model would have been given by `predict_corpus`."""
    found: list[Split] = []

    class Keeper:
        def score(self, split, name):
            found.append(split)
            return np.zeros((1, len(split), 1)), np.zeros((1, len(split), 1))

    monkeypatch.setattr("msajax.inference.bundle.make_scorer", lambda *_: Keeper())
    monkeypatch.setattr(predicting, "write_predictions", lambda *_: None)
    return found


def test_members_with_unequal_steps_are_refused_at_prediction(predicted):
    bundle = bundle_of(corpus_with(train=T4))
    asked = bundle, corpus_with(test={**T4, "audio": 3}), "all", "out.csv"
    assert refusal(predicting.predict_corpus, *asked) == (
        "Modalities text, audio, video have 4, 3, 4 steps here, but the model was trained with "
        "them aligned, step by step: give it a corpus that is, or train with data.alignment = "
        "unaligned."
    )
    predicting.predict_corpus(bundle, corpus_with(test={"text": 4, "video": 4}), "all", "out.csv")
    unaligned = dataclasses.replace(PLAIN, alignment="unaligned")
    free = bundle_of(corpus_with(train=T4), unaligned)
    predicting.predict_corpus(free, corpus_with(test={**T4, "audio": 3}), "all", "out.csv")
    assert [split.masks["audio"].sum() for split in predicted] == [0, 2 * 3]


def test_prediction_moves_the_members_of_the_bundle_as_one(predicted):
    bundle = bundle_of(corpus_with(train=T4))
    corpus = corpus_of({"test": of_patterns({"text": "..ab", "audio": ".A..", "video": "...b"})})
    assert predicting.predict_corpus(bundle, corpus, "test", "out.csv") == 1
    assert [pattern(predicted[0], m) for m in WIDTHS] == [".34.", "2...", "..4."]


def test_text_embedded_at_prediction_is_in_no_group(predicted, tmp_path: pathlib.Path):
    vectors = tmp_path / "glove.txt"
    vectors.write_text("one 1 1\ntwo 2 2\nthree 3 3\n")
    ones = {m: np.ones((2, 5, 2)) for m in ("text", "audio", "video")}
    train = Split(np.array(["a", "b"]), ones, {}, np.zeros((2, 1)))
    bundle = bundle_of(corpus_of({"train": train}))
    assert bundle.preparation.groups == (("text", "audio", "video"),)
    x = np.arange(1.0, 6)[None, :, None] * np.ones((1, 5, 2))
    spoken = Split(
        np.array(["c"]),
        {"audio": x, "video": x},
        {
            "audio": np.array([[0, 0, 1, 1, 0]], bool),
            "video": np.array([[0, 1, 1, 0, 0]], bool),
        },
        raw_text=np.array(["one two three"]),
    )
    read = corpus_of({"test": spoken})
    predicting.predict_corpus(bundle, read, "all", "out.csv", glove_path=str(vectors))
    (found,) = predicted
    assert [pattern(found, m) for m in ("text", "audio", "video")] == ["123..", ".34..", "23..."]


def test_a_corpus_that_says_it_is_not_aligned_is_warned_of(predicted, caplog):
    bundle = bundle_of(corpus_with(train=T4))
    for aligned, count in ((None, 0), (("audio", "text", "video"), 0), (("text",), 1), ((), 1)):
        caplog.clear()
        predicting.predict_corpus(bundle, corpus_with(aligned, test=T4), "all", "out.csv")
        told = [r.getMessage() for r in caplog.records]
        wanted = (
            "c says that not all of text, audio, video share their steps; the model was trained "
            "with them aligned."
        )
        assert told == [wanted] * count
