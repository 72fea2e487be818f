"""`msajax.save_corpus`: lists of sequences become the corpus that a user meant, or one sentence."""

import os
import types

import numpy as np
import pandas
import pytest

import msajax

N = 12
LENGTHS = [3, 1, 2, 0, 4, 2, 3, 1, 1, 4, 2, 5]


class Frame:
    """A data frame as polars has it: names, and columns that turn themselves into lists."""

    def __init__(self, columns):
        self.columns, self._content = list(columns), columns

    def __getitem__(self, name):
        return types.SimpleNamespace(to_list=lambda: list(self._content[name]))


def table(**columns):
    """Four videos of three samples."""
    usual = {
        "id": [f"v{i // 3}[{i}]" for i in range(N)],
        "mood": np.linspace(-2, 2, N),
        "fold": ["train"] * 6 + ["Dev"] * 3 + ["test"] * 3,
        "speaker": [i // 6 for i in range(N)],
    }
    return usual | columns


def lists(width=2, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(t, width)) for t in LENGTHS]


def feelings(ordered):
    return pandas.Categorical(["b", "a", "c"] * 4, categories=list("xcba"), ordered=ordered)


def save(path, given=None, sequences=None, **options):
    usual = {"label": "mood", "split": "fold", **options}
    return msajax.save_corpus(
        path, table() if given is None else given, sequences or {"audio": lists()}, **usual
    )


@pytest.mark.parametrize("name", ["c.npz", "folder"])
@pytest.mark.parametrize("frame", [dict, Frame])
def test_lists_are_padded_and_their_masks_are_their_lengths(tmp_path, name, frame):
    audio = lists()
    audio[0][[0, -1]] = 0  # real steps of zeros
    audio[6] = None
    audio[7] = []
    face = [x[:, :1].astype(np.float32) for x in lists(seed=1)[::-1]]
    saved = save(tmp_path / name, frame(table()), {"audio": audio, "face": face})
    corpus = msajax.open_corpus(tmp_path / name)
    corpus.verify()
    assert corpus.aligned == () and saved.sizes == {"train": 6, "valid": 3, "test": 3}
    for split, rows in (("train", range(6)), ("valid", range(6, 9)), ("test", range(9, N))):
        found = corpus.split(split)
        assert found.ids.tolist() == [table()["id"][i] for i in rows]
        np.testing.assert_array_equal(found.labels[:, 0], table()["mood"][list(rows)])
        for k, i in enumerate(rows):
            for m, given in (("audio", audio), ("face", face)):
                x = given[i]
                x = found.features[m][k, :0] if x is None or not len(x) else x
                mask = found.masks[m][k]
                assert mask.tolist() == [t < len(x) for t in range(len(mask))]
                np.testing.assert_array_equal(found.features[m][k, : len(x)], x)
                assert not found.features[m][k, len(x) :].any()
    facts = {"width": 2, "shortest": 1, "median": 2.0, "longest": 5, "absent": 3}
    assert saved.modalities["audio"] == facts
    assert "audio is 2 wide, 1 to 5 steps, median 2; absent in 3 samples" in str(saved)
    assert "labels: regression of mood" in str(saved) and "'speaker'" in str(saved)


def test_words_and_transcripts_are_written_as_the_native_layout_has_them(tmp_path):
    words = [[f"w{i}"] * t for i, t in enumerate(LENGTHS)]
    words[4] = None
    audio = lists()
    audio[11] = None  # the longest of audio is shorter than that of the words it is aligned with
    saved = save(tmp_path / "c.npz", sequences={"text": words, "audio": audio})
    corpus = msajax.open_corpus(tmp_path / "c.npz")
    assert corpus.aligned == ("text", "audio") and "equally long in every sample" in str(saved)
    found = corpus.split("test")
    assert found.words.tolist()[0] == ["w9"] * 4 + [""] and found.features["audio"].shape[1] == 5
    assert found.raw_text.tolist() == [" ".join(words[i]) for i in range(9, N)]
    texts = ["so good", None, float("nan"), *["well"] * (N - 3)]
    save(tmp_path / "t.npz", sequences={"text": texts, "audio": lists()})
    corpus = msajax.open_corpus(tmp_path / "t.npz")
    assert not corpus.has_words and corpus.modalities == ("audio",)
    assert corpus.split("train").raw_text.tolist() == ["so good", "", "", "well", "well", "well"]


def test_other_forms_of_a_modality(tmp_path):
    ids = [[1, 2, 3][: t % 4] for t in LENGTHS]
    padded = np.ones((N, 3, 2))
    padded[:, 2] = 0
    vectors = list(np.eye(N))
    saved = save(
        tmp_path / "c.npz", sequences={"text": ids, "audio": padded, "face": vectors}, aligned=False
    )
    train = msajax.open_corpus(tmp_path / "c.npz").split("train")
    assert train.features["text"].dtype.kind == "i" and train.features["text"].shape == (6, 3)
    assert train.masks["text"].sum(axis=1).tolist() == [t % 4 for t in LENGTHS[:6]]
    assert set(train.masks) == {"text", "face"} and train.features["face"].shape == (6, 1, N)
    assert "audio is 2 wide, 3 steps; steps of zeros" in str(saved)


def test_values_that_are_no_numbers_and_a_list_of_a_padded_array_are_warned_of(tmp_path, caplog):
    audio = lists()
    audio[2][0], audio[4][1, 0] = np.nan, -np.inf
    face = np.ones((N, 2, 1))
    face[7, 0] = 1e39
    saved = save(tmp_path / "c.npz", sequences={"audio": audio, "face": face})
    found = "has 3 value(s) in 2 sample(s) that are NaN, infinite or beyond float32, the first in"
    assert f"sequences['audio'] {found} sequences['audio'][2]: training" in caplog.text
    assert "sequences['face'] has 1 value(s) in 1 sample(s)" in str(saved)
    padded = np.ones((N, 3, 2))
    padded[2:, 2] = 0
    saved = save(tmp_path / "d.npz", sequences={"audio": list(padded)})
    assert "3 steps in every sample, and 10 of 12 begin or end with a step of zeros" in caplog.text
    assert "warning" in str(saved)


def test_words_that_are_not_as_long_as_text_beside_them_are_warned_of(tmp_path):
    text = lists()
    words = [["so"] * len(x) for x in text]
    assert "warning" not in str(save(tmp_path / "c.npz", sequences={"text": text, "words": words}))
    words[5] = ["so"] * 3
    given = dict(sequences={"text": text, "words": words}, overwrite=True)
    said = str(save(tmp_path / "c.npz", **given))
    assert "sequences['words'] has 3 step(s) in 'v1[5]', the first of 1 such sample(s)" in said
    assert "warning" not in str(save(tmp_path / "c.npz", **given, aligned=False))


@pytest.mark.parametrize(
    ("label", "columns", "kind", "names", "values"),
    [
        ("feel", {"feel": ["b", "a", "c"] * 4}, "classes", ("a", "b", "c"), [1, 0, 2] * 2),
        ({"feel": list("cxba")}, {"feel": ["b", "a", "c"] * 4}, "classes", tuple("cxba"),
         [2, 3, 0] * 2),
        ("feel", {"feel": feelings(ordered=True)}, "classes", tuple("xcba"), [2, 3, 1] * 2),
        ("feel", {"feel": feelings(ordered=False)}, "classes", tuple("abc"), [1, 0, 2] * 2),
        ("n", {"n": [2, 0, 1] * 4}, "classes", ("0", "1", "2"), [2, 0, 1] * 2),
        ("n", {"n": [1, 0, -1] * 4}, "scores", ("n",), [1, 0, -1] * 2),
        ("label", {"label": [1.0, 0.0, 2.0] * 4}, "scores", ("sentiment",), [1, 0, 2] * 2),
    ],
)
def test_labels_are_scores_or_classes(tmp_path, label, columns, kind, names, values):
    save(tmp_path / "c.npz", table(**columns), label=label)
    corpus = msajax.open_corpus(tmp_path / "c.npz")
    header = corpus.headers["train"]
    assert header.label_kind == kind
    assert (tuple(header.classes.values()) if kind == "classes" else header.label_names) == names
    assert corpus.split("train").labels[:, 0].tolist() == values


def test_several_labels_and_splits_without_labels(tmp_path):
    given = table(b=[1.5] * N)
    given["mood"] = [None if i > 8 else 0.5 for i in range(N)]
    given["b"] = [float("nan") if i > 8 else i for i in range(N)]
    saved = save(tmp_path / "c.npz", given, label=["mood", "b"])
    corpus = msajax.open_corpus(tmp_path / "c.npz")
    assert corpus.headers["train"].label_names == ("mood", "b")
    assert corpus.split("valid").labels.tolist() == [[0.5, 6], [0.5, 7], [0.5, 8]]
    assert corpus.split("test").labels is None and "in train and valid alone" in str(saved)
    assert "labels: none" in str(save(tmp_path / "d.npz", label=None))


def test_shares_are_drawn_by_group_and_seed(tmp_path):
    given = table(id=list(range(N)), group=["e", "d", "c", "b"] * 3)
    shares = (0.5, 0.25, 0.25)

    def drawn(**options):
        save(tmp_path / "c.npz", given, split=shares, overwrite=True, **options)
        corpus = msajax.open_corpus(tmp_path / "c.npz")
        ids = {name: corpus.split(name).ids.tolist() for name in corpus.headers}
        return {name: {given["group"][int(i)] for i in found} for name, found in ids.items()}

    found = drawn(group="group")
    assert [len(found[s]) for s in ("train", "valid", "test")] == [2, 1, 1]
    assert set.union(*found.values()) == set("bcde")
    assert found == drawn(group="group", seed=0)
    assert any(drawn(group="group", seed=seed) != found for seed in (1, 2, 3))
    shares = (0, 0, 1)
    assert set(drawn(group="id")) == {"test"}


def test_a_corpus_is_replaced_only_if_that_is_asked_for(tmp_path):
    path = tmp_path / "c.npz"
    save(path)
    before = path.read_bytes()
    with pytest.raises(msajax.UserError, match="is there already.*overwrite=True"):
        save(path)
    with pytest.raises(msajax.UserError, match="has 1 entries"):
        save(path, sequences={"audio": [np.ones((1, 2))]}, overwrite=True)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["c.npz"]
    save(path, sequences={"audio": lists(seed=5)}, overwrite=True)
    assert path.read_bytes() != before
    (tmp_path / "notes.npz").write_text("mine")
    with pytest.raises(msajax.UserError, match="is there and no .npz archive"):
        save(tmp_path / "notes.npz", overwrite=True)


def changed(i, value):
    """Lists of which one is another."""
    return {"audio": [value if k == i else x for k, x in enumerate(lists())]}


MISTAKES = (
    (dict(given=[1, 2]), "table is of type list: expected a data frame of"),
    (dict(given="labels.csv"), "table is of type str: expected a data frame"),
    (dict(given=table(mood=[1.0])), "The columns of the table differ in length: 12"),
    (dict(given=table(x=5)), "Column 'x' of the table is of type int"),
    (dict(given={"id": []}), "The table has no row"),
    (dict(given=pandas.DataFrame([[i, 1, 2] for i in range(N)], columns=["id", "mood", "mood"])),
     "Column 'mood' of the table is a table, of the columns 'mood', 'mood': expected a single col"),
    (dict(id="clip"), "id='clip': the table has no such column; it has 'id', 'mood'"),
    (dict(given=table(id=["a"] * N)), "Column 'id' has the id 'a' twice, in the rows 0"),
    (dict(given=table(id=[None, *range(N - 1)])),
     "Column 'id', the id, is None in row 0 (from 0): expected text or a whole number."),
    (dict(group=pandas.Series(["a"] * N)), "group is of type Series: expected the name of a col"),
    (dict(label="moood"), "label='moood': the table has no such column"),
    (dict(label=3), "label=3: expected the name of a column, several"),
    (dict(given=table(mood=[0.0, None, *[1.0] * 10])),
     "1 of 6 samples of train have no label, the first in row 1 (from 0)"),
    (dict(given=table(mood=[np.inf] * N)),
     "Column 'mood' of labels is inf in row 0 (from 0), of the sample 'v0[0]': expected a fin"),
    (dict(given=table(mood=["0.5"] * N)),
     "Column 'mood' of labels holds numbers as text, as '0.5': make numbers of them"),
    (dict(given=table(mood=["a", 1.0] * 6)),
     "Column 'mood' of labels is 1.0 in row 1 (from 0), but text in other rows"),
    (dict(given=table(mood=["a", "b"] * 6), label={"mood": ["a", "c"]}),
     "Column 'mood' has the class 'b', which is none of ['a', 'c']."),
    (dict(given=table(mood=["a"] * N)), "Column 'mood' has 1 class(es): expected 2 to"),
    (dict(given=table(mood=["a", "b"] * 6), label=["mood", "speaker"]),
     "label=['mood', 'speaker']: classes are one column of text"),
    (dict(split="set"), "split='set': the table has no such column; it has"),
    (dict(given=table(fold=["train", "holdout"] * 6)),
     "split='fold': row 1 (from 0) says 'holdout'; expected one of train, valid, val, dev, test"),
    (dict(split=(70, 10, 20)), "split=(70, 10, 20): expected the name of a"),
    (dict(split=(0.8, 0.2)), "split=(0.8, 0.2): expected the name of a column, or"),
    (dict(split=(0.7, 0.1, 0.2), group="speaker"),
     "split=(0.7, 0.1, 0.2): the 12 samples make 2 group(s) by speaker, too few for 3 splits t"),
    (dict(given=table(id=list(range(N))), split=(0.7, 0.1, 0.2)),
     "Shares are drawn by video, but the id '0' does not tell which video it is of"),
    (dict(split=(0.5, 0.3, 0.2), seed=-1), "seed=-1: expected a whole number of"),
    (dict(group="fold2", given=table(fold2=["x"] * N)),
     "group='fold2': samples of 'x' are in train and in valid"),
    (dict(sequences=[lists()]), "sequences is of type list and names no mo"),
    (dict(sequences={"audio": {"a": 1}}),
     "sequences['audio'] is of type dict: expected a list with an entry for each sample in the"),
    (dict(sequences={"audio": (x for x in lists())}),
     "sequences['audio'] is of type generator: expected a list"),
    (dict(sequences={"audio": lists()[:5]}),
     "sequences['audio'] has 5 entries, but the table has 12 rows: expected one for each"),
    (dict(sequences={"label": lists()}), "sequences names 'label', which no modali"),
    (dict(sequences={"audio_mask": lists()}), "sequences names 'audio_mask', which"),
    (dict(sequences=changed(4, np.ones((2, 3)))),
     "sequences['audio'][4], of 'v1[4]', is 3 wide, not 2 as sequences['audio'][0], of 'v0[0]'"),
    (dict(sequences=changed(4, np.ones((2, 3, 2)))),
     "sequences['audio'][4], of 'v1[4]', is float64 (2, 3, 2): expected numbers [T, d]"),
    (dict(sequences=changed(4, np.ones(2))),
     "sequences['audio'][4] is float64 (2,), but sequences['audio'][0] is float64 (3, 2)"),
    (dict(sequences={"audio": [np.ones(t) for t in LENGTHS]}),
     "sequences['audio'] holds rows of 1 to 5 numbers: expected arrays [T, d]; steps of a sing"),
    (dict(sequences=changed(4, [[1.0], [1.0, 2.0]])),
     "sequences['audio'][4], of 'v1[4]', is no array of numbers: setting an array element"),
    (dict(sequences={"audio": ["a.wav"] * N}),
     "sequences['audio'] holds text: transcripts are sequences['raw_text'], and other"),
    (dict(sequences={"text": ["so"] * N, "raw_text": ["so"] * N}),
     "sequences['raw_text'] holds transcripts, of which there are others: give one of them."),
    (dict(sequences={"text": ["well", 5, *["so"] * 10]}),
     "sequences['text'][1] is of type int, but others are text"),
    (dict(sequences={"words": [["so"], "good", *[["well"]] * 10]}),
     "sequences['words'][1] must be a list of words, as ['so', 'good']."),
    (dict(sequences={"text": [["so", None], *[["well"]] * 11]}),
     "sequences['text'][0][1] is None: expected a word, or '' for a step without one."),
    (dict(sequences={"text": [[None, "so"], *[["well"]] * 11]}),
     "sequences['text'][0][0] is None: expected a word, or '' for a step without one."),
    (dict(given=pandas.DataFrame(table()).sample(frac=1, random_state=0),
          sequences={"audio": pandas.Series(lists())}),
     "sequences['audio'] and the table have different indices, but row i of one is paired with"),
    (dict(given=table(id=[0.5, *range(N - 1)])),
     "Column 'id', the id, is 0.5 in row 0 (from 0): expected text or a whole number."),
    (dict(sequences={"audio": [None] * N}),
     "sequences['audio'] has no step in any sample: leave it out."),
    (dict(sequences={"audio": np.ones(N)}),
     "sequences['audio'] is an array (12,): expected a list of N arrays [T, d]"),
    (dict(sequences={"audio": lists(), "face": lists()[::-1]}, aligned=("audio", "face")),
     "aligned=('audio', 'face'): 'v0[0]' (sample 0) has 3 step(s) of audio, but 5 of face"),
    (dict(aligned=["audio", "txt"]), "aligned=['audio', 'txt']: expect"),
    (dict(sequences={"text": ["\ud800", *["so"] * 11]}),
     "sequences['text'][0] holds a character that Unicode does not have"),
    (dict(labels="mood"), "save_corpus has no argument 'labels': did you"),
    (dict(path="c.pkl"), "c.pkl: a corpus is written as an archive, whose"),
    (dict(path="no/c.npz"), "no/c.npz cannot be written: No such file or directory"),
    (dict(path=None), "path=None: expected the name of a file, as 'corpus.npz'."),
)


@pytest.mark.parametrize(("options", "sentence"), MISTAKES, ids=[m[1][:40] for m in MISTAKES])
def test_a_mistake_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch, options, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(msajax.UserError) as caught:
        save(**{"path": "c.npz", **options})
    assert str(caught.value).startswith(sentence) and "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []
