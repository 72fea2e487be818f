"""Predictions as CSV: which columns, how a cell is written, and what cannot be read back."""

import csv
import pathlib
import re
from dataclasses import replace

import numpy as np
import pytest

from msajax.cli.evaluate import evaluate_predictions
from msajax.corpus.corpus import Split
from msajax.corpus.predictions import Scored, read_columns, read_predictions, write_predictions
from msajax.errors import UserError
from msajax.metrics.calibration import Intervals, Temperature
from msajax.spec import CorpusSpec

MODALITIES = ("text", "audio")
SPEC = CorpusSpec(MODALITIES, (2, 2), (2, 3))
SCORES = np.array([[1.0, -0.5, 1 / 3], [2.0, 0.25, 0.1], [6.0, 1.0, 1e-7]])[..., None]  # [S, N, 1]
WEIGHTS = np.array([[[w, 1 - w], [1, 0], [0, 0]] for w in (0.25, 0.5, 0.75)])  # [S, N, M]
TEXTS = ['plain, with a "quote"', "two\nlines\r\nand\rmore", "größer — 日本語 🙂 \t;'"]


def a_split(ids=("a", "b", "c"), labels=(2.0, -1.2, 0.0), texts=None) -> Split:
    """Three samples: both modalities, text alone, none."""
    masks = {"text": [[1, 0], [0, 1], [0, 0]], "audio": [[0, 0, 1], [0, 0, 0], [0, 0, 0]]}
    masks = {m: np.array(mask, bool) for m, mask in masks.items()}
    return Split(
        ids=np.array(ids),
        features={m: np.zeros((*mask.shape, 2)) for m, mask in masks.items()},
        masks=masks,
        labels=None if labels is None else np.array(labels)[:, None],
        raw_text=None if texts is None else np.array(texts),
    )


def write(
    path: pathlib.Path, *splits: Split, scores=SCORES, weights=WEIGHTS, seeds=(7, 8, 9)
) -> list[list[str]]:
    """Writes the splits, all with the same scores, and returns the cells of the file."""
    scored = [Scored(split, scores, weights) for split in splits]
    write_predictions(str(path), scored, seeds, SPEC)
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file, strict=True))


@pytest.fixture
def path(tmp_path) -> pathlib.Path:
    return tmp_path / "predictions.csv"


# --- written ---


def test_columns_come_in_the_documented_order_and_modalities_in_the_models(path):
    header = write(path, a_split(texts=TEXTS))[0]
    assert header == [
        *("id", "label", "score", "score_sd", "score_seed7", "score_seed8", "score_seed9"),
        *("weight_text", "weight_audio", "present_text", "present_audio", "raw_text"),
    ]
    assert write(path, a_split())[0] == header[:-1]
    spec = replace(SPEC, modalities=("audio", "text"))
    scored = Scored(a_split(labels=None), SCORES[:1], WEIGHTS[:1, :, ::-1])
    write_predictions(str(path), [scored], (4,), spec)
    header, *rows = csv.reader(path.read_text().splitlines())
    assert header[5:] == ["weight_audio", "weight_text", "present_audio", "present_text"]
    assert [row[1] for row in rows] == ["", "", ""]  # unknown labels
    assert rows[0][2:5] == ["1", "", "1"]  # of a single seed there is no deviation


def test_cells_by_hand(path):
    # Scores 1, 2, 6: mean 3, squared deviations 4 + 1 + 9 = 14, over 2 = 7.
    # Scores -.5, .25, 1: mean .25, squared deviations 2 * .5625, over 2 = .5625 = .75 squared.
    _, first, second, third = write(path, a_split(texts=TEXTS))
    assert first[:-1] == "a,2,3,2.64575131,1,2,6,0.5,0.5,1,1".split(",")
    assert second[:-1] == "b,-1.2,0.25,0.75,-0.5,0.25,1,1,0,1,0".split(",")
    assert third[:2] == ["c", "0"] and third[-5:-1] == ["0", "0", "0", "0"]
    # Nine significant digits, to which all of it is read back:
    assert third[4:7] == ["0.333333333", "0.1", "1e-07"]
    read = read_predictions(str(path))
    assert read.scores.shape == (3, 3, 1) and read.labels.shape == (3, 1)
    np.testing.assert_allclose(read.scores, SCORES, rtol=5e-9)
    np.testing.assert_array_equal(read.labels, [[2.0], [-1.2], [0.0]])
    large = np.array([[123456.7891234, -1e-20, 2.5e30]])[..., None]
    rows = write(path, a_split(), scores=large, weights=WEIGHTS[:1], seeds=(0,))
    assert [row[2] for row in rows[1:]] == ["123456.789", "-1e-20", "2.5e+30"]


def test_text_survives_commas_quotes_line_breaks_and_every_script(path):
    ids = ['a,"1"', "b\n2", "ü"]
    rows = write(path, a_split(ids=ids, texts=TEXTS))
    assert [row[0] for row in rows[1:]] == ids
    assert [row[-1] for row in rows[1:]] == TEXTS
    content = path.read_bytes()
    assert b'"plain, with a ""quote"""\r\n' in content  # RFC 4180
    assert content.decode("utf-8").startswith("id,label,")
    assert content.endswith(b"\r\n")


def test_splits_follow_one_another_and_one_without_text_leaves_it_empty(path):
    rows = write(path, a_split(texts=TEXTS), a_split(ids=("d", "e", "f"), labels=None))
    assert [row[0] for row in rows] == ["id", "a", "b", "c", "d", "e", "f"]
    assert [row[-1] for row in rows[4:]] == ["", "", ""]
    assert {len(row) for row in rows} == {12}
    assert [row[2] for row in rows[1:4]] == [row[2] for row in rows[4:]]


def test_a_file_is_written_whole_or_not_at_all(path):
    path.write_text("mine")
    with pytest.raises(IndexError):
        write(path, a_split(), scores=SCORES[:, :2])  # fails after the first two rows
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["absent/p.csv", "folder", "file/p.csv"])
def test_a_file_that_cannot_be_written_is_refused_and_leaves_nothing(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=f"{name} cannot be written: [A-Z]"):
        write(tmp_path / name, a_split())
    assert sorted(tmp_path.rglob("*")) == before


def write_as(path, kind, names, labels, scores, calibration=None) -> list[dict[str, str]]:
    spec = replace(SPEC, label_kind=kind, label_names=names)
    scored = Scored(replace(a_split(), labels=labels), scores, WEIGHTS[:2])
    write_predictions(str(path), [scored], (7, 8), spec, calibration)
    return list(csv.DictReader(path.read_text("utf-8").splitlines(), strict=True))


def test_classes_by_hand(path):
    # Means .5 .25 .25, .375 .375 .25 and .1 .2 .7: the first of two equals is the predicted one.
    scores = np.array(
        [
            [[0.75, 0.125, 0.125], [0.25, 0.5, 0.25], [0.1, 0.2, 0.7]],
            [[0.25, 0.375, 0.375], [0.5, 0.25, 0.25], [0.1, 0.2, 0.7]],
        ]
    )
    labels = np.array([[2.0], [0.0], [1.0]])
    rows = write_as(path, "classification", ("no", "so-so", "yes"), labels, scores)
    assert list(rows[0]) == [
        *("id", "label", "predicted", "score_no", "score_so-so", "score_yes"),
        *("score_no_sd", "score_no_seed7", "score_no_seed8"),
        *("score_so-so_sd", "score_so-so_seed7", "score_so-so_seed8"),
        *("score_yes_sd", "score_yes_seed7", "score_yes_seed8"),
        *("weight_text", "weight_audio", "present_text", "present_audio"),
    ]
    assert list(rows[0].values())[:9] == "a yes no 0.5 0.25 0.25 0.353553391 0.75 0.25".split()
    assert list(rows[1].values())[:6] == "b no no 0.375 0.375 0.25".split()
    assert list(rows[2].values())[:6] == "c so-so yes 0.1 0.2 0.7".split()
    read = read_predictions(str(path))
    assert (read.kind, read.names) == ("classification", ("no", "so-so", "yes"))
    np.testing.assert_array_equal(read.scores, scores)
    np.testing.assert_array_equal(read.labels, labels)
    rows = write_as(path, "classification", ("no", "so-so", "yes"), None, scores)
    assert [row["label"] for row in rows] == ["", "", ""]
    assert [row["predicted"] for row in rows] == ["no", "no", "yes"]


def test_several_outputs_by_hand(path):
    scores = np.array([[[1.0, 5.0], [2, 6], [3, 7]], [[3.0, 5], [2, 7], [3, 9]]])
    labels = np.array([[1.5, -2.0], [0.0, 1e9], [2.0, 1 / 3]])
    rows = write_as(path, "regression", ("a", "b c"), labels, scores)
    assert list(rows[0])[:11] == [
        *("id", "label_a", "label_b c", "score_a", "score_b c"),
        *("score_a_sd", "score_a_seed7", "score_a_seed8"),
        *("score_b c_sd", "score_b c_seed7", "score_b c_seed8"),
    ]
    assert list(rows[0].values())[:8] == "a 1.5 -2 2 5 1.41421356 1 3".split()
    assert rows[2]["label_b c"] == "0.333333333"
    read = read_predictions(str(path))
    assert (read.kind, read.names) == ("regression", ("a", "b c"))
    np.testing.assert_array_equal(read.scores, scores)
    np.testing.assert_allclose(read.labels, labels, rtol=5e-9)
    rows = write_as(path, "regression", ("a", "b c"), None, scores)
    assert [row["label_a"] + row["label_b c"] for row in rows] == ["", "", ""]


def test_intervals_by_hand(path):
    """Seeds 1 and 3: mean 2, deviation sqrt 2, above one floor and below the other."""
    scores = np.array([[[1.0, 1.0]] * 3, [[3.0, 3.0]] * 3])
    intervals = Intervals(20, "video", True, (2.0, 0.5), (1.0, 4.0))
    rows = write_as(path, "regression", ("a", "score"), np.ones((3, 2)), scores, intervals)
    ends = "score_a score_score low_a high_a low_score high_score".split()
    assert list(rows[0])[3:9] == ends
    values = "2 2 -0.828427125 4.82842712 0 4".split()
    assert [list(row.values())[3:9] for row in rows] == [values] * 3
    said = "calibrated on validation, 20 samples; optimistic: it chose the epoch"
    assert {row["interval"] for row in rows} == {said}
    np.testing.assert_array_equal(read_predictions(str(path)).scores, scores)
    one = Intervals(9, "sample", False, (1.5,), (None,))
    rows = write_as(path, "regression", ("score",), None, scores[..., :1], one)
    assert list(rows[0])[:6] == ["id", "label", "score", "low", "high", "interval"]
    assert list(rows[0].values())[2:5] == ["2", "0.5", "3.5"]
    p = np.full((2, 3, 2), 0.5)
    rows = write_as(path, "classification", ("x", "y"), None, p, Temperature(9, "video", True, 2.0))
    assert "low" not in rows[0] and rows[0]["score_x"] == "0.5"


def test_names_may_look_like_patterns_and_like_each_other(path):
    names = ("a", "a+", "a_seed", ".*", "seed0", "b_sd")
    scores = np.round(np.random.default_rng(0).dirichlet(np.ones(6), size=(2, 3)), 6)
    labels = np.array([[1.0], [3.0], [5.0]])
    for kind, given in (("classification", labels), ("regression", np.tile(labels, 6))):
        write_as(path, kind, names, given, scores)
        read = read_predictions(str(path))
        assert read.names == names
        np.testing.assert_array_equal(read.scores, scores)
        np.testing.assert_array_equal(read.labels, given)


# --- read ---


def test_a_foreign_file_needs_label_and_score_alone_and_may_have_other_columns(path):
    for content, scores in (
        ("score,other,label\n0.5,x,1\n-1,,-2.5\n", [[[0.5], [-1]]]),
        ("label,label_source,score,score_3class\n1,x,0.5,9\n-2.5,y,-1,9\n", [[[0.5], [-1]]]),
        ("\ufefflabel,score\r\n1,0.5\r\n-2.5,-1\r\n", [[[0.5], [-1]]]),  # as spreadsheets begin
        ("label,score,score_seed0,score_seed10,score_sd\n1,9,2,3,8\n-2.5,9,4,5,8\n",
         [[[2], [4]], [[3], [5]]]),
    ):
        path.write_text(content, encoding="utf-8", newline="")
        read = read_predictions(str(path))
        assert read.kind == "regression"
        np.testing.assert_array_equal(read.scores, scores)
        np.testing.assert_array_equal(read.labels, [[1], [-2.5]])
    path.write_text("score_b,predicted,score_a,label\n0.75,,0.25,a\n0.5,?,0.5,b\n")
    read = read_predictions(str(path))  # of classes their probabilities
    assert (read.kind, read.names) == ("classification", ("b", "a"))
    np.testing.assert_array_equal(read.scores, [[[0.75, 0.25], [0.5, 0.5]]])
    np.testing.assert_array_equal(read.labels, [[1], [0]])


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_other_tools_may_separate_and_spell_columns_otherwise(separator, path):
    for id_, label, score in (
        ("id", "label", "score"),
        ("ID", "y_true", "y_pred"),
        ("segment id", "Ground Truth", "Prediction"),
        ("Sample-ID", "target", "Predicted"),
        ("file name", "gold", "output"),
    ):
        rows = [score, "text", label, id_], ["0.5", "well", "1", "a[0]"], ["-1", "so", "-2", "a[1]"]
        path.write_text("\n".join(separator.join(row) for row in rows))
        read = read_predictions(str(path))
        assert (read.kind, read.ids.tolist()) == ("regression", ["a[0]", "a[1]"])
        np.testing.assert_array_equal(read.scores, [[[0.5], [-1]]])
        np.testing.assert_array_equal(read.labels, [[1], [-2]])
        path.write_bytes(path.read_text().replace("\n", "\r\n").encode("utf-16"))
        assert read_predictions(str(path)).ids.tolist() == ["a[0]", "a[1]"]


def test_sentences_between_tabs_are_read_as_they_stand(path):
    rows = 'it is "good\t1.5\t2\nbad, bad; film\t-0.5\t-1\n"so" he said\t0.1\t0\n'
    path.write_text(f"Original\tPrediction\tGround Truth\n{rows}")
    read = read_predictions(str(path))
    np.testing.assert_array_equal(read.scores[0, :, 0], [1.5, -0.5, 0.1])
    np.testing.assert_array_equal(read.labels[:, 0], [2, -1, 0])
    assert read.ids.tolist() == ["", "", ""]
    # A sentence with a tab of its own is quoted, or nobody could tell.
    path.write_text('text\tprediction\tlabel\n"a\tb"\t1\t2\n')
    np.testing.assert_array_equal(read_predictions(str(path)).labels, [[2]])


def test_a_file_in_latin_1_is_told_its_line_and_what_to_save(path):
    said = "line 3: 'André' cannot be read as CSV, because it is stored as Latin-1 and not as UTF-8"
    for end in (b"\n", b"\r\n", b"\r"):
        path.write_bytes(end.join([b"id,label,score", b"a,1,2", b"Andr\xe9 1,1,2", b""]))
        message = re.escape(f"{path}, {said}: save the file anew as UTF-8")
        with pytest.raises(UserError, match=message):
            read_predictions(str(path))


def test_rows_of_an_id_are_measured_each_and_a_video_and_a_clip_are_an_id(path, caplog):
    path.write_text("id,label,score\na,1,1\nb,2,2\na,1,4\n")
    assert evaluate_predictions(str(path))["metrics"]["mae"]["mean"] == 1
    assert "some ids, as a, stand in several rows; each counts" in caplog.text
    path.write_text("video_id,clip_id,label,prediction\nv,1,0,1\nv,2,0,1\n")
    assert read_predictions(str(path)).ids.tolist() == ["v$_$1", "v$_$2"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read as CSV: .*No such file"),
        ("folder", "cannot be read as CSV"),
        (b"", "is empty: expected columns such as id, label and score"),
        (b"\xef\xbb\xbf \n", "is empty"),
        (b"label,score\n1,2\0\n", r"row 1: score is '2.x00', not a finite number"),
        (b"\x89PNG\r\n\x1a\n", "cannot be read as CSV"),
        (b"label,score,score\n1,2,3\n", "has the column 'score' twice"),
        (b"text,label,score\nwell, so,1,2\n", "row 1: it has more values than there are columns"),
        (b"y,gold,pred\n1,2,3\n", "is 'y' or 'gold' the label\\? Name that column 'label'"),
        (b"Label;Score\n1;0,5\n", "row 1: score is '0,5', not a .*: decimals have a point"),
        (b"\x1b[31m,label\n1,2\n", r"has no column 'score'; it has \\x1b\[31m, label"),
        (b"label,score\n", "holds no prediction"),
        (b"import numpy as np,pickle\n1,2\n",
         "no table of predictions, with the columns label and score: its first line has import"),
        (b"score,id\n1,2\n", "has no column 'label'; it has score, id"),
        (b"label,id\n1,2\n", "has no column 'score'; it has label, id"),
        (b"label,score\n1,2\n,3\n", "row 2: label is '', not a finite number"),
        (b"label,score\n1,2\n1,high\n", "row 2: score is 'high', not a finite number"),
        (b"label,score\n1,nan\n", "row 1: score is 'nan', not a finite number"),
        (b"label,score\ninf,1\n", "row 1: label is 'inf', not a finite number"),
        (b"label,score_seed0,score_seed1\n1,2\n", "row 1: score_seed1 is missing"),
        (b"label,score\n1,\xff\n", "cannot be read as CSV"),
        (b"label,predicted,score_a,score_b\nc,a,1,0\n", "row 1: label is 'c', not one of.* a, b"),
        (b"label,predicted,score_a,score_b\na,a,,0\n", "row 1: score_a is '', not a finite"),
        (b"label,predicted,score_a,score_b\na,a,1,0\na,a,3,-2\n", "row 2: the columns score_a, sc"),
        (b"label,predicted,score_a,score_b\na,a,.7,.7\n", "must be the probabilities of the cl"),
        (b"label,predicted,score_a,score_b\na,a,1.01,0\n", "must be the probabilities of the cl"),
        (b"label_a,predicted_a,score_a\n2,1,.7\n", "row 1: label_a is '2', neither 0 nor 1"),
        (b"label_a,predicted_a,score_a\n1,1,1.5\n", "must be the probabilities of the la"),
        (b"predicted,score_a\na,1\n", "has no column 'label'"),
        (b"label_a,label_b,score_a\n1,2,3\n", "has no column 'score_b'"),
        (b"label_a,label_b,score_a_seed0,score_a_seed1,score_b_seed0\n1,2,3,4,5\n",
         "every output must have scores of the same seeds"),
    ],
)
def test_a_file_without_scored_labels_is_refused(content, expected, path):
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=expected) as caught:
        read_predictions(str(path))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_columns_are_read_whole_or_refused(path):
    path.write_text("id,label,mood\n1,0.5,calm\n2,,glad\n")
    found = read_columns(str(path))
    assert (found["id"].tolist(), found["mood"].tolist()) == (["1", "2"], ["calm", "glad"])
    np.testing.assert_array_equal(found["label"], [0.5, np.nan])
    for row in ("3,1", "3,1,calm,4"):
        path.write_text(f"id,label,mood\n1,0.5,calm\n{row}\n")
        with pytest.raises(UserError, match=r"row 2: not one value for each of the columns\.$"):
            read_columns(str(path))
