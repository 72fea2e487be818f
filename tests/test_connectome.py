"""A folder of tables and matrices: which tokens it becomes, its splits, and what is refused."""

import logging
import pathlib
import types

import numpy as np
import pytest
from pickle_corpora import assert_converts, refusal

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.folds import video_of
from msajax.corpus.formats import open_corpus
from msajax.corpus.labels import label_kind
from msajax.errors import UserError
from msajax.inference.predict import read_split

BANDS, CHANNELS = 3, 4
EDGES = [(1, 4), (4, 8), (8, 12.5)]
SPLITS = ["train"] * 4 + ["dev"] * 2 + ["test"] * 2
HEAD = "id,label,age,gender,file,split"


def matrices() -> np.ndarray:
    """Symmetric but for their diagonals, which nothing reads."""
    drawn = np.random.default_rng(0).normal(size=(len(SPLITS), BANDS, CHANNELS, CHANNELS))
    found = drawn + drawn.swapaxes(2, 3)
    found[..., range(CHANNELS), range(CHANNELS)] = np.inf
    return found.astype(np.float32)


def rows() -> list[list[str]]:
    return [
        [f"p{i}", str(i % 2), f"{20 + i}.5", str(i % 2), f"eeg/{i}.npy", split]
        for i, split in enumerate(SPLITS)
    ]


def write_table(folder: pathlib.Path, lines: list[list[str]], head: str = HEAD) -> None:
    content = "\n".join([head, *(",".join(line) for line in lines)])
    (folder / "samples.csv").write_text(f"{content}\n", encoding="utf-8")


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    path = tmp_path / "corpus"
    (path / "eeg").mkdir(parents=True)
    for i, of_sample in enumerate(matrices()):
        np.save(path / "eeg" / f"{i}.npy", of_sample)
    lines = [f"{low},{high}" for low, high in EDGES]
    (path / "bands.csv").write_text("\n".join(["low_hz,high_hz", *lines]))
    write_table(path, rows())
    return path


def without_splits(folder: pathlib.Path, ids: list[str]) -> None:
    lines = [[id_, *row[1:5]] for id_, row in zip(ids, rows(), strict=True)]
    write_table(folder, lines, HEAD.removesuffix(",split"))


def test_a_token_is_the_bands_edges_age_gender_and_what_is_above_the_diagonal(folder):
    corpus = open_corpus(folder)
    assert corpus.source.format == "connectome folder" and corpus.repairs == {}
    assert corpus.modalities == ("connectome",)
    for name, chosen in {"train": range(4), "valid": range(4, 6), "test": range(6, 8)}.items():
        split = corpus.split(name)
        assert split.ids.tolist() == [f"p{i}" for i in chosen]
        np.testing.assert_array_equal(split.labels[:, 0], [i % 2 for i in chosen])
        for i, tokens in zip(chosen, split.features["connectome"], strict=True):
            for band in range(BANDS):
                above = [matrices()[i, band, a, b] for a in range(4) for b in range(a + 1, 4)]
                expected = np.array([*EDGES[band], 20.5 + i, i % 2, *above], np.float32)
                np.testing.assert_array_equal(tokens[band], expected, strict=True)
    assert label_kind(corpus, ModelConfig()).kind == "classification"


def test_the_folder_converts_and_matrices_without_a_lower_triangle_are_the_same(folder):
    corpus = open_corpus(folder)
    assert_converts(corpus, folder.parent)
    features = corpus.split("test").features["connectome"].copy()
    for i, of_sample in enumerate(matrices()):
        np.save(folder / "eeg" / f"{i}.npy", np.triu(of_sample, 1).astype(np.float64))
    again = open_corpus(folder)
    np.testing.assert_array_equal(again.split("test").features["connectome"], features)
    assert again.repairs == {}


def test_the_digest_covers_tables_and_matrices_and_no_path(folder):
    first = open_corpus(folder).digest
    (folder / "eeg").rename(folder / "other")
    moved = [[*row[:4], row[4].replace("eeg", "other"), row[5]] for row in rows()]
    write_table(folder, [[f" {value} " for value in row] for row in moved], HEAD.upper())
    assert open_corpus(folder).digest == first
    for letters in ({"0": "F", "1": "male"}, {"0": "0.0", "1": "1.0"}):
        write_table(folder, [[*r[:3], letters[r[3]], *r[4:]] for r in moved])
        assert open_corpus(folder).digest == first
    digests = {first}
    for row, column, value in ((0, 1, "1"), (0, 2, "20.6"), (0, 3, "1"), (0, 5, "test")):
        changed = [list(line) for line in moved]
        changed[row][column] = value
        write_table(folder, changed)
        digests.add(open_corpus(folder).digest)
    write_table(folder, moved)
    (folder / "bands.csv").write_text("low_hz;high_hz\n1;4\n4;8\n8;12\n")
    digests.add(open_corpus(folder).digest)
    np.save(folder / "other" / "0.npy", 2 * matrices()[0])
    digests.add(open_corpus(folder).digest)
    assert len(digests) == 7


def test_labels_are_classes_by_name_or_number_or_scores_and_may_lack(folder):
    number = {"ADHD": 0, "MDD": 1, "OCD": 2}
    for labels, kind, names in (
        (["MDD", "ADHD", "MDD", "OCD"], "classification", ("ADHD", "MDD", "OCD")),
        (["1.5", "2", "-1", "0"], "regression", ("sentiment",)),
        (["3", "7", "3", "7"], "classification", ("3", "7")),
    ):
        write_table(folder, [[r[0], y, *r[2:]] for r, y in zip(rows(), labels * 2, strict=True)])
        corpus = open_corpus(folder)
        found = label_kind(corpus, ModelConfig())
        assert (found.kind, found.names) == (kind, names)
        stored = corpus.split("train").labels[:, 0].tolist()
        assert stored == [number[y] if y in number else float(y) for y in labels]
        (folder.parent / names[0]).mkdir()
        assert_converts(corpus, folder.parent / names[0])
    write_table(folder, [[r[0], "" if r[5] == "test" else r[1], *r[2:]] for r in rows()])
    corpus = open_corpus(folder)
    assert corpus.split("test").labels is None
    assert corpus.headers["train"].label_kind == "classes"


def test_classes_of_other_names_than_the_models_are_not_scored(folder):
    spec = types.SimpleNamespace(label_names=("adhd", "control", "mdd"))
    preparation = types.SimpleNamespace(classes=(0, 1, 2), spec=spec)
    bundle = types.SimpleNamespace(preparation=preparation, prepare_split=lambda split, _: split)
    for names, problem in (
        (["control", "mdd"], "train: class 0 is 'control', but 'adhd' in the corpus of the model"),
        (["adhd", "control"], ""),
        (["0", "1"], ""),
        (["0.5", "1"], ""),
    ):
        write_table(folder, [[r[0], names[int(r[1])], *r[2:]] for r in rows()])
        corpus = open_corpus(folder)
        if problem:
            with pytest.raises(UserError, match=problem):
                read_split(bundle, corpus, "train")
        else:
            assert len(read_split(bundle, corpus, "train")[1]) == 4


def test_people_are_split_whole_and_ids_say_who_they_are(folder, caplog):
    """`sub_01` would be a segment of a video `sub`, and 17 of none."""
    ids = ["sub_01", "sub_02", "17", "ann[a]", "ann[b]", "bo$_$1", "bo$_$2", "cy"]
    without_splits(folder, ids)
    with caplog.at_level(logging.WARNING, "msajax"):
        corpus = open_corpus(folder)
    assert "6 people were split at random with seed 0 into 4 train, 1 valid, 1 test" in caplog.text
    found = {name: corpus.split(name).ids.tolist() for name in corpus.headers}
    everyone = sorted(id_ for named in found.values() for id_ in named)
    assert everyone == sorted(["sub_01[0]", "sub_02[0]", "17[0]", *ids[3:]])
    split_of = {video_of(id_): name for name, named in found.items() for id_ in named}
    assert sorted(split_of) == ["17", "ann", "bo", "cy", "sub_01", "sub_02"]
    for name, named in found.items():
        assert {split_of[video_of(id_)] for id_ in named} == {name}
    others = [open_corpus(folder, DataConfig(split_seed=seed)) for seed in range(5)]
    assert len({corpus.digest for corpus in others}) > 1 and others[0].digest == corpus.digest
    folds = [open_corpus(folder, DataConfig(folds=3, fold=k)).split("test").ids for k in range(3)]
    assert sorted(id_ for ids in folds for id_ in ids) == everyone


def test_matrices_that_are_not_symmetric_are_refused_or_counted(folder):
    of_sample = matrices()[1]
    of_sample[2, 3, 0] += 0.5
    np.save(folder / "eeg" / "1.npy", of_sample)
    message = refusal(folder)
    assert "1.npy: the matrix of band 2 (from 0) is not symmetric" in message
    corpus = open_corpus(folder, DataConfig(allow_loss=True))
    assert corpus.repairs == {"one_sided_matrices": 1}


def test_what_a_table_says_wrong_is_refused(folder):
    (folder / "eeg" / "link.npy").symlink_to("0.npy")
    for row, column, value, said in [
        (1, 0, "p0", "2 rows have the id 'p0'"),
        (1, 0, "", "'' is no id"),
        (1, 1, "", "1 of 4 samples of train have no label"),
        (1, 1, "high", "has the labels 'high' and '0'; expected numbers alone, or names"),
        (1, 1, "nan", "1 label(s) of split 'train' are not finite"),
        (1, 2, "", "'p1' has the age ''; expected years, 0 to 130"),
        (1, 2, "-1", "'p1' has the age '-1'"),
        (1, 2, "nan", "'p1' has the age 'nan'"),
        (1, 3, "2", "'p1' has the gender '2'; expected 0 or 1 in all rows, or f or m"),
        (1, 3, "f", "'p1' has the gender 'f'"),
        (1, 4, "eeg/0.npy", "'p1' has the file 'eeg/0.npy', which is that of 'p0', too"),
        (1, 4, "./eeg/../eeg/0.npy", "which is that of 'p0', too"),
        (1, 4, "eeg/link.npy", "which is that of 'p0', too"),
        (1, 4, "eeg/9.npy", "'p1' has the file 'eeg/9.npy', which is not there"),
        (1, 4, "../corpus/eeg/1.npy", "expected the path of an .npy file in this folder"),
        (1, 4, "/eeg/1.npy", "expected the path of an .npy file in this folder"),
        (1, 5, "", "'p1' has the split ''; expected one of train, valid, val, dev, test"),
        (1, 5, "a,b", "row 2 below the first line has 7 values, but that line has 6"),
    ]:
        changed = rows()
        changed[row][column] = value
        write_table(folder, changed)
        message = refusal(folder)
        assert said in message and str(folder / "samples.csv") in message or "finite" in said
    genders = [*"fmfx", *"fmfm"]
    write_table(folder, [[*r[:3], g, *r[4:]] for r, g in zip(rows(), genders, strict=True)])
    assert "'p3' has the gender 'x'; expected" in refusal(folder)
    write_table(folder, [[r[0], "MDD", *r[2:]] for r in rows()])
    assert "every label is 'MDD'; expected two classes or more, or an empty" in refusal(folder)
    write_table(folder, rows(), HEAD.replace("age", "years"))
    assert "lacks the column 'age'; expected id,label,age,gender,file" in refusal(folder)
    write_table(folder, rows(), HEAD.replace("split", "age"))
    assert "has the column 'age' twice" in refusal(folder)
    write_table(folder, [])
    assert "has no row below its first line" in refusal(folder)
    (folder / "samples.csv").write_bytes(b"id,label\n\xff")
    assert "samples.csv, line 2: 'ÿ' cannot be read as CSV, because it is" in refusal(folder)
    without_splits(folder, ["a[0]", "a[1]", "b[0]", "b[1]", "b[2]", "b[3]", "b[4]", "b[5]"])
    assert "no column split, and fewer than 3 people" in refusal(folder)
    without_splits(folder, ["sub_01", "sub_01[0]", "b", "c", "d", "e", "f", "g"])
    assert "has the ids 'sub_01' and 'sub_01[0]', which name the same" in refusal(folder)


def test_bands_and_files_of_anything_else_are_refused(folder):
    infinite = np.where(np.eye(4, k=2), np.inf, np.zeros((3, 4, 4)))
    for array, said in (
        (np.zeros((2, 4, 4)), r"float64 of shape (2, 4, 4); expected numbers (3, C, C)"),
        (np.zeros((3, 4, 5)), "a square matrix for each band of"),
        (np.zeros((4, 4)), "expected numbers (3, C, C)"),
        (np.zeros((3, 1, 1)), "expected numbers (3, C, C)"),
        (np.zeros((3, 4, 4), complex), "complex128 of shape"),
        (np.full((3, 4, 4), None), "holds Python objects"),
        (np.zeros((3, 5, 5)), "1.npy has 5 channels, but"),
        (infinite, "6 number(s) above the diagonals are not finite float32 numbers, the first in "
                   "band 0 between channels 0 and 2 (from 0)"),
    ):
        np.save(folder / "eeg" / "1.npy", array, allow_pickle=True)
        message = refusal(folder)
        assert said in message and str(folder / "eeg" / "1.npy") in message
    for edges in ("4,1", "-1,4", "1,inf", "1,", "a,4"):
        (folder / "bands.csv").write_text(f"low_hz,high_hz\n1,4\n{edges}\n8,12\n")
        assert "bands.csv: band 1 (from 0) is " in refusal(folder)


def test_a_file_that_is_cut_is_refused_and_one_that_changes_later_too(folder):
    whole = (folder / "eeg" / "1.npy").read_bytes()
    (folder / "eeg" / "1.npy").write_bytes(whole[:-8])
    assert "declares 192 bytes but 184 are stored" in refusal(folder)
    (folder / "eeg" / "1.npy").write_bytes(whole)
    corpus = open_corpus(folder)
    (folder / "eeg" / "1.npy").write_bytes(whole[:50])
    with pytest.raises(UserError, match=r"1\.npy changed or went bad while in use"):
        corpus.split("train")
