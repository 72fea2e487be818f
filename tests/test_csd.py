"""A folder of the CMU Multimodal SDK becomes a corpus: alignment, parts, folds, labels, digest."""

import json
import logging
import os
import pathlib
import re
import shutil
import tracemalloc

import numpy as np
import pytest
import refusals
from csd_files import Videos, write_csd
from pickle_corpora import assert_converts, write_glove

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.formats import csd
from msajax.corpus.formats.csd import MOSI_WORD_SHIFT, TOUCH, matches
from msajax.errors import UserError
from msajax.preparation.apply import prepare
from msajax.preparation.fit import fit

FOLDS = {"train": ["v0", "v1", "v2", "v3"], "valid": ["v4", "v5"], "test": ["v6", "v7"]}
SPLITS = ("train", "valid", "test")
SECONDS = np.arange(4)[:, None] + np.array([[0.0, 1.0]])
SEGMENTS = SECONDS[::2] + [[0.0, 1.0]]
VOCABULARY = ["good", "movie", "it", "was", "really", "naïve", "unknown", "rare"]
KNOWN = VOCABULARY[:-2]


def open_csd(folder, split_seed=0, **options):
    """Opens a folder with the settings of a configuration, which are text but for the seed."""
    text = {key: str(value) for key, value in options.items()}
    return csd.open_csd(folder, DataConfig(split_seed=split_seed, **text))


def random_rows(rng, count: int, seconds: float, dtype=np.float64) -> np.ndarray:
    """Contiguous intervals from 0 to `seconds`, shuffled."""
    edges = np.sort(rng.uniform(0, seconds, count + 1))
    edges[0], edges[-1] = 0, seconds
    return rng.permutation(np.stack([edges[:-1], edges[1:]], axis=1)).astype(dtype)


def random_folder(folder: pathlib.Path, seed: int) -> dict[str, Videos]:
    """Labels, words, audio at 20 rows a second and video with gaps; not every video has all."""
    rng = np.random.default_rng(seed)
    parts: dict[str, Videos] = {"labels": {}, "words": {}, "audio": {}, "video": {}}
    for k in range(8):
        name, seconds = f"v{k}", rng.uniform(8, 15)
        segments = random_rows(rng, rng.integers(1, 5), seconds, np.float32)
        segments[0] += 0.7  # overlaps its neighbour, or leaves a gap
        values = rng.uniform(-3, 3, (len(segments), 1)).astype(np.float32)
        parts["labels"][name] = values, segments
        spoken = random_rows(rng, rng.integers(3, 30), 0.6 * seconds)  # then silence
        words = rng.choice([*VOCABULARY, "sp"], (len(spoken), 1))
        parts["words"][name] = np.char.encode(words, "utf-8"), spoken
        heard = random_rows(rng, int(20 * seconds), seconds)
        features = rng.normal(size=(len(heard), 4))
        features[rng.random(features.shape) < 0.02] = rng.choice([np.nan, np.inf, -np.inf])
        parts["audio"][name] = features, heard
        seen = random_rows(rng, 40, seconds, np.float32)
        seen[:20, 1] = seen[:20, 0] + 0.1  # gaps
        parts["video"][name] = rng.integers(0, 9, (40, 2)).astype(np.int16), seen
    del parts["words"]["v1"], parts["audio"]["v2"], parts["video"]["v6"]
    parts["audio"]["elsewhere"] = parts["audio"]["v0"]
    names = {"labels": "All Labels", "words": "words", "audio": "COVAREP", "video": "OpenFace_2"}
    for k, (part, videos) in enumerate(parts.items()):
        write_csd(folder / f"CMU_{k}.csd", videos, names[part], compression="gzip")
    (folder / "folds.json").write_text(json.dumps(FOLDS))
    return parts


def slow_samples(parts: dict[str, Videos], vectors, shift: float, videos: list[str]):
    """Every segment by loops: its id, label, transcript, and {modality: [step or None]}."""
    samples = []
    for name in sorted(videos):
        labels, segments = parts["labels"][name]
        order = sorted(range(len(labels)), key=lambda k: segments[k][0])
        tokens, spoken = parts["words"].get(name, (np.zeros((0, 1)), np.zeros((0, 2))))
        words = sorted(
            (float(s), float(e), t[0].decode())
            for (s, e), t in zip(spoken, tokens, strict=True)
            if t[0] != b"sp"
        )
        for i, k in enumerate(order):
            start, end = map(float, segments[k])
            inside = [w for w in words if start <= w[0] + shift < end]
            steps = [w[:2] for w in inside] or [(start, end)]
            features = {"text": [vectors.get(w[2], np.zeros(3)) for w in inside] or [None]}
            for m in ("audio", "video"):
                rows, times = parts[m].get(name, (np.zeros((0, 1)), np.zeros((0, 2))))
                features[m] = []
                for begin, finish in steps:
                    touched = [
                        row
                        for row, (s, e) in zip(rows.astype(np.float64), times, strict=True)
                        if float(s) < finish - TOUCH
                        and float(e) > begin + TOUCH
                        and np.isfinite(row).all()
                    ]
                    features[m].append(np.mean(touched, axis=0) if touched else None)
            text = " ".join(w[2] for w in inside)
            samples.append((f"{name}[{i}]", float(labels[k][0]), text, features))
    return samples


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "corpus"
    path.mkdir()
    return path


def refusal(folder, **options) -> str:
    return refusals.refusal(open_csd, folder, **options)


# --- alignment ---


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shift", [0.0, -0.3])
def test_a_corpus_is_what_slow_loops_make_of_its_files(tmp_path, folder, seed, shift):
    parts = random_folder(folder, seed)
    vectors = write_glove(tmp_path / "glove.txt", KNOWN)
    corpus = open_csd(folder, glove_path=tmp_path / "glove.txt", word_shift=shift)
    assert list(corpus.headers) == list(SPLITS)
    assert corpus.modalities == ("text", "audio", "video")
    kinds = {"silent": 0, "absent": 0, "spoken": 0}
    for name in SPLITS:
        wanted = slow_samples(parts, vectors, shift, FOLDS[name])
        split, header = corpus.split(name), corpus.headers[name]
        assert split.ids.tolist() == [sample[0] for sample in wanted]
        assert split.labels.tolist() == [[sample[1]] for sample in wanted]
        assert split.raw_text.tolist() == [sample[2] for sample in wanted]
        longest = max(len(sample[3]["audio"]) for sample in wanted)
        assert split.words.shape == (len(wanted), header.words) and header.words == longest
        for row, sample in zip(split.words.tolist(), wanted, strict=True):
            assert row == sample[2].split() + [""] * (longest - len(sample[2].split()))
        assert header.size == len(split) and header.label_names == ("sentiment",)
        assert header.shapes == {"text": (longest, 3), "audio": (longest, 4), "video": (longest, 2)}
        assert header.masked == {"text", "audio", "video"} and header.has_raw_text
        for m, x in split.features.items():
            assert x.dtype == np.float32 and header.dtypes[m] == "float32"
            assert x.shape == (len(wanted), *header.shapes[m])
            for row, sample in enumerate(wanted):
                steps = sample[3][m] + [None] * (longest - len(sample[3][m]))
                assert split.masks[m][row].tolist() == [step is not None for step in steps]
                for found, step in zip(x[row], steps, strict=True):
                    np.testing.assert_allclose(
                        found, np.zeros(x.shape[2]) if step is None else step, rtol=2e-7, atol=1e-15
                    )
                kinds["absent"] += not split.masks[m][row].any()
        kinds["silent"] += sum(not text for text in split.raw_text)
        kinds["spoken"] += sum(bool(text) for text in split.raw_text)
    assert all(count > 3 for count in kinds.values())  # nothing above was tested on air


def small_folder(folder: pathlib.Path, **changes) -> None:
    """Three videos of two segments, of seconds 0-2 and 2-4, and a word and an audio row a second.

    A change replaces a file by (root, rows of each video or videos), or leaves it out when None.
    """
    files = {
        "labels": ("Opinion Segment Labels", (np.array([[-1.0], [2.0]]), SEGMENTS)),
        "words": ("words", (np.array([["it"], ["was"]] * 2, "S"), SECONDS)),
        "audio": ("COVAREP",
                  {v: (np.arange(8.0).reshape(4, 2) + ord(v), SECONDS) for v in "abc"}),
    }
    for name, content in (files | changes).items():
        if content is not None:
            root, rows = content
            videos = rows if isinstance(rows, dict) else dict.fromkeys("abc", rows)
            write_csd(folder / f"{name}.csd", videos, root)
    (folder / "folds.json").write_text('{"train": ["a"], "dev": ["b"], "test": ["c"]}')


def numbers(width: int = 2, every: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    return np.ones((4, width)), SECONDS * every


def test_words_or_features_alone_are_enough_and_pauses_are_no_words(folder):
    small_folder(folder, words=None)  # without words a segment is one step
    corpus = open_csd(folder)
    assert corpus.headers["train"].shapes == {"audio": (1, 2)}
    assert not corpus.headers["train"].has_raw_text and corpus.split("train").words is None
    assert corpus.aligned == ("audio",)
    split = corpus.split("train")
    np.testing.assert_array_equal(split.features["audio"], [[[98, 99]], [[102, 103]]])
    assert split.raw_text is None and split.masks["audio"].all()

    words = np.array([[b"sp"], [b" New \n York "], [b""], [b"sp"]])
    small_folder(folder, words=("words", (words, SECONDS)))
    split = open_csd(folder).split("train")
    assert split.raw_text.tolist() == ["New York", ""]
    assert split.words.tolist() == [["New York"], [""]]
    np.testing.assert_array_equal(split.features["audio"], [[[99, 100]], [[102, 103]]])

    (folder / "audio.csd").unlink()
    small_folder(folder, audio=None)
    corpus = open_csd(folder)
    assert corpus.aligned == ("text",) and corpus.modalities == ()
    assert corpus.split("train").words.tolist() == [["it", "was"]] * 2
    assert corpus.split("train").raw_text.tolist() == ["it was"] * 2


def test_unknown_words_are_valid_steps_of_zeros_and_are_counted(tmp_path, folder, caplog):
    small_folder(folder)
    vectors = write_glove(tmp_path / "glove.txt", ["was"])
    with caplog.at_level(logging.INFO):
        split = open_csd(folder, glove_path=tmp_path / "glove.txt").split("test")
    np.testing.assert_array_equal(split.features["text"], [[np.zeros(3), vectors["was"]]] * 2)
    assert split.masks["text"].all()
    assert "6 of 12 words (50.0 %) have no vector" in caplog.text
    assert "12 words placed, of 12 in these videos, with word_shift 0 s;" in caplog.text
    assert "; 0 segment(s) without words." in caplog.text


def test_rows_and_videos_that_are_left_out_are_counted_once(folder, caplog):
    features = np.array([[1.0], [np.nan], [-np.inf], [4.0]])
    small_folder(folder, audio=("COVAREP", (features, SECONDS)))
    corpus = open_csd(folder)
    assert caplog.text == ""
    split = corpus.split("train")
    assert split.features["audio"][..., 0].tolist() == [[1, 0], [0, 4]]
    assert split.masks["audio"].tolist() == [[True, False], [False, True]]
    corpus.split("train")
    assert caplog.text.count("2 of 4 rows of train/audio hold a value that is not finite") == 1
    small_folder(folder, audio=("COVAREP", {"b": numbers()}))
    split = open_csd(folder).split("train")
    assert "audio lacks 2 of 3 videos" in caplog.text
    assert not split.masks["audio"].any() and not split.features["audio"].any()


def test_an_aligned_corpus_can_be_converted_and_prepared(tmp_path, folder):
    random_folder(folder, 0)
    write_glove(tmp_path / "glove.txt", KNOWN)
    corpus = open_csd(folder, glove_path=tmp_path / "glove.txt")
    assert corpus.aligned == ("text", "audio", "video") and corpus.repeated_ids == 0
    assert_converts(corpus, tmp_path)
    preparation = fit(corpus, DataConfig(), ModelConfig())
    assert preparation.groups == (("text", "audio", "video"),)
    ready, _ = prepare(corpus.split("train"), preparation)
    assert preparation.spec.modalities == ("text", "audio", "video")
    assert np.isfinite(ready.features["audio"]).all()


def test_features_are_read_a_video_at_a_time_and_only_when_asked_for(folder):
    rows = 8000
    times = np.arange(rows)[:, None] / 2000 + np.array([[0.0, 1 / 2000]])
    features = np.random.default_rng(0).normal(size=(rows, 32)).astype(np.float32)  # 1 MB
    videos = [f"v{k:02d}" for k in range(24)]
    segment = (np.array([[1.0]]), np.array([[0.0, 4.0]]))
    write_csd(folder / "labels.csd", dict.fromkeys(videos, segment), "labels")
    write_csd(folder / "audio.csd", dict.fromkeys(videos, (features, times)), "audio")
    (folder / "folds.json").write_text(json.dumps({"train": videos}))
    tracemalloc.start()
    corpus = open_csd(folder)
    opened = tracemalloc.get_traced_memory()[1]
    split = corpus.split("train")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert opened < 2e6 and peak < 6e6  # of 25 MB
    wanted = features.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(split.features["audio"], np.tile(wanted, (24, 1, 1)), atol=1e-7)


# --- which file is what ---


NAMED = {  # by the name of the modality, those of the root group and of the file
    "audio": (("COVAREP", "x"), ("CMU_MOSEI_COVAREP", "x"), ("acoustic features", "x"),
              ("COVAREP", "visual")),  # the root group goes first
    "video": (("FACET 4.2", "x"), ("OpenFace_2", "x"), ("Visual", "x"),
              ("data", "CMU_MOSI_Visual_Facet_42")),
    "text": (("glove_vectors", "x"), ("root", "CMU_MOSI_TimestampedWordVectors")),
    "opensmile_emobase2010": (("OpenSmile-emobase2010", "x"),),
    "eye_tracking": (("Eye Tracking", "x"),),
    "context": (("context", "x"),),
}


def test_modalities_are_named_by_what_they_are(folder):
    for name, places in NAMED.items():
        for root, file in places:
            small_folder(folder, audio=None, **{file: (root, numbers())})
            assert open_csd(folder).modalities == (name,)
            (folder / f"{file}.csd").unlink()
    for root in ("id", "gaze_mask", "***", "words", "Words", "g" * 96):
        small_folder(folder, audio=None, x=(root, numbers()))
        said = f"the root group's name {root!r} cannot name a modality; rename it"
        assert said in refusal(folder)


def test_labels_are_told_by_their_name(folder):
    small_folder(folder, longer=("posture", numbers(every=100.0)))
    assert open_csd(folder).modalities == ("audio", "posture")
    (folder / "labels.csd").rename(folder / "x.csd")  # the root group has the name as well
    assert open_csd(folder).modalities == ("audio", "posture")


def test_without_a_name_labels_are_told_by_their_long_rows(folder):
    def write(every):
        segments = np.array([[0.0, every], [every, 2 * every]])
        small_folder(folder, labels=None, x=("opinions", (np.array([[-1.0], [2.0]]), segments)))

    write(4.1)
    assert open_csd(folder).split("train").labels.tolist() == [[-1.0], [2.0]]
    write(3.9)
    found = refusal(folder)
    assert re.search(r"none of 'COVAREP' \(1 s a row\), 'words' \(1 .*, 'opinions' \(3\.9 s", found)
    assert found.endswith("give the root group or the file a name with 'label' in it.")


def test_labels_or_words_alone_are_no_corpus_of_features(folder):
    small_folder(folder, audio=None)
    (folder / "words.csd").unlink()
    assert "has labels and nothing else: add .csd files of features" in refusal(folder)
    (folder / "labels.csd").unlink()
    small_folder(folder, labels=None, audio=None)
    assert "can be told to be the labels" in refusal(folder)  # bytes are words


def test_two_files_of_one_kind_are_refused_and_phones_are_not_words(folder, caplog):
    words = np.full((4, 1), b"AH0"), SECONDS
    small_folder(folder, p=("phones", words))
    with caplog.at_level(logging.INFO):
        assert open_csd(folder).split("train").raw_text.tolist() == ["it was", "it was"]
    assert re.search(r"p\.csd holds phones and is not used", caplog.text)
    for root, rows, said in (
        ("other words", words, r"several files of words, .*w\.csd and .*words\.csd;"),
        ("Emotion Labels", numbers(6), r"several files of labels, .*labels\.csd and .*w\.csd;"),
        ("acoustic", numbers(), r"audio\.csd and .*w\.csd are both the modality 'audio'"),
    ):
        small_folder(folder, w=(root, rows))
        assert re.search(said, refusal(folder))


def test_files_that_do_not_fit_each_other_or_hold_too_much_are_refused(folder, monkeypatch):
    small_folder(folder, audio=("COVAREP", dict.fromkeys("ABC", numbers())))
    assert re.search(r"audio\.csd and .*labels\.csd have no video in common", refusal(folder))
    small_folder(folder, words=("words", (np.full((4, 1), b"\xff"), SECONDS)))
    assert re.search(r"words\.csd: the words of video 'a' are not UTF-8 text", refusal(folder))
    monkeypatch.setattr("msajax.corpus.formats.csd._MOST_ROWS", 11)
    assert re.search(r"words\.csd has 12 rows of labels or words; at most 11", refusal(folder))


def test_word_vectors_must_fit_the_folder(tmp_path, folder):
    glove = tmp_path / "glove.txt"
    write_glove(glove, ["other"])
    small_folder(folder)
    assert re.search("has none of the 2 words of", refusal(folder, glove_path=glove))
    assert "cannot be read" in refusal(folder, glove_path=tmp_path / "gone.txt")
    small_folder(folder, g=("glove_vectors", numbers()))
    found = refusal(folder, glove_path=glove)
    assert re.search(r"g\.csd and .* are both the modality 'text'", found)
    (folder / "g.csd").unlink()
    (folder / "words.csd").unlink()
    assert re.search("has no file of words that .*glove.txt", refusal(folder, glove_path=glove))


def test_a_folder_that_is_none_is_refused(tmp_path, folder):
    assert not matches(folder) and not matches(tmp_path / "gone")
    assert "holds no .csd file" in refusal(folder)
    assert "cannot be read: No such file" in refusal(tmp_path / "gone")
    (folder / "x.csd").mkdir()
    assert not matches(folder)
    small_folder(folder)
    assert matches(folder) and not matches(folder / "labels.csd")
    (folder / "audio.csd").rename(folder / "AUDIO.CSD")
    assert open_csd(folder).modalities == ("audio",)
    (folder / "more.json").write_text("{}")
    assert "holds 2 .json files; expected one with folds" in refusal(folder)


# --- labels ---


def test_every_column_of_labels_is_kept_and_named(folder):
    emotions = ("happy", "sad", "anger", "surprise", "disgust", "fear")
    for names in (("sentiment",), ("0", "1"), ("sentiment", *emotions)):
        values = np.arange(2.0 * len(names)).reshape(2, -1) / 8
        small_folder(folder, labels=("labels", (values, SEGMENTS)))
        corpus = open_csd(folder)
        assert all(header.label_names == names for header in corpus.headers.values())
        np.testing.assert_array_equal(corpus.split("valid").labels, values, strict=True)


def stray_labels(folder: pathlib.Path, width: int, values: list[float]) -> np.ndarray:
    """A corpus of one video with these values in column 0; returns the labels as read."""
    labels = np.full((len(values), width), 4.0)
    labels[:, 0] = values
    times = np.arange(len(values))[:, None] + np.array([[0.0, 1.0]])
    write_csd(folder / "labels.csd", {"a": (labels, times)}, "labels")
    write_csd(folder / "audio.csd", {"a": (labels[:, :1], times)}, "audio")
    (folder / "folds.json").write_text('{"train": ["a"]}')
    return open_csd(folder).split("train").labels


@pytest.mark.parametrize("width", [1, 7])
def test_stray_sentiment_is_clipped_and_counted(folder, width, caplog):
    values = [0.5] * 18 + [5.0, -3.25]
    found = stray_labels(folder, width, values)
    assert found[:, 0].tolist() == [0.5] * 18 + [3.0, -3.0]
    assert (found[:, 1:] == 4.0).all()  # emotions stay
    assert open_csd(folder).repairs == {"clipped_labels": 2}
    assert caplog.text.count("2 of 20 sentiment labels lie outside [-3, 3] and were clipped") == 2


def test_another_scale_and_columns_that_are_no_sentiment_are_left_as_they_are(folder, caplog):
    assert stray_labels(folder, 2, [0.5] * 20)[0].tolist() == [0.5, 4.0]
    assert stray_labels(folder, 2, [0.5] * 19 + [5.0])[-1].tolist() == [5.0, 4.0]
    assert caplog.text == ""
    values = [1.0, 2.0, 3.0, 4.0, 5.0] * 4
    assert stray_labels(folder, 1, values)[:, 0].tolist() == values
    assert "8 of 20 labels lie outside [-3, 3]: taken for another scale" in caplog.text


def test_labels_that_are_not_finite_or_too_many_are_refused(folder):
    for values, said in (
        *((np.array([[1.0], [bad]]), "the labels of 'a[1]' are not finite float32 numbers")
          for bad in (np.nan, np.inf, 1e39)),
        (np.zeros((2, 1001)), "labels have 1001 columns; at most 1000 are read"),
    ):
        small_folder(folder, labels=("labels", (values, SEGMENTS)))
        assert said in refusal(folder)


# --- folds and the digest ---


def test_without_a_folds_file_videos_are_split_by_the_seed(folder):
    random_folder(folder, 0)
    (folder / "folds.json").unlink()
    corpus = open_csd(folder)
    owner = {}
    for name in SPLITS:
        for id_ in corpus.split(name).ids:
            assert owner.setdefault(id_.split("[")[0], name) == name
    assert len(owner) == 8
    again, other = open_csd(folder), open_csd(folder, split_seed=1)
    assert again.digest == corpus.digest != other.digest


def test_the_digest_depends_on_content_alone(tmp_path, folder):
    random_folder(folder, 0)
    write_glove(tmp_path / "glove.txt", KNOWN)
    first = open_csd(folder, glove_path=tmp_path / "glove.txt").digest
    assert re.fullmatch("[0-9a-f]{64}", first)
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    for k, path in enumerate(sorted(moved.iterdir(), reverse=True)):
        path.rename(moved / f"{k}{path.suffix}")
    lines = (tmp_path / "glove.txt").read_text(encoding="utf-8").splitlines()
    (tmp_path / "other.txt").write_text("\n".join(["more 1 2 3", *reversed(lines)]), "utf-8")
    assert open_csd(moved, glove_path=tmp_path / "other.txt").digest == first


@pytest.mark.parametrize("change", ["labels", "words", "audio", "folds", "shift", "glove", "none"])
def test_the_digest_sees_one_change(tmp_path, folder, change):
    small_folder(folder)
    glove = tmp_path / "glove.txt"
    write_glove(glove, KNOWN)
    first = open_csd(folder, glove_path=glove).digest
    options = {"glove_path": glove}
    if change in ("labels", "words", "audio"):
        path = folder / f"{change}.csd"
        content = path.read_bytes()
        old = {"labels": np.float64(-1), "words": b"was", "audio": np.float64(ord("b") + 7)}[change]
        new = {"labels": np.float64(-2), "words": b"it\0", "audio": np.float64(0)}[change]
        assert bytes(old) in content
        path.write_bytes(content.replace(bytes(old), bytes(new), 1))
    elif change == "folds":
        (folder / "folds.json").write_text('{"train": ["b"], "dev": ["a"], "test": ["c"]}')
    elif change == "shift":
        options["word_shift"] = -0.04
    elif change == "glove":
        glove.write_text("was 1 2 3\n" + glove.read_text("utf-8"), "utf-8")
    else:
        del options["glove_path"]
    assert open_csd(folder, **options).digest != first


def test_a_folder_that_goes_bad_while_in_use_is_one_sentence(folder):
    small_folder(folder)
    corpus = open_csd(folder)
    os.truncate(folder / "audio.csd", 3000)
    with pytest.raises(UserError, match=r"audio\.csd is damaged or not an HDF5 file: .*\.$"):
        corpus.split("train")


# --- real files ---


@pytest.fixture(scope="module")
def mosi(shared_data):
    """CMU-MOSI's labels and words with GloVe."""
    glove = shared_data / "glove.840B.300d.mosi_vocab.txt"
    return open_csd(shared_data / "csd", glove_path=glove)


def aligned_release(shared_data) -> dict[str, list]:
    """Transcript, label, vectors and mask of 229 segments, by id."""
    keys = ("id", "raw_text", "label", "text", "text_mask")
    with np.load(shared_data / "mosi_dev229.npz") as file:
        splits = [[file[f"{name}/{key}"] for key in keys] for name in SPLITS]
    return {id_: row for columns in splits for id_, *row in zip(*columns, strict=True)}


def test_mosi_has_its_standard_folds(mosi, shared_data):
    sizes = {name: header.size for name, header in mosi.headers.items()}
    assert sizes == {"train": 1284, "valid": 229, "test": 686}
    with np.load(shared_data / "mosi_text_audio.npz") as file:
        for name in SPLITS:
            videos = {id_.rsplit("_", 1)[0] for id_ in file[f"{name}/id"]}
            assert {id_.split("[")[0] for id_ in mosi.split(name).ids} == videos


def test_mosi_agrees_with_an_aligned_release_when_its_words_are_shifted(mosi, shared_data):
    release, compared = aligned_release(shared_data), 0
    valid = mosi.split("valid")
    assert set(valid.ids.tolist()) == release.keys()
    for row, (id_, text) in enumerate(zip(valid.ids, valid.raw_text, strict=True)):
        wanted_text, label, vectors, mask = release[id_]
        assert valid.labels[row, 0] == label
        count = len(text.split())
        if text == wanted_text and count <= 20:
            assert mask.sum() == count and valid.masks["text"][row].sum() == count
            np.testing.assert_array_equal(valid.features["text"][row, :count], vectors[mask])
            compared += 1
    assert compared > 150
    plain = open_csd(shared_data / "csd", word_shift=0.0).split("valid")
    for split, agree in ((valid, 178), (plain, 54)):
        texts = zip(split.ids, split.raw_text, strict=True)
        assert sum(text == release[id_][0] for id_, text in texts) == agree
    assert MOSI_WORD_SHIFT == -0.04
