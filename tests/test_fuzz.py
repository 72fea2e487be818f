"""Damaged files: every reader either gives a sound corpus or refuses it in one sentence.

Small good files are damaged in many ways: bytes flipped, pieces cut out, doubled or overwritten,
ends lost; and in pickles, which are easily put together anew, any value replaced by another.
"""

import contextlib
import dataclasses
import functools
import gzip
import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import h5py
import numpy as np
import pytest
import tiny_text
from csd_files import write_csd
from hypothesis import given, settings
from hypothesis import strategies as st
from pickle_corpora import misa, mmsa, mult, write_glove, write_pickle
from refusals import places, replaced

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.corpus import Corpus, Split, pad_words
from msajax.corpus.formats import open_corpus
from msajax.corpus.formats.native import save_mapped, save_native
from msajax.corpus.glove import read_glove
from msajax.corpus.in_memory import corpus_of
from msajax.errors import UserError
from msajax.preparation.apply import prepare
from msajax.preparation.fit import Preparation, fit
from msajax.preparation.inspection import inspect_corpus

# Warnings of numpy about numbers that are not finite: files may hold such.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SIZES = {"train": 4, "valid": 2, "test": 2}
PATIENCE = 600  # seconds; a good file takes hundredths
MEMORY = 1 << 29  # bytes beyond what a process has when it begins to read


class Sample(NamedTuple):
    """A small good corpus: what to open, the files of it, and the settings."""

    path: pathlib.Path
    files: list[pathlib.Path]
    data: DataConfig = DataConfig(truncate="first")


# --- small good files ---


def small_corpus() -> Corpus:
    """Features with and without a mask, token ids, transcripts, labels."""
    rng = np.random.default_rng(0)
    splits = {
        name: Split(
            ids=np.array([f"{name}é{i}" for i in range(size)]),
            features={
                "text": rng.integers(0, 9, (size, 3), np.int32),
                "audio": rng.normal(size=(size, 2, 2)),
                "video": rng.normal(size=(size, 3, 1)).astype(np.float32),
            },
            masks={"video": rng.random((size, 3)) < 0.8},
            labels=rng.uniform(-3, 3, (size, 1)),
            raw_text=np.array([f"größer {i}" for i in range(size)]),
            words=pad_words([["größer", "", "a"]] * size),
            segments=np.zeros((size, 3), np.int8),
        )
        for name, size in SIZES.items()
    }
    return corpus_of(splits, label_names=("mood",))


def native_sample(folder: pathlib.Path) -> Sample:
    path = folder / "corpus.npz"
    save_native(path, small_corpus())
    return Sample(path, [path])


def mapped_sample(folder: pathlib.Path) -> Sample:
    save_mapped(str(folder / "corpus"), small_corpus())
    files = sorted(path for path in (folder / "corpus").rglob("*") if path.is_file())
    return Sample(folder / "corpus", files)


def old_hdf5_sample(folder: pathlib.Path) -> Sample:
    rng = np.random.default_rng(0)
    files = []
    for name, size in SIZES.items():
        shapes = {"audio_{}": (size, 3, 2), "text_{}_emb": (size, 2, 3), "y_{}": size}
        for k, (stem, shape) in enumerate(shapes.items()):
            files.append(folder / f"{stem.format(name)}.h5")
            with h5py.File(files[-1], "w") as file:
                packed = "gzip" if k == 1 else None
                file.create_dataset("d1", data=rng.normal(size=shape), compression=packed)
    return Sample(folder, files)


def csd_sample(folder: pathlib.Path) -> Sample:
    rng = np.random.default_rng(0)
    times = np.arange(6)[:, None] + np.array([[0.0, 1.0]])
    parts = {
        "labels": {v: (rng.uniform(-3, 3, (2, 1)), times[:2] * 3) for v in "abc"},
        "words": {v: (np.array([[b"it"], [b"was"]] * 3), times) for v in "abc"},
        "COVAREP": {v: (rng.normal(size=(6, 2)), times) for v in "abc"},
    }
    options = {"COVAREP": {"compression": "gzip"}}
    files = [
        write_csd(folder / f"{name}.csd", videos, name, **options.get(name, {}))
        for name, videos in parts.items()
    ]
    files.append(folder / "folds.json")
    files[-1].write_text(json.dumps({"train": ["a"], "valid": ["b"], "test": ["c"]}))
    return Sample(folder, files)


def connectome_sample(folder: pathlib.Path) -> Sample:
    rng = np.random.default_rng(0)
    table, files = ["id,label,age,gender,file,split"], []
    for name, size in SIZES.items():
        for i in range(size):
            files.append(folder / f"{name}{i}.npy")
            matrices = rng.normal(size=(2, 3, 3))
            np.save(files[-1], matrices + matrices.swapaxes(1, 2))
            table.append(f"{name}é{i},{i % 2},{20 + i}.5,{i % 2},{files[-1].name},{name}")
    files += [folder / "samples.csv", folder / "bands.csv"]
    files[-2].write_text("\n".join(table))
    files[-1].write_text("low_hz,high_hz\n1,4.5\n4.5,8\n")
    return Sample(folder, files)


def pickle_sample(tree: dict, protocol: int, folder: pathlib.Path) -> Sample:
    path = write_pickle(folder / "corpus.pkl", tree, protocol)
    return Sample(path, [path])


def misa_sample(folder: pathlib.Path) -> Sample:
    files = [write_pickle(folder / f"{name}.pkl", part, 0) for name, part in misa().items()]
    files.append(folder / "glove.txt")
    write_glove(files[-1])
    return Sample(folder, files, DataConfig(truncate="first", glove_path=str(files[-1])))


SAMPLES: dict[str, Callable[[pathlib.Path], Sample]] = {
    "native": native_sample, "mapped": mapped_sample, "old_hdf5": old_hdf5_sample,
    "connectome": connectome_sample, "csd": csd_sample, "misa": misa_sample,
    "mmsa": functools.partial(pickle_sample, mmsa(), 2),
    "mult": functools.partial(pickle_sample, mult(), 5),
}
OF_HDF5 = ("old_hdf5", "csd")
TREES = {"mmsa": mmsa(), "mult": mult(), "misa": misa()}
TREES |= {"one list": TREES["misa"]["train"], "one dict": TREES["mult"]["train"]}


# --- what must come of any file ---


def check(path: pathlib.Path, data: DataConfig) -> None:
    """Opens, reads and prepares a corpus; it is sound, or one sentence says what is wrong."""
    with patience():
        try:
            corpus = open_corpus(path, data)
            splits = {name: corpus.split(name) for name in corpus.headers}
            inspect_corpus(corpus, data)
        except UserError as error:
            check_sentence(error)
            assert any(p and p in str(error) for p in (str(path), data.glove_path)), error
            return
        for name, split in splits.items():
            check_split(corpus, name, split)
        pieces = dataclasses.replace(data, text="pieces"), ModelConfig(text_encoder="FOLDER")
        for settings in ((data, ModelConfig()), (*pieces, {"text": tiny_text.Encoder()})):
            try:
                check_prepared(splits, fit(corpus, *settings))
            except UserError as error:
                check_sentence(error)


def check_prepared(splits: dict[str, Split], preparation: Preparation) -> None:
    spec = preparation.spec
    for split in splits.values():
        prepared, _ = prepare(split, preparation)
        for m in spec.modalities:
            shape = len(split), spec.length(m)
            width = 3 if spec.is_pieces(m) else spec.width(m)
            assert prepared.features[m].shape == ((*shape, width) if width else shape)
            assert prepared.masks[m].shape == shape
            assert np.isfinite(prepared.features[m]).all()


def check_split(corpus: Corpus, name: str, split: Split) -> None:
    header = corpus.headers[name]
    size = header.size
    assert split.ids.shape == (size,) and split.ids.dtype.kind == "U"
    assert split.features.keys() == header.shapes.keys()
    assert split.masks.keys() == header.masked <= split.features.keys()
    for m, (steps, width) in header.shapes.items():
        assert split.features[m].shape == ((size, steps, width) if width else (size, steps))
        assert split.features[m].dtype.kind in ("fiu" if width else "iu")
    for m, mask in split.masks.items():
        assert mask.shape == (size, header.shapes[m][0]) and mask.dtype == bool
    if split.labels is None:
        assert header.label_names == ()
    else:
        assert split.labels.shape == (size, len(header.label_names)) and size > 0
        assert split.labels.dtype == np.float64 and np.isfinite(split.labels).all()
    assert (0 if split.words is None else split.words.shape[1]) == header.words
    assert split.words is None or len(split.words) == size
    assert (split.raw_text is not None) == header.has_raw_text
    assert split.raw_text is None or split.raw_text.shape == (size,)


def check_sentence(error: UserError) -> None:
    assert re.fullmatch(r"[^\n\r]{10,600}[^.]\.", str(error)), repr(str(error))


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Fails what takes longer than `PATIENCE`."""

    def give_up(*_):
        raise AssertionError(f"no end after {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- damage ---


def damage(content: bytes, rng: random.Random) -> bytes:
    """One of the ways in which files go bad."""
    data = bytearray(content)
    kind = rng.choice(["flip", "flip", "flip", "cut", "drop", "double", "fill", "splice"])
    start = rng.randrange(len(data))
    stop = min(len(data), start + rng.choice([1, 2, 4, 8, 64, 512]))
    if kind == "flip":
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    elif kind == "cut":
        del data[start:]
    elif kind == "drop":
        del data[start:stop]
    elif kind == "double":
        data[start:start] = data[start:stop]
    elif kind == "fill":
        data[start:stop] = bytes([rng.choice([0, 1, 127, 128, 255])]) * (stop - start)
    else:
        other = rng.randrange(len(data))
        data[start:stop] = data[other : other + stop - start]
    return bytes(data)


def run(reader: str, folder: pathlib.Path, rounds: int, seed: int) -> None:
    """Damages one file of a sample at a time, and puts it back."""
    folder.mkdir()
    sample = SAMPLES[reader](folder)
    assert open_corpus(sample.path, sample.data).headers  # undamaged, it is read
    check(sample.path, sample.data)
    rng = random.Random(seed)
    for k in range(rounds):
        file = rng.choice(sample.files)
        content = file.read_bytes()
        file.write_bytes(damage(content, rng))
        try:
            check(sample.path, sample.data)
        except BaseException:
            print(f"{reader}, round {k} of seed {seed}: {file.name}", file=sys.stderr)
            raise
        file.write_bytes(content)


@pytest.mark.parametrize("reader", [name for name in SAMPLES if name not in OF_HDF5])
def test_a_damaged_file_is_refused_or_read_as_something_sound(reader, tmp_path):
    run(reader, tmp_path / reader, rounds=150, seed=0)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(("mmsa", "mult", "misa")), st.integers(0, 5), st.randoms())
def test_a_damaged_pickle_of_any_protocol(tmp_path_factory, name, protocol, rng):
    path = tmp_path_factory.getbasetemp() / "damaged.pkl"
    write_pickle(path, TREES[name], protocol)
    path.write_bytes(damage(path.read_bytes(), rng))
    check(path, DataConfig(truncate="first"))


@pytest.mark.parametrize("reader", OF_HDF5)
def test_a_damaged_hdf5_file_does_not_take_all_memory_either(reader, tmp_path):
    """In a process of its own: the HDF5 library is written in C, and believes sizes in files."""
    root = pathlib.Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, __file__, reader, str(tmp_path / reader), "150", "0"],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-3000:]


# What stands where something else is expected.
ODD = [
    *(None, True, 0, -1, 7, 2**40, 2**70, -(2**70), 1.5, 1e300, float("nan"), float("inf")),
    *("", "x", "größer\n", "x" * 5000, b"", b"\xff\x00", bytearray(b"x")),
    *([], (), {}, set(), [[]], [None], ["a", 1], [[1, 2], [3]], {"text": 1}, {"train": []}),
    *([1, 2], [1.5, 2.5], ["a", "b"], ("a", b"b"), [np.ones(2), np.ones(3)], frozenset([1])),
    *(np.zeros(0), np.zeros((0, 3)), np.zeros((2, 0, 3)), np.ones((2, 3)), np.ones((2, 3, 4))),
    *(np.ones((5, 6, 2), bool), np.ones((5, 3, 4), np.int8), np.ones((2, 2, 2, 2)), np.array(3)),
    *(np.full((5, 3, 4), np.nan), np.array(["a", "b"]), np.array([b"a", b"b"]), np.float32(1.5)),
    *(np.array([None, 1], object), np.array([[1], "a"], object), np.dtype("f4"), np.str_("x")),
    *(np.full((3, 1), 2**63, np.uint64), np.ones((5, 6, 2), np.float16), np.arange(12.0)[::3]),
]


def confuse(tree, rng: random.Random):
    """The tree with a value replaced, taken out, or exchanged with another."""
    way = rng.choice(list(places(tree)))
    kind = rng.choice(["odd", "odd", "odd", "other", "cut", "twice", "without"])
    if kind == "odd":
        odd = rng.choice(ODD)
        return replaced(tree, way, lambda _: odd)
    if kind == "other":
        value = tree
        for key in rng.choice(list(places(tree))):
            value = value[key]
        return replaced(tree, way, lambda _: value)

    def change(value):
        sized = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim)
        if kind == "cut" and sized:
            return value[:-1]
        if kind == "twice" and sized:
            return [*value, *value]
        if kind == "without" and isinstance(value, dict) and value:
            return {key: value[key] for key in list(value)[1:]}
        return [value]

    return replaced(tree, way, change)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(TREES)), st.randoms(), st.integers(0, 2))
def test_any_value_of_a_pickle_may_be_another(tmp_path_factory, name, rng, kind):
    path, glove = (tmp_path_factory.getbasetemp() / name for name in ("confused.pkl", "vectors"))
    write_glove(glove)
    write_pickle(path, confuse(TREES[name], rng))
    text, vectors = [("features", ""), ("ids", ""), ("features", str(glove))][kind]
    check(path, DataConfig(text=text, glove_path=vectors, truncate="first"))


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_word_vectors_are_refused_or_sound(tmp_path, packed):
    path = tmp_path / "glove.txt"
    vectors = write_glove(path)
    content = path.read_bytes()
    content = gzip.compress(content) if packed else content
    rng = random.Random(0)
    for _ in range(300):
        path.write_bytes(damage(content, rng))
        with patience():
            try:
                found = read_glove(path, vectors.keys())
            except UserError as error:
                check_sentence(error)
                assert str(path) in str(error)
                continue
        assert len(set(found.words)) == len(found.words) and set(found.words) <= vectors.keys()
        assert found.vectors.shape[0] == len(found.words) and found.vectors.dtype == np.float32
        assert found.vectors.ndim == 2 and np.isfinite(found.vectors).all()


if __name__ == "__main__":
    if (statm := pathlib.Path("/proc/self/statm")).exists():  # elsewhere nothing can be limited
        own = int(statm.read_text("ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (own + MEMORY, own + MEMORY))
    run(sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
