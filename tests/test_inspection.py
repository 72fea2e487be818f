"""What `inspect` says, against a corpus small enough to count by hand."""

import io
import json
import math
import pathlib
import unicodedata

import numpy as np
import pytest
import scipy.stats
from rich.console import Console

from msajax.cli.inspect import print_corpus
from msajax.config import DataConfig, ModelConfig, SyntheticConfig
from msajax.corpus.corpus import Split
from msajax.corpus.formats import open_corpus
from msajax.corpus.formats.native import save_native
from msajax.corpus.in_memory import corpus_of
from msajax.preparation import inspection
from msajax.preparation.apply import prepare
from msajax.preparation.fit import fit
from msajax.preparation.inspection import (
    inspect_corpus,
    suspect_ids,
    suspect_scales,
    suspect_videos,
    typical_sizes,
)

NAN, INF = math.nan, math.inf
DEFAULT = DataConfig()


def a_split(first_id: int, labels, masks=None, **features) -> Split:
    features = {m: np.array(x) for m, x in features.items()}
    size = len(next(iter(features.values())))
    ids = np.array([f"id{first_id + i}" for i in range(size)])
    masks = {m: np.array(mask, bool) for m, mask in (masks or {}).items()}
    return Split(ids, features, masks, None if labels is None else np.array(labels)[:, None])


def train() -> Split:
    return a_split(
        0,
        [-2.5, 0.5, 1.5, 3.0],
        masks={"text": [[0, 1, 1, 0, 0], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 0, 1, 1]]},
        text=np.arange(40, dtype=np.float16).reshape(4, 5, 2),
        audio=[  # no mask: derived from zeros
            [[0, 5, 1], [0, 5, NAN], [0, 0, 0]],
            [[0, 0, 0], [0, 5, -4], [0, 0, 0]],
            [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
            [[0, 5, INF], [0, 0, 0], [0, 5, 2.5]],
        ],
    )


def valid() -> Split:
    return a_split(2, [0.0, 1.0], text=np.full((2, 8, 2), 3.0), video=np.ones((2, 1, 4), np.int32))


def report_of(tmp_path: pathlib.Path, data: DataConfig = DEFAULT, **splits: Split):
    save_native(tmp_path / "corpus.npz", corpus_of(splits))
    report = inspect_corpus(open_corpus(tmp_path / "corpus.npz"), data)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    return report


def rendered(report) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_corpus(report, console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80 and text.isascii()
    return text


def test_inspection_of_features_by_hand(tmp_path):
    found = report_of(tmp_path, train=train(), valid=valid())["splits"]["train"]["modalities"]
    # Valid steps of rows 0 to 3: 2, 3, 0, 4; first to last: 2, 4, -, 5.
    # Valid values run from row 0, step 1 (2, 3) to row 3, step 4 (38, 39).
    assert found["text"] == {
        "dtype": "float16", "width": 2, "steps": 5, "mask": "explicit", "named_by": None,
        "hidden": 11,  # every value but the first one is not zero
        "absent": 1 / 4, "all_zero": 0.0,
        "valid_steps": {"min": 2.0, "median": 3.0, "mean": 3.0, "max": 4.0},
        "span": {"min": 2.0, "median": 4.0, "mean": 11 / 3, "max": 5.0},
        "leading_padding": 1 / 3, "trailing_padding": 2 / 3, "inner_holes": 2 / 3,
        "padded_steps": 11 / 20, "non_finite": 0, "non_finite_columns": 0,
        "first_non_finite_columns": [], "constant_columns": 0, "range": {"min": 2.0, "max": 39.0},
    }
    # Derived: rows span steps 0-1, 1-1, none, 0-2; the zero step inside row 3 is valid.
    steps = {"min": 1.0, "median": 2.0, "mean": 2.0, "max": 3.0}
    assert found["audio"] == {
        "dtype": "float64", "width": 3, "steps": 3, "mask": "from zeros", "hidden": 0,
        "absent": 1 / 4, "all_zero": 0.0, "valid_steps": steps, "span": steps,
        "leading_padding": 1 / 3, "trailing_padding": 2 / 3, "inner_holes": 0.0,
        "padded_steps": 6 / 12, "non_finite": 2, "non_finite_columns": 1,
        "first_non_finite_columns": [2],
        "constant_columns": 1,  # column 0; column 1 has a zero in the hole
        "range": {"min": -4.0, "max": 5.0},
    }


def test_inspection_of_labels_by_hand_with_floors_from_the_training_labels(tmp_path):
    def labels_of(split: str, **splits) -> dict:
        return report_of(tmp_path, **splits)["splits"][split]["labels"]["sentiment"]

    labels = labels_of("train", train=train(), valid=valid())
    floors = labels.pop("floors")
    assert labels == {
        "count": 4, "min": -2.5, "median": 1.0, "mean": 0.625, "max": 3.0,
        # Squares of -2.5, .5, 1.5, 3: 6.25 + .25 + 2.25 + 9.
        "sd": pytest.approx(math.sqrt(17.75 / 4 - 0.625**2), rel=1e-15),
        # Half to even: -2.5 -> -2, .5 -> 0, 1.5 -> 2.
        "histogram": {"-2": 1, "-1": 0, "0": 1, "1": 0, "2": 1, "3": 1},
    }
    assert floors["constant_0"]["mae"] == 7.5 / 4
    assert floors["train_median"]["mae"] == (3.5 + 0.5 + 0.5 + 2) / 4
    assert floors["majority"]["acc2_has0"] == 3 / 4
    floors = labels_of("valid", train=train(), valid=valid())["floors"]
    assert floors["train_median"]["mae"] == 0.5  # the median is 1, the labels 0 and 1
    assert floors["constant_0"]["mae"] == 0.5
    assert floors["majority"]["acc2_nonzero"] == 1.0
    assert labels_of("valid", valid=valid(), test=valid())["floors"] is None
    unlabelled = a_split(0, None, text=np.ones((4, 2, 2)))
    assert labels_of("valid", train=unlabelled, valid=valid())["floors"] is None


def test_what_is_undefined_is_none_and_says_nothing(tmp_path, recwarn):
    zero = a_split(9, [0.0, 0.0], text=np.zeros((2, 3, 2)), audio=np.full((2, 1, 3), NAN))
    report = report_of(tmp_path, train=train(), test=zero)
    facts = report["splits"]["test"]
    assert facts["labels"]["sentiment"]["floors"]["majority"]["acc2_nonzero"] is None
    assert facts["labels"]["sentiment"]["floors"]["majority"]["acc2_has0"] == 1.0
    text = facts["modalities"]["text"]
    undefined = "valid_steps span leading_padding trailing_padding inner_holes".split()
    undefined += ["constant_columns", "range"]
    assert [text[key] for key in undefined] == [None] * 7
    assert (text["absent"], text["padded_steps"]) == (1.0, 1.0)
    audio = facts["modalities"]["audio"]
    assert (audio["range"], audio["constant_columns"], audio["non_finite"]) == (None, 3, 6)
    rendered(report)
    assert [str(w.message) for w in recwarn] == []


def test_inspection_of_the_whole_corpus(tmp_path, monkeypatch):
    report = report_of(tmp_path, train=train(), valid=valid())
    assert report["path"] == str(tmp_path / "corpus.npz")
    assert report["format"] == "native npz"
    assert report["digest"] == open_corpus(tmp_path / "corpus.npz").digest
    assert report["sizes"] == {"train": 4, "valid": 2}
    assert report["widths"] == {"text": 2, "audio": 3, "video": 4}
    assert report["repeated_ids"] == 2  # id2 and id3
    assert report["repeated_ids_in"] == {"train": 0, "valid": 0, "train/valid": 2}
    assert report["known_corpus"] is None
    assert list(report["splits"]["valid"]["modalities"]) == ["text", "video"]
    assert report["splits"]["valid"]["modalities"]["video"]["dtype"] == "int32"
    assert report["why"] == "the file begins as a zip archive does"
    assert report["task"] == {"kind": "regression", "names": ["sentiment"]}
    # Stored: 4 x 5 x 2 float16 and their mask, 4 x 3 x 3 float64; 2 x 8 x 2 float64, 2 x 4 int32.
    assert report["memory"]["stored"] == 80 + 20 + 288 + 256 + 32
    # Prepared: 4 samples of 5 x 2 and 3 x 3 float32, 2 of 8 x 2 and 1 x 4, and a byte a step.
    assert report["memory"]["prepared"] == 4 * (5 * 9 + 3 * 13) + 2 * (8 * 9 + 17)
    monkeypatch.setattr(inspection, "_BLOCK", 1)  # in blocks of another size the same
    assert report_of(tmp_path, train=train(), valid=valid()) == report


def test_identical_samples_are_counted_within_and_across_splits(tmp_path):
    x = np.arange(1.0, 31).reshape(5, 3, 2)
    padding = np.array([[1, 1, 0]] * 5)
    twice = a_split(0, [0.0] * 5, masks={"text": padding}, text=x[[0, 1, 2, 0, 0]])
    # Another value in the padding, which nobody reads; the mask is a part of what is read.
    other = x[[0, 3, 4, 1, 4]] + np.array([0, 0, 1])[:, None]
    test = a_split(10, [0.0] * 5, masks={"text": padding}, text=other)
    absent = a_split(20, [0.0] * 3, masks={"text": np.zeros((3, 3))}, text=x[:3])
    report = report_of(tmp_path, train=twice, valid=absent, test=test)
    assert report["identical"] == {
        **{"train": 2, "valid": 0, "test": 1},
        **{"train/valid": 0, "train/test": 2, "valid/test": 0},
    }
    told = [warning for warning in report["warnings"] if "identical" in warning]
    assert told == [
        "2 sample(s) of train are identical to an earlier one.",
        "1 sample(s) of test are identical to an earlier one.",
        "2 sample(s) of test are identical to one of train.",
    ]


def test_repeated_ids_are_counted_within_and_across_splits(tmp_path):
    sizes = {"train": 5, "test": 2}
    splits = {s: a_split(0, [0.0] * n, text=np.ones((n, 1, 1))) for s, n in sizes.items()}
    splits["train"].ids[:] = ["a", "", "a", "", "a"]
    splits["test"].ids[:] = ["", "b"]
    report = report_of(tmp_path, **splits)
    assert report["repeated_ids_in"] == {"train": 3, "test": 0, "train/test": 1}
    assert report["repeated_ids"] == 2
    shared = "1 sample(s) of test have the id of one of train: samples may leak."
    assert [warning for warning in report["warnings"] if " id " in warning] == [
        "3 sample(s) of train have the id of an earlier one.", shared
    ]  # fmt: skip
    assert open_corpus(tmp_path / "corpus.npz").describe_shared_ids() == [shared]


def test_what_would_change_results_is_warned_of(tmp_path):
    report = report_of(tmp_path, train=train(), valid=valid())
    assert report["warnings"] == [
        "There is no test split: a run has no test result.",
        "--config.data.folds=4 makes splits of all samples, by video, and tests each of them once.",
        "2 sample(s) of valid have the id of one of train: samples may leak.",
        "1 sample(s) of valid are identical to an earlier one.",
        "train: 1 of 4 has no valid step in any modality: its score is that of an "
        "empty input.",
        "train/text: 11 stored step(s) that are not zero are left out, as its mask says.",
        "train/audio has 2 non-finite value(s) in 1 column(s): preparation sets them to 0.",
        "video has no valid step in train: models leave it out everywhere.",
        "valid/text has up to 8 steps, train only 5: set data.truncate or model.max_len.",
        "audio has no valid step in valid: every sample there lacks it.",
    ]
    lonely = a_split(5, [1.0, 0.5, 2.0], audio=np.array([0.0, 1.0, 0.0])[:, None, None])
    report = report_of(tmp_path, train=lonely, test=lonely)
    assert report["splits"]["train"]["without_any"] == 2
    assert [warning for warning in report["warnings"] if "any modality" in warning] == [
        f"{name}: 2 of 3 have no valid step in any modality: their score is that of an "
        "empty input."
        for name in ("train", "test")
    ]


def apart(aligned=None):
    """Two modalities of six steps: of train, rows 0 and 1 begin apart; of valid, row 0 does.

    A row that lacks one of them begins where the other does.
    """
    patterns = {
        "train": {"text": ["11....", "...1..", ".11...", "......"],
                  "audio": [".111..", "..1...", ".1....", ".....1"]},
        "valid": {"text": [".1....", "......"], "audio": [".....1", "......"]},
    }
    splits = {}
    for name, of in patterns.items():
        masks = {m: [[step == "1" for step in row] for row in rows] for m, rows in of.items()}
        rng, size = np.random.default_rng(len(name)), len(of["text"])
        features = {m: rng.normal(size=(size, 6, d)) for m, d in (("text", 2), ("audio", 3))}
        splits[name] = a_split(10 * len(name), [0.0, 1.0, 2.0, -1.0][:size], masks, **features)
    return corpus_of(splits, aligned=aligned)


def test_aligned_modalities_by_hand():
    report = inspect_corpus(apart(), DEFAULT)
    assert report["alignment"] == {
        "groups": [["text", "audio"]],
        "why": "by their numbers of stored steps",
    }
    found = {name: split["begin_apart"] for name, split in report["splits"].items()}
    assert found == {"train": 2, "valid": 1}
    # From the first step to the last of either: 4, 2, 2, 1 and 5.
    spans = {name: split["aligned_spans"] for name, split in report["splits"].items()}
    assert spans["train"] == {"text + audio": {"min": 1.0, "median": 2.0, "mean": 2.25, "max": 4.0}}
    assert spans["valid"]["text + audio"]["max"] == 5.0
    # Both as long as the longest union: bytes of 2 and 3 features in float32, and of a mask.
    assert report["memory"]["prepared"] == (4 * 4 + 2 * 5) * (4 * 2 + 1 + 4 * 3 + 1)
    lengths = [warning for warning in report["warnings"] if "steps" in warning]
    assert lengths == [
        "valid/text + audio has up to 5 steps, train only 4: set data.truncate or model.max_len."
    ]
    lines = rendered(report).splitlines()
    assert "aligned modalities: text + audio (by their numbers of stored steps)" in lines
    assert "samples in which they begin at different steps: 2 in train, 1 in valid" in lines


@pytest.mark.parametrize("why", ["data.alignment = unaligned", "as the corpus says"])
def test_modalities_that_are_not_aligned_are_told_of_each(why):
    declared = why == "as the corpus says"
    data = DEFAULT if declared else DataConfig(alignment="unaligned")
    report = inspect_corpus(apart(() if declared else None), data)
    assert report["alignment"] == {"groups": [], "why": why}
    for split in report["splits"].values():
        assert (split["begin_apart"], split["aligned_spans"]) == (0, {})
    assert report["memory"]["prepared"] == (4 * 2 + 2) * 9 + (4 * 3 + 2) * 13
    assert not [warning for warning in report["warnings"] if "steps" in warning]
    lines = rendered(report).splitlines()
    assert f"aligned modalities: none ({why})" in lines
    assert not [line for line in lines if "begin at" in line]


def test_labels_off_the_scale_or_missing_are_warned_of(tmp_path):
    outside = a_split(10, [1.0, 5.0], text=np.arange(8.0).reshape(2, 2, 2))
    unlabelled = a_split(20, None, text=np.arange(8.0, 16).reshape(2, 2, 2))
    report = report_of(tmp_path, valid=outside, test=unlabelled)
    assert report["warnings"] == [
        "There is no train split: nothing can be trained on this corpus, only predicted.",
        "data.folds=3 makes splits of the samples of 3 or more videos; here are 2.",
        "valid: sentiment reaches from 1 to 5, outside [-3, 3]: "
        "the accuracies and F1 of sentiment do not suit it.",
        "test has no labels: it can be predicted, not learned or scored.",
    ]
    assert report["splits"]["test"]["labels"] is None
    inside = a_split(30, [1.0, 3.0], text=np.arange(8.0).reshape(2, 2, 2))
    below = a_split(40, [-4.5, 2.0], text=np.arange(8.0).reshape(2, 2, 2))
    told = report_of(tmp_path, train=outside, valid=inside, test=below)["warnings"]
    assert [warning for warning in told if "reaches" in warning] == [
        "train, test: sentiment reaches from -4.5 to 5, outside [-3, 3]: "
        "the accuracies and F1 of sentiment do not suit it."
    ]


def test_a_faultless_corpus_has_no_warning(tmp_path):
    sizes = SyntheticConfig(train=30, valid=9, test=8, widths=(4, 3, 2))
    corpus = open_corpus("synthetic", DataConfig(synthetic=sizes))
    report = inspect_corpus(corpus, DEFAULT)
    assert report["warnings"] == []
    assert "warning: none" in rendered(report)


def test_inspection_of_token_ids_by_hand(tmp_path):
    ids = np.array([[0, 3, 0, 7], [0, 0, 0, 0], [2, 9, 0, 0]])
    split = Split(np.array(["a", "b", "c"]), {"text": ids}, {}, None)
    report = report_of(tmp_path, train=split)
    assert report["widths"] == {"text": 0}
    found = report["splits"]["train"]["modalities"]["text"]
    steps = {"min": 2.0, "median": 2.5, "mean": 2.5, "max": 3.0}
    wanted = {
        "dtype": "int64", "width": 0, "steps": 4, "mask": "from zeros", "absent": 1 / 3,
        "valid_steps": steps, "span": steps, "leading_padding": 1 / 2, "trailing_padding": 1 / 2,
        "inner_holes": 0.0, "padded_steps": 7 / 12, "range": {"min": 0.0, "max": 9.0},
    }
    assert {key: found[key] for key in wanted} == wanted
    assert "text: token ids" in rendered(report)


def test_several_labels_are_described_each_and_classes_have_the_floor_of_their_task(tmp_path):
    labels = np.array([[1.0, -7.0], [2.0, 9e9]])
    split = Split(np.array(["a", "b"]), {"text": np.ones((2, 1, 1))}, {}, labels)
    found = report_of(tmp_path, train=split)["splits"]["train"]["labels"]
    assert found["0"]["histogram"] == {"1": 1, "2": 1}
    assert found["1"]["histogram"] is None  # nine thousand million bins
    assert found["1"]["max"] == 9e9
    assert found["1"]["floors"]["majority"] == {}  # not the scale of sentiment
    assert found["0"]["floors"]["train_median"]["mae"] == 0.5
    split = a_split(0, [0, 2, 2, 1], text=np.arange(16.0).reshape(4, 2, 2))
    report = inspect_corpus(corpus_of({"train": split}, integers=True), DEFAULT)
    (facts,) = report["splits"]["train"]["labels"].values()
    assert facts["floors"] == {"majority": {"accuracy": 0.5}}
    assert report["task"] == {"kind": "classification", "names": ["0", "1", "2"]}
    rendered(report)


def test_a_corpus_is_recognised_by_its_counts():
    for sizes, name in {
        (1284, 229, 686): "CMU-MOSI", (16326, 1871, 4659): "CMU-MOSEI", (1368, 456, 457): "CH-SIMS",
        (15290, 2291, 4832): "CMU-MOSEI", (16327, 1871, 4662): "CMU-MOSEI", (600, 100, 203): "POM",
        (220, 40, 80): "ICT-MMMO", (173, 36, 60): "YouTube", (1284, 229, 685): None,
        (229, 1284, 686): None,
    }.items():
        splits = zip(("train", "valid", "test"), sizes, strict=True)
        ones = {split: a_split(0, None, text=np.ones((size, 1, 1))) for split, size in splits}
        report = inspect_corpus(corpus_of(ones), DEFAULT)
        assert report["known_corpus"] == name
        assert (f"the counts of {name}" if name else "not counts we know") in rendered(report)


def test_non_finite_values_are_those_that_preparation_repairs(tmp_path):
    x, text = np.ones((3, 4, 2)), np.zeros((3, 2, 1))
    x[0, 0], x[1, 2, 1], x[2, 3, 0] = (NAN, 1e39), -1e300, -INF
    text[:, 1, 0] = 5, INF, NAN  # in padding, which makes no sample other than zeros
    masks = {"text": [[1, 0]] * 3}
    report = report_of(tmp_path, train=a_split(0, [0.0] * 3, masks, audio=x, text=text))
    found = report["splits"]["train"]["modalities"]
    assert (found["text"]["all_zero"], found["text"]["non_finite"]) == (1.0, 0)
    corpus = open_corpus(tmp_path / "corpus.npz")
    _, repairs = prepare(corpus.split("train"), fit(corpus, DEFAULT, ModelConfig()))
    assert found["audio"]["non_finite"] == repairs["audio"]["non_finite"] == 4
    assert found["audio"]["range"] == {"min": 1.0, "max": 1.0}


def test_tables_say_the_same_numbers_in_80_columns(tmp_path):
    lines = rendered(report_of(tmp_path, train=train(), valid=valid())).splitlines()
    cells = [line.split() for line in lines]
    assert "samples: 4 train, 2 valid (not counts we know)" in lines
    assert "repeated ids: 0 in train, 0 in valid, 2 in train/valid" in lines
    assert "stored as float16 float64".split() in cells
    assert "valid steps (*) 2, 3, 3, 4 8, 8, 8, 8".split() in cells
    assert "samples without it 25.0 % -".split() in cells  # audio is not in valid
    assert "smallest, largest -4, 5 -".split() in cells
    assert "non-finite values 2 -".split() in cells
    assert "first columns with one 2 -".split() in cells
    assert "rounds to -2 1 0".split() in cells
    assert "floor of mae: training median 1.625 0.500".split() in cells
    assert "floor of acc2_has0: majority class 75.0 % 100.0 %".split() in cells
    bins = [cell[2] for cell in cells if cell[:2] == ["rounds", "to"]]
    assert bins == ["-2", "-1", "0", "1", "2", "3"]
    said = " ".join(" ".join(lines).split())
    assert "warning: 2 sample(s) of valid have the id of one of train: samples may leak." in said
    folder = tmp_path / "[red]"  # brackets are printed as they are
    folder.mkdir()
    assert "[red]" in rendered(report_of(folder, train=train())).replace("\n", "")


# --- real files ---


def test_inspection_recognises_mosi(shared_data):
    report = inspect_corpus(open_corpus(shared_data / "mosi_text_audio.npz"), DEFAULT)
    assert report["sizes"] == {"train": 1284, "valid": 229, "test": 686}
    assert report["known_corpus"] == "CMU-MOSI"
    assert report["widths"] == {"text": 300, "audio": 73}
    train_text = report["splits"]["train"]["modalities"]["text"]
    assert (train_text["dtype"], train_text["steps"]) == ("float16", 20)
    assert train_text["leading_padding"] > train_text["trailing_padding"]
    assert round(train_text["inner_holes"], 2) == 0.21
    floors = report["splits"]["test"]["labels"]["sentiment"]["floors"]
    assert round(floors["constant_0"]["mae"], 3) == 1.417
    assert round(floors["train_median"]["mae"], 3) == 1.456
    assert report["warnings"] == []
    rendered(report)


# --- what is suspected of a corpus ---


EVERY = [0.0, 1.0, 2.0] * 4


def warnings_of(train, valid=EVERY, test=EVERY, *, integers=False, **model) -> list[str]:
    """The warnings on a corpus of these labels, all else faultless."""
    rng = np.random.default_rng(0)
    splits = {}
    for name, labels in {"train": train, "valid": valid, "test": test}.items():
        labels = np.array(labels, float)
        labels = labels[:, None] if labels.ndim == 1 else labels
        ids = np.array([f"{name}{i}[0]" for i in range(len(labels))])
        splits[name] = Split(ids, {"text": rng.normal(size=(len(ids), 2, 3))}, {}, labels)
    corpus = corpus_of(splits, integers=integers)
    return inspect_corpus(corpus, DataConfig(), ModelConfig(**model))["warnings"]


def test_labels_that_do_not_vary_are_told_of():
    scores = list(np.linspace(-2.5, 2.4, 12))
    assert warnings_of([1.5] * 4, scores, [0.5] * 3) == [
        "train: the label sentiment is 1.5 in all 4 samples: there is nothing to learn.",
        "test: the label sentiment is 0.5 in all 3 samples: it has no correlation there.",
    ]
    assert warnings_of(scores, scores, [0.5]) == []  # a single sample cannot vary
    two = np.stack([scores, [7.0] * 12], axis=1)
    assert warnings_of(two, two[:, ::-1], two) == [
        "train: the label 1 is 7 in all 12 samples: there is nothing to learn.",
        "valid: the label 0 is 7 in all 12 samples: it has no correlation there.",
        "test: the label 1 is 7 in all 12 samples: it has no correlation there.",
    ]


def test_classes_stored_as_numbers_are_told_of_with_the_setting():
    for values in ([0, 1, 2], [-1, 1], [1, 2, 3], [0, 1, 2, 3]):
        labels = [values * 6] * 3
        assert warnings_of(*labels) == [
            f"sentiment takes the values {', '.join(map(str, values))} alone, which are learned as "
            "scores: if they are classes, --config.model.task=classification learns them as such."
        ]
        for task in ("classification", "regression"):
            assert warnings_of(*labels, task=task) == []
    # Degrees and few whole labels are not taken for classes.
    for values in ([-3, -2, -1, 0, 1, 2, 3], [1, 1.5, 2], [0, 1, 2.5], list(range(-3, 4, 2))):
        assert warnings_of(values * 6, values * 6, values * 6) == []
    assert warnings_of([0, 1, 2], [1, 2], [0, 2]) == []


def test_classes_that_train_lacks_are_told_of_with_their_samples():
    assert warnings_of([0, 1] * 3, [0, 1, 2], [3, 3, 2, 0], integers=True) == [
        "valid: 1 sample(s) are of class(es) that train lacks (2): nothing learns them.",
        "test: 3 sample(s) are of class(es) that train lacks (2, 3): nothing learns them.",
    ]
    rows = np.eye(3)
    assert warnings_of(rows[[0, 1, 0]], rows[[0, 1]], rows[[2, 2]]) == [
        "test: all 2 samples are of the class 2: none can be told from it there.",
        "test: 2 sample(s) are of class(es) that train lacks (2): nothing learns them.",
    ]
    assert warnings_of(EVERY, [0, 1], [2, 0], integers=True) == []


def test_a_typical_size_is_the_geometric_mean_of_what_is_known_and_not_zero():
    x = np.random.default_rng(0).normal(size=(20, 4, 3))
    mask = np.arange(4) < 2 + np.arange(20)[:, None] % 3
    x[0, 0], x[1, 1], x[2, 0], x[5:, :, 2] = 1e6, np.nan, 0, 0
    values = np.abs(x[mask][:, :2])
    wanted = scipy.stats.gmean(np.where(values > 0, values, np.nan), nan_policy="omit")
    found = typical_sizes(x, mask)
    np.testing.assert_allclose(found[:2], wanted, rtol=1e-13)
    assert np.isnan(found[2])  # too few


def test_scales_that_differ_by_orders_are_told_of_and_others_are_not():
    def told(*factors: float) -> list[str]:
        """Multiplies columns of the test split."""
        splits = {}
        for name, scale in {"train": 1.0, "valid": -1.0, "test": np.array(factors)}.items():
            x = np.full((40, 3, 3), scale) * [3.0, 4000.0, 5.0]
            x[:, 2], x[:, 0, 0] = 0, 1.0 + np.arange(40)  # padding; no two samples are the same
            ids = np.array([f"{name}{i}" for i in range(40)])
            splits[name] = Split(ids, {"audio": x}, {}, np.arange(40.0)[:, None])
        found = inspect_corpus(corpus_of(splits), DataConfig())
        return [warning for warning in found["warnings"] if "scale" in warning]

    assert told(1, 99.9, 1) == told(1, 1 / 99.9, 99.9) == []
    assert told(1, 1, 101) == [  # although another column is 1000 times as large
        "The values of audio differ in scale in column 2: typically 5 in train, 5 in valid, 505 in "
        "test. Were they made in the same way?"
    ]
    assert told(1, 0.001, 0.001) == [
        "The values of audio differ in scale in columns 1, 2: typically 4e+03 in train, 4e+03 in "
        "valid, 4 in test in column 1. Were they made in the same way?"
    ]
    every = suspect_scales({"train": {"a": np.full(9, 1.0)}, "test": {"a": np.full(9, 100.0)}})
    assert len(every) == 1 and "differ in scale in all 9 columns: typically 1 in train" in every[0]


def test_ids_that_differ_in_their_unicode_form_alone_are_told_of():
    nfc = [unicodedata.normalize("NFC", id_) for id_ in ("é1", "ü2", "n3")]
    nfd = [unicodedata.normalize("NFD", id_) for id_ in nfc]
    have = "have, but for its Unicode form (NFC or NFD), the id of"
    across = [f"2 sample(s) of test {have} one of train: samples may leak."]
    assert suspect_ids({"train": nfc, "test": nfd}) == across
    within = [f"1 sample(s) of train {have} an earlier one."]
    assert suspect_ids({"train": [*nfc, nfd[0]], "test": ["É1"]}) == within
    assert suspect_ids({"train": [*nfd, *nfd], "test": nfd}) == []  # equal ids are told elsewhere


def test_videos_with_samples_in_two_splits_are_told_of():
    e = unicodedata.normalize("NFD", "é[1]")
    same = ["17", "whole"]
    found = suspect_videos({"train": ["é[0]", "b_1", *same], "test": [e, "c_1", *same]})
    assert len(found) == 1 and "(1 in train and test, as 'é')" in found[0]
    assert suspect_videos({"train": ["a_1", "a_2"], "test": ["b[0]", "train_3"]}) == []
