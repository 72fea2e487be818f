"""Which pickles are which corpus: formats by content, folders of splits, no splits at all."""

import gzip
import io
import logging
import os
import pathlib
import re
import tempfile

import numpy as np
import pytest
from pickle_corpora import (
    misa,
    mmsa,
    mmsa_split,
    mult,
    mult_split,
    refusal,
    write_glove,
    write_pickle,
)

from msajax.config import DataConfig
from msajax.corpus import formats
from msajax.corpus.folds import video_of
from msajax.corpus.formats import open_corpus, pickled
from msajax.corpus.pickles import read_pickle
from msajax.errors import UserError

GZIPPED = "msajax.corpus.pickles.reader"
TREES = {"mmsa": mmsa, "mult": mult, "misa": misa}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "corpus.pkl"


@pytest.mark.parametrize("suffix", ["npz", ""])
@pytest.mark.parametrize("format", TREES)
def test_the_format_is_found_by_content_whatever_the_name(tmp_path, format, suffix):
    path = write_pickle(tmp_path / f"corpus.{suffix}", TREES[format]())
    found, insisted_on = open_corpus(path), open_corpus(path, DataConfig(format=format))
    assert found.source.format == insisted_on.source.format
    assert found.why == formats.FORMATS[format].why


def test_another_format_may_be_insisted_on(path):
    corpus = open_corpus(write_pickle(path, mmsa()), DataConfig(format="mult"))
    assert corpus.source.format == "MulT or MultiBench pickle"
    assert corpus.headers["train"].masked == frozenset()
    for format, tree in (("misa", mmsa()), ("mmsa", mult()), ("mult", misa())):
        found = refusal(path, tree, format=format)
        assert re.search(r"a pickle of a (dict|list) of .*, is not a corpus: expected a pic", found)
    for format in ("native", "mapped", "csd", "old_hdf5"):
        assert "is not a corpus: expected a" in refusal(path, mmsa(), format=format)
    with pytest.raises(UserError, match="data.format = 'npz': must be one of auto, native, mapped"):
        open_corpus(path, DataConfig(format="npz"))


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_pickle_is_read_once_whatever_it_is(tmp_path, monkeypatch, as_folder):
    files = []

    def counted(path):
        files.append(os.path.basename(path))
        return read_pickle(path)

    monkeypatch.setattr(pickled, "read_pickle", counted)
    parts = misa() if as_folder else {"corpus": misa()}
    for name, tree in parts.items():
        write_pickle(tmp_path / f"{name}.pkl", tree)
    corpus = open_corpus(tmp_path if as_folder else tmp_path / "corpus.pkl")
    assert corpus.source.format == "MISA or MAG pickle"
    assert sorted(files) == sorted(f"{name}.pkl" for name in parts)


def gz(path: pathlib.Path, content: bytes | None = None) -> pathlib.Path:
    """Beside a file, the same or other content through gzip."""
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes() if content is None else content))
    return packed


@pytest.mark.parametrize("protocol", [0, 4])
@pytest.mark.parametrize("format", TREES)
def test_a_pickle_through_gzip_is_the_same_corpus(tmp_path, format, protocol):
    plain = write_pickle(tmp_path / "corpus.pkl", TREES[format](), protocol)
    packed, wanted = open_corpus(gz(plain)), open_corpus(plain)
    assert packed.digest == wanted.digest and packed.headers == wanted.headers
    part = gz(write_pickle(tmp_path / "dev.pkl", TREES[format]()["train"], protocol))
    assert list(open_corpus(part).headers) == ["valid"]
    # The name does not matter: a file of any name, two files one after the other.
    content = plain.read_bytes()
    plain.write_bytes(gzip.compress(content[:99]) + gzip.compress(content[99:]))
    assert open_corpus(plain).digest == wanted.digest


def test_a_gzip_file_that_is_damaged_or_holds_something_else_is_refused(tmp_path):
    path = tmp_path / "corpus.pkl"
    for other in (b"no pickle at all" * 999, b"", b"PK\3\4"):
        assert "is not a corpus: expected" in refusal(gz(path, other))
    packed = gz(write_pickle(path, mult()))
    content = packed.read_bytes()
    flipped = content[:-6] + bytes([content[-6] ^ 1]) + content[-5:]  # in the check sum
    for damaged in (content[:-9], content[: len(content) // 2], content[:12], content[:2],
                    flipped, content + b"more", content[:10] + b"\7" + content[11:]):
        packed.write_bytes(damaged)
        assert refusal(packed).endswith(".gz is a damaged gzip file, or was not copied to its end.")


def test_a_gzip_file_that_holds_too_much_is_refused_before_it_fills_the_disk(tmp_path, monkeypatch):
    zeros = {"train": {"audio": np.zeros((200, 50, 50)), "id": list(range(200))}}
    packed = gz(write_pickle(tmp_path / "corpus.pkl", zeros))
    sizes = []  # of temporary files when they go

    class Counted(io.BytesIO):
        def close(self):
            sizes.append(self.tell())
            super().close()

    monkeypatch.setattr(tempfile, "TemporaryFile", Counted)
    monkeypatch.setattr(f"{GZIPPED}._CHUNK", 1000)
    most = 64 * packed.stat().st_size
    assert most < 10**6 < zeros["train"]["audio"].nbytes
    assert refusal(packed).startswith(f"{packed} holds more than {most} bytes, which a gzip file")
    monkeypatch.setattr(f"{GZIPPED}.MOST_BYTES", 1500)
    packed = gz(write_pickle(tmp_path / "corpus.pkl", mult()))
    assert "holds more than 1500 bytes" in refusal(packed)
    assert [size <= most for size in sizes] == [True, True] and sizes[1] == 1000
    assert sorted(tmp_path.iterdir()) == [tmp_path / "corpus.pkl", packed]


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", type("Full", (io.BytesIO,), {"write": full}))
    found = refusal(gz(write_pickle(tmp_path / "corpus.pkl", mult())))
    assert re.search(r"gz cannot be decompressed in /.*: No space left on device\.$", found)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("format", TREES)
def test_a_folder_with_a_pickle_for_each_split_is_the_same_corpus(tmp_path, format, packed):
    tree = TREES[format]()
    for name, called in zip(tree, ("train.pkl", "val.pickle", "TEST.p"), strict=True):
        path = write_pickle(tmp_path / called, tree[name], 2)
        if packed:
            gz(path)
            path.unlink()
    (tmp_path / "notes.txt").write_text("train")
    write_pickle(tmp_path / "word2id.pkl", {"a": 1})
    corpus = open_corpus(tmp_path)
    wanted = open_corpus(write_pickle(tmp_path / "all.pkl", tree))
    assert corpus.digest == wanted.digest and corpus.headers == wanted.headers


def test_files_of_a_folder_that_are_not_read_are_said_once(tmp_path, caplog):
    for name, samples in misa().items():
        write_pickle(tmp_path / f"{name}.pkl", samples)
    write_glove(tmp_path / "glove.txt")
    write_pickle(tmp_path / "word2id.pkl", {"a": 1})
    for glove_path, others in (("", "'glove.txt', "), (str(tmp_path / "glove.txt"), "")):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            corpus = open_corpus(tmp_path, DataConfig(glove_path=glove_path))
            corpus.split("train")
        assert caplog.text.count("not read") == 1
        assert f"{tmp_path}: not read: {others}'word2id.pkl'." in caplog.text
        assert corpus.source.has_vectors == bool(glove_path)


def test_a_folder_of_pickles_is_refused_where_it_is_ambiguous(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "is not a corpus" in refusal(folder)
    write_pickle(folder / "dev.pkl", misa()["dev"])
    write_pickle(folder / "valid.pkl", misa()["dev"])
    assert re.search(r"dev\.pkl and .*valid\.pkl are both the split 'valid'\.$", refusal(folder))
    (folder / "valid.pkl").unlink()
    write_pickle(folder / "train.pkl", misa())
    found = refusal(folder)
    assert "train.pkl holds splits, but in a folder it is itself the split 'train': name" in found
    write_pickle(folder / "train.pkl", mult()["train"])
    assert re.search(r"folder: valid is a list of 3; expected a dict\.$", refusal(folder))


def test_a_pickle_of_something_else_is_told_what_it_is(path, caplog):
    assert "corpus.pkl: 'dev' and 'valid' are both the split valid." in refusal(
        path, misa() | {"valid": []}
    )
    with caplog.at_level(logging.INFO):
        open_corpus(write_pickle(path, mult() | {"meta": 1, 3: 4}))
    assert "2 entries beside the splits are not read" in caplog.text
    for tree, what in (
        *((3, "an int"), ("text", "a str"), (None, "a NoneType"), ({}, "a dict of 0")),
        ({3}, "a set"),
        ({"a": 1, "b\n": 2}, r"a dict of 'a', 'b\\n'"),
        ({i: i for i in range(9)}, "a dict of 9, …"),
        ({"train": 3, "valid": 4}, "an int"),
        ({"train": {"speech": np.ones(3)}}, "a dict of 'speech'"),
        ({"train": {"annotations": ["good"]}}, "a dict of 'annotations'"),
        *(([1, 2], "a list of 2"), ([[1, 2]], "a list of 1")),
        (np.ones(3), r"an array of float64 of shape \(3,\)"),
        ({"train": np.ones((3, 2, 2))}, r"an array of float64 of shape \(3, 2, 2\)"),
    ):
        write_pickle(path, tree)
        wanted = rf"corpus\.pkl, a pickle of {what}, is not a corpus: expected a pickle of MMSA, or"
        assert re.search(wanted, refusal(path)), what


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("form", ["Series", "Index", "array", "StringDType"])
def test_strings_of_pandas_are_refused_with_their_place_and_what_to_store(path, protocol, form):
    pandas = pytest.importorskip("pandas")
    tree = mult()
    given = pandas.Series([str(i) for i in tree["train"]["id"]], dtype="str")
    kept = {
        "Series": given,
        "Index": pandas.Index(given),
        "array": given.array,
        "StringDType": np.array(given.tolist(), np.dtypes.StringDType()),
    }
    tree["train"] = {"label": tree["train"]["labels"], "id": kept[form]}
    write_pickle(path, tree, protocol)
    found = refusal(path)
    method = "astype" if form == "StringDType" else "to_numpy"
    assert f"it stands at 'train/id'; store its .{method}(" in found
    write_pickle(path, {"train": pandas.DataFrame({"id": ["a", "b"], "y": [1, 2]})}, protocol)
    assert "it stands at 'train'; msajax.save_corpus makes a corpus of such a t" in refusal(path)


# --- splits that are not there ---


@pytest.mark.parametrize("stem", ["train", "dev", "Test"])
def test_a_part_is_the_split_that_its_file_is_named_for(tmp_path, stem):
    wanted = {"train": "train", "dev": "valid", "Test": "test"}[stem]
    for tree in (misa()["train"], mult()["train"], mmsa()["train"]):
        corpus = open_corpus(write_pickle(tmp_path / f"{stem}.pkl", tree))
        assert list(corpus.headers) == [wanted] and corpus.headers[wanted].size == 5


def segments(format: str, count: int = 24):
    """One split of `count` samples, three of each video, not in the order of videos."""
    order = np.random.default_rng(0).permutation(count)
    if format == "misa":
        samples = [misa()["train"][0]] * count
        return [(x, np.full((1, 1), k / 9), f"v{k // 3}[{k % 3}]") for k, (x, _, _) in
                zip(order, samples, strict=True)]
    make, label = (mmsa_split, "regression_labels") if format == "mmsa" else (mult_split, "labels")
    return make("train", count) | {"id": [f"v{k // 3}$_${k % 3}" for k in order], label: order / 9}


@pytest.mark.parametrize("format", TREES)
def test_without_splits_whole_videos_go_to_one_split(path, format):
    tree = segments(format)
    order = [sample[2] for sample in tree] if format == "misa" else tree["id"]
    corpus = open_corpus(write_pickle(path, tree))
    assert {name: header.size for name, header in corpus.headers.items()} == {
        "train": 15, "valid": 3, "test": 6
    }  # fmt: skip
    owner, seen = {}, []
    for name in corpus.headers:
        split = corpus.split(name)
        for id_, label in zip(split.ids.tolist(), split.labels[:, 0], strict=True):
            video, clip = re.split(r"\$_\$|\[", id_.rstrip("]"))
            assert owner.setdefault(video, name) == name
            assert round(9 * label) == 3 * int(video[1:]) + int(clip)  # rows stay together
        places = {id_: k for k, id_ in enumerate(order)}
        assert sorted(split.ids.tolist(), key=places.get) == split.ids.tolist()
        seen += split.ids.tolist()
    assert sorted(seen) == sorted(order)
    again, other = open_corpus(path), open_corpus(path, DataConfig(split_seed=1))
    assert again.digest == corpus.digest != other.digest


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (list(range(24)), "the id '0' does not tell which video it is of: expected ids like"),
        (None, "has neither splits nor ids by which to split it"),
        (["v[0]"] * 20 + ["w[1]"] * 4, r"has segments of 2 video\(s\); at least 3 are needed"),
    ],
)
def test_ids_that_do_not_tell_videos_cannot_split_a_corpus(path, ids, message):
    assert re.search(message, refusal(path, segments("mult") | {"id": ids}))
    if ids:
        tree = [(x, y, id_) for (x, y, _), id_ in zip(segments("misa"), ids, strict=True)]
        assert re.search(message, refusal(path, tree))


def test_the_video_is_read_from_the_id():
    for id_, video in {
        "03bSnISJMiM$_$11": "03bSnISJMiM", "video_0001$_$0003": "video_0001", "12_3": "12",
        "03bSnISJMiM[3]": "03bSnISJMiM", "a_b[3]": "a_b", "v[23.199-30.325]": "v",
        "_dI--eQ6qVU_3": "_dI--eQ6qVU", "a_1_3": "a_1", "plain": "plain", "[3]": "[3]",
        "17": None, "test_17": None, "dev_3": None, "test_a_3": "test_a", "test[3]": "test",
        "0.5": None, "": None,
    }.items():
        assert video_of(id_) == video
