"""The native format: reading returns what was written; a bad file ends in one clear sentence."""

import dataclasses
import io
import os
import pathlib
import pickle
import re
import struct
import zipfile

import numpy as np
import pytest
import refusals
from hypothesis import given, settings
from hypothesis import strategies as st

from msajax.config import DataConfig
from msajax.corpus.corpus import Corpus, Source, Split, SplitHeader, modality_order, pad_words
from msajax.corpus.formats import native, open_corpus
from msajax.corpus.formats.native import save_mapped, save_native
from msajax.corpus.in_memory import corpus_of
from msajax.errors import UserError

SIZES = {"train": 4, "valid": 3, "test": 2}


def good_arrays() -> dict[str, np.ndarray]:
    """A small corpus as named arrays: text with a mask, audio without, one label, transcripts."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split, size in SIZES.items():
        arrays |= {
            f"{split}/text": rng.normal(size=(size, 5, 3)).astype(np.float32),
            f"{split}/text_mask": rng.random((size, 5)) < 0.7,
            f"{split}/audio": rng.normal(size=(size, 2, 4)),
            f"{split}/label": rng.normal(size=size),
            f"{split}/id": np.array([f"{split}{i}" for i in range(size)]),
            f"{split}/raw_text": np.array([f"größer than {i}" for i in range(size)]),
        }
    return arrays


def npy(array: np.ndarray | bytes) -> bytes:
    if isinstance(array, bytes):
        return array
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asanyarray(array), allow_pickle=False)
    return buffer.getvalue()


def write_members(path: pathlib.Path, members: list[tuple[str, bytes]]) -> pathlib.Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def write(path: pathlib.Path, arrays: dict[str, np.ndarray | bytes]) -> pathlib.Path:
    return write_members(path, [(f"{name}.npy", npy(x)) for name, x in arrays.items()])


def refusal(path) -> str:
    return refusals.refusal(open_corpus, path)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "corpus.npz"


# --- what is read ---


def test_a_corpus_survives_being_written_and_read(path):
    rng = np.random.default_rng(1)
    splits = {
        name: Split(
            ids=np.array([f"é{name}_{i}" for i in range(size)]),
            features={
                "video": rng.normal(size=(size, 2, 7)).astype(np.float32),
                "text": rng.normal(size=(size, 5, 3)).astype(np.float16),
                "audio": np.asfortranarray(rng.normal(size=(size, 9, 4))),
                "gaze": rng.integers(0, 100, (size, 1, 2), np.int32),
            },
            masks={"text": rng.random((size, 5)) < 0.5},
            labels=rng.normal(size=(size, 1)),
            raw_text=np.array([f"line\nbreak, 'quote' {i}" for i in range(size)]),
            words=pad_words([["größer", "", "than"][: 3 - i % 2] for i in range(size)], 4),
        )
        for name, size in SIZES.items()
    }
    splits["train"].features["audio"][0, 0] = np.nan, np.inf, -np.inf, 0.0
    save_native(path, corpus_of(splits))
    corpus = open_corpus(path)

    assert list(corpus.headers) == ["train", "valid", "test"]
    for name, wanted in splits.items():
        found, header = corpus.split(name), corpus.headers[name]
        assert header.size == len(found) == SIZES[name]
        assert header.shapes == {"text": (5, 3), "audio": (9, 4), "video": (2, 7), "gaze": (1, 2)}
        assert header.masked == {"text"} and header.label_names == ("sentiment",)
        assert found.features.keys() == wanted.features.keys()
        for m, x in wanted.features.items():
            np.testing.assert_array_equal(found.features[m], x, strict=True)
            assert header.dtypes[m] == x.dtype.name
        assert found.masks.keys() == {"text"}
        np.testing.assert_array_equal(found.masks["text"], wanted.masks["text"], strict=True)
        np.testing.assert_array_equal(found.ids, wanted.ids)
        np.testing.assert_array_equal(found.labels, wanted.labels, strict=True)
        np.testing.assert_array_equal(found.raw_text, wanted.raw_text)
        assert found.words.tolist() == wanted.words.tolist() and header.words == 4


def test_words_that_would_take_all_memory_are_not_written(path):
    words = pad_words([["a"] * 50_000] * 50)
    words[0, 0] = "a" * 1000
    split = Split(np.arange(50).astype(str), {"audio": np.ones((50, 1, 1))}, {}, words=words)
    with pytest.raises(UserError, match="2500000 words take over .* the 1000 letters of the"):
        save_native(path, corpus_of({"test": split}))


@pytest.mark.parametrize("aligned", [None, (), ("audio",), ("video", "text")])
@pytest.mark.parametrize("as_what", ["archive", "folder"])
def test_what_is_aligned_survives_being_written_and_read(tmp_path, aligned, as_what):
    ones = {m: np.ones((2, 3, 1)) for m in ("text", "audio", "video")}
    corpus = corpus_of({"test": Split(np.array(["a", "b"]), ones, {})}, aligned=aligned)
    (save_native if as_what == "archive" else save_mapped)(str(tmp_path / "c"), corpus)
    again = open_corpus(tmp_path / "c")
    again.verify()
    assert again.aligned == aligned


def test_splits_labels_transcripts_and_masks_may_be_missing(tmp_path):
    path = tmp_path / "no_suffix"  # written where it was asked for, read whatever the name
    made = Split(np.array(["a"]), {"text": np.ones((1, 2, 3))}, {})
    save_native(path, corpus_of({"valid": made}))
    assert list(tmp_path.iterdir()) == [path]
    corpus = open_corpus(path)
    split = corpus.split("valid")
    assert (split.labels, split.raw_text, dict(split.masks)) == (None, None, {})
    assert list(corpus.headers) == ["valid"] and corpus.headers["valid"].label_names == ()
    with pytest.raises(UserError, match=r"has no split 'train'; it has valid\.$"):
        corpus.split("train")


@pytest.mark.parametrize("as_what", ["archive", "folder"])
@pytest.mark.parametrize("masked", [None, (4,), (4, 1)])
def test_real_numbers_of_two_axes_are_features_of_one_step(tmp_path, path, as_what, masked):
    audio, ids = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones((4, 3), np.int8)
    arrays = {"audio": audio, "ids": ids, "id": np.array(list("abcd"))}
    mask = np.array([True, False, True, True])
    if masked:
        arrays["audio_mask"] = mask.reshape(masked)
    if as_what == "folder":
        path = tmp_path / "folder"
        native.write_arrays(str(path), [(f"train/{k}", arrays[k]) for k in sorted(arrays)])
    else:
        write(path, {f"train/{name}": array for name, array in arrays.items()})
    corpus = open_corpus(path)
    assert corpus.headers["train"].shapes == {"audio": (1, 3), "ids": (3, 0)}
    split = corpus.split("train")
    assert isinstance(split.features["audio"], np.memmap) == (as_what == "folder")
    np.testing.assert_array_equal(split.features["audio"], audio[:, None])
    np.testing.assert_array_equal(split.features["ids"], ids, strict=True)
    assert {m: a.tolist() for m, a in split.masks.items()} == (
        {"audio": mask[:, None].tolist()} if masked else {}
    )
    again = tmp_path / "again.npz"
    save_native(again, corpus)
    assert open_corpus(again).headers == corpus.headers
    with np.load(again) as stored:
        assert stored["train/audio"].shape == (4, 1, 3)


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, np.bool_])
def test_labels_become_one_float64_column(path, shape, dtype):
    values = np.array([1, 0, 1, 1], dtype)
    write(path, good_arrays() | {"train/label": values.reshape(shape)})
    labels = open_corpus(path).split("train").labels
    np.testing.assert_array_equal(labels, [[1.0], [0.0], [1.0], [1.0]])
    assert labels.dtype == np.float64


def test_opening_keeps_no_features_and_a_split_is_read_when_asked_for(path):
    write(path, good_arrays())
    corpus = open_corpus(path)
    assert corpus.split("test").features["text"].shape == (2, 5, 3)
    path.unlink()
    assert corpus.headers["train"].size == 4
    with pytest.raises(UserError, match="changed or went bad while in use"):
        corpus.split("train")


def test_modalities_are_text_audio_video_then_alphabetical(path):
    names = {"zebra", "video", "Eeg", "text", "accel", "audio"}
    assert modality_order(names) == ("text", "audio", "video", "Eeg", "accel", "zebra")
    assert modality_order({"b", "audio", "a"}) == ("audio", "a", "b")
    arrays = good_arrays() | {"test/eye": np.ones((2, 1, 1)), "valid/brain": np.ones((3, 1, 1))}
    corpus = open_corpus(write(path, arrays))
    assert corpus.modalities == ("text", "audio", "brain", "eye")
    assert [corpus.width(m) for m in corpus.modalities] == [3, 4, 1, 1]


def test_an_id_that_occurs_thrice_is_one_repeated_id(path):
    ids = {
        "train/id": np.array(["a", "b", "a", "c"]),
        "valid/id": np.array(["a", "c", "d"]),
        "test/id": np.array(["e", "f"]),
    }
    assert open_corpus(write(path, good_arrays() | ids)).repeated_ids == 2
    assert open_corpus(write(path, good_arrays())).repeated_ids == 0


# --- the digest ---


def test_the_digest_depends_on_content_alone_and_sees_one_change(tmp_path):
    arrays, path = good_arrays(), tmp_path / "c.npz"
    first = open_corpus(write(path, arrays)).digest
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert open_corpus(write(path, dict(reversed(arrays.items())))).digest == first
    np.savez_compressed(path, **arrays)
    assert open_corpus(path).digest == first
    audio, text, mask = arrays["test/audio"].copy(), arrays["train/text"], arrays["train/text_mask"]
    audio[0, 0, 0] = np.nextafter(audio[0, 0, 0], 9)
    signs, ids = np.ones(text.shape, np.float32), arrays["valid/id"].copy()
    signs[-1, -1, -1], ids[0] = -1, "valid9"
    for change in (
        {"test/audio": audio},
        {"train/text": text * signs},
        {"train/text_mask": mask ^ (np.arange(mask.size) == 0).reshape(mask.shape)},
        {"valid/id": ids},
        {"train/text": text.view(np.int32)},
        {f"{s}/audio": None for s in SIZES} | {f"{s}/eeg": arrays[f"{s}/audio"] for s in SIZES},
        {"valid/raw_text": None},
        # The same bytes, read column by column:
        {"train/audio": arrays["train/audio"].ravel().reshape((4, 2, 4), order="F")},
    ):
        changed = {k: v for k, v in (arrays | change).items() if v is not None}
        assert open_corpus(write(path, changed)).digest != first, list(change)


def test_the_digest_of_a_corpus_in_memory_depends_on_content_and_names_alone():
    split = Split(
        np.array(["a", "b"]), {"m": np.arange(12.0).reshape(2, 3, 2)}, {"m": np.ones((2, 3), bool)},
        labels=np.array([[0.0], [1.0]]), raw_text=np.array(["one", "two"]),
    )
    x = split.features["m"]

    def of(name="train", given=None, **changes) -> str:
        return corpus_of({name: dataclasses.replace(split, **changes)}, **(given or {})).digest

    same = (x, np.asfortranarray(x), x.astype(">f8"), x.repeat(2, 1)[:, ::2])
    assert {of(features={"m": y}) for y in same} == {of()}
    others = (x.view(np.int64), -x, x.astype(np.float32))
    digests = [of(), *(of(features={"m": y}) for y in others), of("test")]
    digests += [
        of(**change)
        for change in (
            {"masks": {}}, {"masks": {"m": split.masks["m"] & [True, False, True]}},
            {"masks": {}, "features": {"m": x.reshape(2, 2, 3)}},
            {"ids": np.array(["a", "c"])}, {"labels": np.array([[1.0], [1.0]])},
            {"raw_text": np.array(["one", "tow"])}, {"given": {"integers": True}},
            {"given": {"integers": True, "label_names": ("a", "b")}},
            {"given": {"aligned": ()}}, {"given": {"aligned": ("m",)}},
        )
    ]
    assert len(set(digests)) == len(digests) == 15


# --- paths that are no corpus ---


def test_a_path_that_leads_to_no_corpus_is_refused_and_not_waited_for(tmp_path, path):
    assert re.search(r"There is no corpus at .*gone\.npz\.$", refusal(tmp_path / "gone.npz"))
    assert re.search(r"data\.path is empty: pass .*--config\.data\.path=", refusal(""))
    assert re.search("is not a corpus: expected .* or a folder of such arrays", refusal(tmp_path))
    for content in (b"", b"PK", b"id,label\n1,2\n", b"\x93NUMPY\x01\x00", b"PK\5"):
        path.write_bytes(content)
        assert re.search(r"is not a corpus: expected a native \.npz archive", refusal(path))
    os.mkfifo(tmp_path / "pipe")
    said = "pipe (cannot be read: it is no regular file|is not a)"
    for format in ("auto", "native", "misa"):
        with pytest.raises(UserError, match=said):
            open_corpus(tmp_path / "pipe", DataConfig(format=format))


# --- archives that are damaged or hostile ---


@pytest.fixture(scope="module")
def small_file(tmp_path_factory) -> tuple[pathlib.Path, bytes, str]:
    path = tmp_path_factory.mktemp("flips") / "corpus.npz"
    arrays = {k: v for k, v in good_arrays().items() if k.startswith("test/")}
    np.savez_compressed(path, **arrays)
    return path, path.read_bytes(), open_corpus(path).digest


@settings(max_examples=150, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_changed_byte_anywhere_is_refused_or_changes_nothing(small_file, where, flip):
    path, original, digest = small_file
    content = bytearray(original)
    content[int(where * len(content))] ^= flip
    path.write_bytes(content)
    try:
        corpus = open_corpus(path)
    except UserError as error:
        refusals.sentence(error)
        return
    assert corpus.digest == digest  # a timestamp, or the like


@pytest.mark.parametrize("name", ["train/text", "train/id"])
def test_a_pickled_array_is_refused_and_nothing_in_it_runs(tmp_path, path, name):
    marker = tmp_path / "executed"

    class Payload:
        def __reduce__(self):
            return pathlib.Path.touch, (marker,)

    array = np.empty(len(good_arrays()[name]), object)
    array[:] = Payload()
    np.savez(path, allow_pickle=True, **(good_arrays() | {name: array}))
    said = refusal(path)
    assert re.search(f"array '{name}' holds Python objects.*msajax.save_corpus pads lists", said)
    assert not marker.exists()
    with np.load(path, allow_pickle=True) as archive:  # the payload does work
        assert archive[name] is not None
    assert marker.exists()


def header_of(text: str, version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text.encode("latin1")


def test_a_header_that_lies_about_its_size_is_refused(path):
    for shape, message in (
        ((40000, 500, 3), r"declares 240000000 bytes but 240 are stored"),
        ((4, 5, 2), r"declares 160 bytes but 240 are stored"),
        ((4, -5, -3), r"has no readable \.npy header"),
        ((2**40, 2**40, 2**40), r"declares \d+ bytes but 240 are stored"),
    ):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape!r}}}\n"
        write(path, good_arrays() | {"train/text": header_of(header) + bytes(4 * 60)})
        assert re.search(message, refusal(path))


def test_an_archive_directory_that_lies_is_refused(path):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 1000, 1000)}\n"
    content = header_of(header) + bytes(240)
    write_members(path, [("train/text.npy", content), ("train/id.npy", npy(["a"] * 4))])
    raw = bytearray(path.read_bytes())
    at = raw.index(b"PK\x01\x02")  # the directory's first entry
    raw[at + 24 : at + 28] = struct.pack("<I", len(content) - 240 + 4 * 4 * 10**6)
    path.write_bytes(raw)
    assert re.search("array 'train/text' ends 15999760 bytes too early", refusal(path))

    raw = bytearray(write(path, good_arrays()).read_bytes())
    entry = raw.index(b"PK\x01\x02")
    mask = raw.index(b"PK\x01\x02", entry + 4)
    after = raw.index(b"PK\x01\x02", mask + 4)
    raw[entry + 32 : entry + 34] = struct.pack("<H", after - mask)  # a comment over the next entry
    path.write_bytes(raw)
    with zipfile.ZipFile(path) as archive:  # zipfile does not notice
        assert "train/text_mask.npy" not in archive.namelist()
    assert re.search("its directory is inconsistent", refusal(path))


def test_an_unreadable_array_header_is_refused(path):
    for content in (
        *(b"", b"text", b"\x93NUMPY\x07\x00", pickle.dumps([1, 2])),
        header_of("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 5, 3"),
        header_of("{'descr': '<f4', 'fortran_order': False, 'shape': '4'}"),
        header_of("{'descr': '<q9', 'fortran_order': False, 'shape': (4,)}"),
        header_of("{'descr': ('<f4', 'x'), 'fortran_order': False, 'shape': (4,)}"),
        *map(header_of, ("{'shape': (4,)}", "(" * 9000, "{[]: 1}", "# " * 9000, "\x00")),
        header_of("{}", b"\x03\x00"),
    ):
        write(path, good_arrays() | {"train/text": content})
        assert re.search(r"array 'train/text' has no readable \.npy header", refusal(path)), content


def test_an_encrypted_archive_is_refused(path):
    raw = bytearray(write(path, good_arrays()).read_bytes())
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(magic) + offset] |= 1
    path.write_bytes(raw)
    assert re.search("is damaged or not an .npz archive: .*encrypted", refusal(path))


@pytest.mark.parametrize("code", [0x110000, 0xD800])
@pytest.mark.parametrize("name", ["train/id", "train/raw_text"])
def test_characters_that_unicode_lacks_are_refused(path, code, name):
    codes = np.full((4, 2), ord("a"), np.uint32)
    codes[2, 1] = code
    write(path, good_arrays() | {name: codes.view("<U2")[:, 0]})
    assert re.search(f"'{name}' holds characters that Unicode does not have", refusal(path))


# --- without splits ---


def whole_arrays() -> dict[str, np.ndarray]:
    """Twelve samples of four videos, without splits; each holds its own number."""
    numbers = np.arange(12.0)
    return {
        "id": np.array([f"v{i // 3}[{i % 3}]" for i in range(12)]),
        "text": numbers[:, None, None] + np.ones((12, 2, 3)),
        "text_mask": np.ones((12, 2), bool),
        "label": numbers / 4,
        "aligned": np.array(["text"]),
    }


def test_arrays_without_splits_are_split_by_video(path, caplog):
    corpus = open_corpus(write(path, whole_arrays()))
    assert {s: h.size for s, h in corpus.headers.items()} == {"train": 6, "valid": 3, "test": 3}
    assert corpus.aligned == ("text",)
    seen = []
    for name in corpus.headers:
        split = corpus.split(name)
        numbers = (4 * split.labels[:, 0]).astype(int)
        assert split.ids.tolist() == [f"v{i // 3}[{i % 3}]" for i in numbers]
        np.testing.assert_array_equal(split.features["text"][:, 0, 0], numbers + 1)
        assert split.masks["text"].shape == (len(numbers), 2)
        seen.append(set(numbers // 3))
    assert sorted(video for videos in seen for video in videos) == [0, 1, 2, 3]
    (told,) = [record.getMessage() for record in caplog.records]
    assert "4 videos were split at random with seed 0 into 2 train, 1 valid, 1 test" in told
    assert "--config.data.folds=4 makes splits of all samples, by video" in told
    digests = {open_corpus(path, DataConfig(split_seed=seed)).digest for seed in (0, 1, 2)}
    assert corpus.digest in digests and len(digests) > 1
    caplog.clear()
    folds = [open_corpus(path, DataConfig(folds=4, fold=fold)) for fold in range(4)]
    tested = [id_ for fold in folds for id_ in fold.split("test").ids.tolist()]
    assert sorted(tested) == sorted(whole_arrays()["id"].tolist())
    assert "at random" not in caplog.text  # the folds take the place of that split


def test_arrays_without_splits_need_ids_of_videos(path):
    numbered = whole_arrays() | {"id": np.array([str(i) for i in range(12)])}
    assert re.search("has no splits, and the id '0' does not tell", refusal(write(path, numbered)))
    nameless = {k: x for k, x in whole_arrays().items() if k != "id"}
    assert re.search("of a split, .* no 'id' among them", refusal(write(path, nameless)))


# --- arrays that do not fit the format ---

NAN_LABEL = np.array([0.0, np.nan, 1.0, np.nan])
INFINITE_LABEL = np.array([[0.0], [0.0], [-np.inf], [0.0]])

BAD_ARRAYS = (
    ({"all/text": np.ones((4, 5, 3))}, r"'all/text\.npy' does not belong"),
    ({"dev/text": np.ones((4, 5, 3))}, r"'dev/text\.npy' .*: rename dev/… to valid/…\.$"),
    ({"val/id": np.array(["a"])}, r"'val/id\.npy' .*: rename val/… to valid/…\.$"),
    ({"text": np.ones((4, 5, 3))}, r"'text\.npy' does not belong .* one of train, "),
    ({"train/a/b": np.ones((4, 5, 3))}, r"'train/a/b\.npy' does not belong"),
    ({"valid/id": None}, r"split 'valid' has no ids \(valid/id is missing\)"),
    ({f"test/{n}": None for n in ("text", "text_mask", "audio", "label", "raw_text")},
     r"split 'test' has no modality"),
    ({"train/label": NAN_LABEL},
     r"2 label\(s\) .* are not finite float32 numbers, .* that of 'train1' \(row 1\)"),
    ({"train/label": INFINITE_LABEL},
     r"1 label\(s\) .* are not finite float32 numbers, .* that of 'train2' \(row 2\)"),
    ({"train/label": np.ones(3)}, r"train/label has 3 rows, but train/id has 4"),
    ({"valid/audio": np.ones((2, 2, 4))}, r"valid/audio has 2 rows, .* has 3"),
    ({"test/raw_text": np.array(["a"] * 3)}, r"test/raw_text has 3 rows, .* has 2"),
    ({"test/text": np.ones((2, 5, 9))}, r"test/text is 9 wide, but train/text is 3"),
    ({"test/label": np.ones((2, 3))},
     r"number of labels per sample differs: 1 in train, 1 in valid, 3 in test"),
    ({"test/label": np.ones((2, 0))}, r"test/label has no column"),
    ({"train/text_mask": np.ones((4, 6), bool)},
     r"train/text_mask is bool of shape \(4, 6\); expected bool of shape \(4, 5\)"),
    ({"train/text_mask": np.ones((4, 5))},
     r"train/text_mask is float64 of shape \(4, 5\); expected bool"),
    ({"train/video_mask": np.ones((4, 5), bool)},
     r"train/video_mask masks no modality of that split"),
    ({"train/label_mask": np.ones(4, bool)}, r"masks no modality"),
    ({k: v[:0] for k, v in good_arrays().items() if k.startswith("valid/")},
     r"split 'valid' is empty"),
    ({"train/text": np.ones((4, 0, 3)), "train/text_mask": np.ones((4, 0), bool)},
     r"train/text has 0 steps of 3 features; both must be 1 or more"),
    ({"train/audio": np.ones((4, 2, 0))}, r"train/audio has 2 steps of 0 features"),
    ({"train/audio": np.ones(4)},
     r"audio is float64 of shape \(4,\); expected numbers of shape \(N, T, d\) or \(N, d\),"),
    ({"train/text_mask": np.ones(4, bool)}, r"bool of shape \(4, 5\)"),
    ({"train/audio": np.ones((4, 2, 4, 1))}, r"expected numbers of shape"),
    ({"train/audio": np.float64(3)}, r"train/audio is float64 of shape \(\)"),
    ({"train/audio": np.full((4, 2, 4), "0.5")},
     r"train/audio is <U3 of shape \(4, 2, 4\); expected numbers"),
    ({"train/audio": np.ones((4, 2, 4), complex)}, r"audio is complex128 of"),
    ({"train/audio": np.zeros((4, 2, 4), "M8[s]")}, r"expected numbers of shape"),
    ({"train/id": np.arange(4)}, r"id is int64 .*; expected strings"),
    ({"train/id": np.array([b"a"] * 4)}, r"train/id is \|S1 .*; expected strings"),
    ({"train/id": np.array("a")}, r"train/id is <U1 of shape \(\); expected strings"),
    ({"train/label": np.array(["1"] * 4)}, r"label is <U1 .*; expected"),
    ({"train/label": np.ones((4, 1001))}, r"train/label has 1001 columns; at most 1000 are read"),
    ({"train/labels": np.ones((4, 1, 1))},
     r"train/labels would be a modality, .*: labels are named train/label\."),
    ({"aligned": np.arange(2)},
     r"aligned is int64 of shape \(2,\); expected names of modalities, strings \(A,\)"),
    ({"aligned": np.array("text")}, r"aligned is <U4 of shape \(\); expected"),
    ({"aligned": np.array([["text"]])}, r"aligned is <U4 of shape \(1, 1\)"),
    ({"aligned": np.array([b"text"])}, r"aligned is \|S4 of shape \(1,\)"),
    ({"aligned": np.array(["text", "vidoe"])},
     r"aligned names 'vidoe'; expected some of text, audio, each once"),
    ({"aligned": np.array(["text", "text"])}, r"aligned names 'text'; expected"),
    ({"aligned": np.array(["text", "audio"])},
     r"text, audio of train have 5, 2 steps, but are said to be aligned"),
    ({"train/words": np.array(["a"] * 4)},
     r"train/words is <U1 of shape \(4,\); expected strings \(N, T\)"),
    ({"train/words": np.empty((4, 0), "U1")}, r"is <U1 of shape \(4, 0\)"),
    ({"train/words": np.ones((4, 2))}, r"words is float64 .*; expected"),
    ({"train/words": np.full((4, 2), b"a")}, r"words is \|S1 .* expected"),
    ({"train/words": np.full((3, 2), "a")}, r"train/words has 3 rows, but train/id has 4"),
    ({"train/words": np.full((4, 6), "a"), "aligned": np.array(["text"])},
     r"text, words of train have 5, 6 steps, but are said to be aligned"),
    ({"train/text_segments": np.zeros((4, 5), int)},
     r"train/text_segments is there, but train/text is no token ids"),
    ({"train/text": np.ones((4, 5), int), "train/text_segments": np.zeros((4, 6), int)},
     r"text_segments is int64 of shape \(4, 6\); expected whole numbers of shape \(4, 5\)"),
    ({"train/text": np.ones((4, 5), int), "train/text_pieces": np.full((4, 5), "a")},
     r"train/text_pieces is there, but train/text is no features"),
    ({"train/text_pieces": np.full((4, 6), "a")},
     r"train/text_pieces is <U1 of shape \(4, 6\); expected strings of shape \(4, 5\)"),
    ({"train/text_pieces": np.ones((4, 5))}, "float64 .* expected strings"),
    ({"train/label": np.ones((4, 1, 1))}, r"numbers \(N,\) or \(N, K\)"),
)


@pytest.mark.parametrize(("changes", "message"), BAD_ARRAYS, ids=[b[1][:40] for b in BAD_ARRAYS])
def test_arrays_that_do_not_fit_are_refused_by_name(path, changes, message):
    arrays = {k: v for k, v in (good_arrays() | changes).items() if v is not None}
    found = refusal(write(path, arrays))
    assert re.search(message, found), found
    assert str(path) in found


def test_archives_of_no_array_or_of_more_than_arrays_are_refused(path):
    assert re.search("holds no split", refusal(write_members(path, [])))
    members = [(f"{n}.npy", npy(a)) for n, a in good_arrays().items()]
    write_members(path, [*members, ("train/notes.txt", b"hello")])
    assert re.search(r"'train/notes\.txt' does not belong in a native archive", refusal(path))
    with pytest.warns(UserWarning, match="Duplicate name"):
        write_members(path, [*members, ("train/text.npy", npy(np.zeros((4, 5, 3))))])
    assert re.search("holds two arrays of the same name", refusal(path))


# --- Corpus itself ---


def test_what_a_command_needs_is_asked_for_by_name():
    def header(labels):
        return SplitHeader(4, {"text": (5, 3)}, {"text": "float32"}, frozenset(), labels, False)

    headers = {"test": header(()), "train": header(("sentiment",))}
    corpus = Corpus(source=Source("p", "f"), digest="d", headers=headers, ids={}, read=dict)
    assert list(corpus.headers) == ["train", "test"]
    corpus.require_splits("train", "test")
    corpus.require_labels("train")
    with pytest.raises(UserError, match=r"^p has no split 'valid'; it has train, test\.$"):
        corpus.require_splits("train", "valid")
    with pytest.raises(UserError, match="split .test. has no labels"):
        corpus.require_labels("train", "test")
