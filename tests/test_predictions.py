"""Predictions as CSV: which columns, how a cell is written, and what cannot be read back."""

import csv
import pathlib
from dataclasses import replace

import numpy as np
import pytest

from msajax.data.corpus import Split
from msajax.data.predictions import read_predictions, write_predictions
from msajax.errors import UserError
from msajax.spec import CorpusSpec

MODALITIES = ("text", "audio")
SPEC = CorpusSpec(MODALITIES, (2, 2), (2, 3))
SCORES = np.array([[1.0, -0.5, 1 / 3], [2.0, 0.25, 0.1], [6.0, 1.0, 1e-7]])[..., None]  # [S, N, 1]
WEIGHTS = np.array(  # [S, N, M]
    [
        [[0.25, 0.75], [1, 0], [0, 0]],
        [[0.5, 0.5], [1, 0], [0, 0]],
        [[0.75, 0.25], [1, 0], [0, 0]],
    ]
)
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
    many = len(splits)
    write_predictions(str(path), splits, [scores] * many, [weights] * many, seeds, SPEC)
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file, strict=True))


@pytest.fixture
def path(tmp_path) -> pathlib.Path:
    return tmp_path / "predictions.csv"


# --- written ---


def test_columns_come_in_the_documented_order(path):
    header = write(path, a_split(texts=TEXTS))[0]
    assert header == [
        *("id", "label", "score", "score_sd", "score_seed7", "score_seed8", "score_seed9"),
        *("weight_text", "weight_audio", "present_text", "present_audio", "raw_text"),
    ]
    assert write(path, a_split())[0] == header[:-1]


def test_modalities_keep_the_models_order_and_not_the_alphabets(path):
    spec = replace(SPEC, modalities=("audio", "text"))
    write_predictions(str(path), [a_split()], [SCORES], [WEIGHTS[..., ::-1]], (7, 8, 9), spec)
    header, first, *_ = csv.reader(path.read_text().splitlines())
    assert header[7:] == ["weight_audio", "weight_text", "present_audio", "present_text"]
    assert write(path, a_split())[0][7:9] == ["weight_text", "weight_audio"]


def test_cells_by_hand(path):
    # Scores 1, 2, 6: mean 3, squared deviations 4 + 1 + 9 = 14, over 2 = 7.
    # Scores -.5, .25, 1: mean .25, squared deviations 2 * .5625, over 2 = .5625 = .75 squared.
    _, first, second, third = write(path, a_split())
    assert first == "a,2,3,2.64575131,1,2,6,0.5,0.5,1,1".split(",")
    assert second == "b,-1.2,0.25,0.75,-0.5,0.25,1,1,0,1,0".split(",")
    assert third[:2] == ["c", "0"] and third[-4:] == ["0", "0", "0", "0"]


def test_numbers_have_nine_significant_digits(path):
    third = write(path, a_split())[3]
    assert third[4:7] == ["0.333333333", "0.1", "1e-07"]
    large = np.array([[123456.7891234, -1e-20, 2.5e30]])[..., None]
    rows = write(path, a_split(), scores=large, weights=WEIGHTS[:1], seeds=(0,))
    assert [row[2] for row in rows[1:]] == ["123456.789", "-1e-20", "2.5e+30"]


def test_the_deviation_of_a_single_seed_is_empty(path):
    header, first, *_ = write(path, a_split(), scores=SCORES[:1], weights=WEIGHTS[:1], seeds=(4,))
    assert header[2:5] == ["score", "score_sd", "score_seed4"]
    assert first[2:5] == ["1", "", "1"]


def test_an_unknown_label_is_empty(path):
    rows = write(path, a_split(labels=None))
    assert [row[1] for row in rows] == ["label", "", "", ""]


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


# --- read ---


def test_what_was_written_is_read_back_to_nine_digits(path):
    write(path, a_split(texts=TEXTS))
    read = read_predictions(str(path))
    assert read.scores.shape == (3, 3, 1) and read.labels.shape == (3, 1)
    np.testing.assert_allclose(read.scores, SCORES, rtol=5e-9)
    np.testing.assert_array_equal(read.labels, [[2.0], [-1.2], [0.0]])


def test_a_foreign_file_needs_label_and_score_alone(path):
    path.write_text("score,other,label\n0.5,x,1\n-1e-3,,-2.5\n")
    read = read_predictions(str(path))
    np.testing.assert_array_equal(read.scores, [[[0.5], [-0.001]]])
    np.testing.assert_array_equal(read.labels, [[1], [-2.5]])


def test_the_mark_that_spreadsheets_put_first_is_no_part_of_a_name(path):
    path.write_bytes(b"\xef\xbb\xbflabel,score\r\n1,2\r\n")
    np.testing.assert_array_equal(read_predictions(str(path)).labels, [[1]])


def test_seeds_win_over_their_mean(path):
    path.write_text("label,score,score_seed0,score_seed10,score_sd\n1,9,2,3,8\n")
    np.testing.assert_array_equal(read_predictions(str(path)).scores, [[[2]], [[3]]])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read as CSV: .*No such file"),
        (b"", "has no column 'label'"),
        (b"label,score\n", "holds no prediction"),
        (b"score,id\n1,2\n", "has no column 'label'; it has score, id"),
        (b"label,id\n1,2\n", "has no column 'score'; it has label, id"),
        (b"label,score\n1,2\n,3\n", "row 2: label is '', not a finite number"),
        (b"label,score\n1,2\n1,high\n", "row 2: score is 'high', not a finite number"),
        (b"label,score\n1,nan\n", "row 1: score is 'nan', not a finite number"),
        (b"label,score\ninf,1\n", "row 1: label is 'inf', not a finite number"),
        (b"label,score_seed0,score_seed1\n1,2\n", "row 1: score_seed1 is None"),
        (b"label,score\n1,\xff\n", "cannot be read as CSV"),
    ],
)
def test_a_file_without_scored_labels_is_refused(content, expected, path):
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=expected) as caught:
        read_predictions(str(path))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_is_no_file_of_predictions(tmp_path):
    with pytest.raises(UserError, match="cannot be read as CSV"):
        read_predictions(str(tmp_path))
