"""Corpora as the field's pickles hold them, small, and how they are written."""

import dataclasses
import pathlib
import pickle

import numpy as np
import refusals

from msajax.config import DataConfig
from msajax.corpus.corpus import Corpus, count_transcripts
from msajax.corpus.formats import open_corpus
from msajax.corpus.formats.native import save_mapped, save_native

SIZES = {"train": 5, "valid": 3, "test": 2}
TOKENS = 4


def ids_of(split: str, size: int) -> list[str]:
    return [f"{split}video{i // 2}$_${i % 2}" for i in range(size)]


def mmsa_split(split: str, size: int, *, aligned: bool = False) -> dict:
    """BERT's rows for padding are not zero; audio and video end at their lengths."""
    rng = np.random.default_rng([len(split), size])
    lengths = {m: rng.integers(1, t + 1, size) for m, t in (("audio", 6), ("vision", 3))}
    fields = {
        "raw_text": np.array([f"größer than {i}" for i in range(size)], object),
        "id": ids_of(split, size),
        "text": rng.normal(size=(size, TOKENS, 3)).astype(np.float32),
        "annotations": ["Positive"] * size,
        "classification_labels": np.ones(size),
        "regression_labels": rng.uniform(-3, 3, size),
    }
    words = rng.integers(2, TOKENS + 1, size)
    mask = np.arange(TOKENS) < words[:, None]
    tokens = np.where(mask, rng.integers(5, 90, (size, TOKENS)), 0)
    fields["text_bert"] = np.stack([tokens, mask, np.zeros_like(tokens)], axis=1).astype(float)
    for m, steps in (("audio", 6), ("vision", 3)):
        steps = TOKENS if aligned else steps
        valid = mask if aligned else np.arange(steps) < lengths[m][:, None]
        values = rng.normal(size=(size, steps, 2 if m == "audio" else 4))
        fields[m] = np.where(valid[..., None], values, 0)
        if not aligned:
            fields[f"{m}_lengths"] = lengths[m].tolist()
    return fields


def mmsa(**options) -> dict:
    return {name: mmsa_split(name, size, **options) for name, size in SIZES.items()}


def mult_split(split: str, size: int) -> dict:
    """Padding first; ids are [video, start, end]."""
    rng = np.random.default_rng([len(split), size, 1])
    fields = {}
    for m, (steps, width) in {"vision": (5, 4), "text": (3, 6), "audio": (4, 2)}.items():
        lengths = rng.integers(1, steps + 1, size)
        mask = np.arange(steps) >= steps - lengths[:, None]
        fields[m] = np.where(mask[..., None], rng.normal(size=(size, steps, width)), 0)
    fields["labels"] = rng.uniform(-3, 3, (size, 1, 1))
    rows = [[f"{split}{i // 2}".encode(), f"{i}.5".encode(), b"9.25"] for i in range(size)]
    fields["id"] = np.array(rows)
    return fields


def mult() -> dict:
    return {name: mult_split(name, size) for name, size in SIZES.items()}


WORDS = ("it", "was", "good", "café", "unheard")


def misa_sample(rng: np.random.Generator, id_: str, *, ids: bool, words: bool) -> tuple:
    """Words or word ids, with or without the list of words; visual and acoustic of that length."""
    length = int(rng.integers(1, 6))
    drawn = rng.integers(0, len(WORDS), length)
    spoken = [WORDS[k] for k in drawn]
    features = rng.normal(size=(length, 4)), rng.normal(size=(length, 2)).astype(np.float32)
    text = (drawn, *features, spoken) if ids and words else (drawn if ids else spoken, *features)
    return text, rng.uniform(-3, 3, (1, 1)).astype(np.float32), id_


def misa(*, ids: bool = True, words: bool = True) -> dict:
    rng = np.random.default_rng(5)
    names = {"train": "train", "valid": "dev", "test": "test"}
    return {
        names[split]: [
            misa_sample(rng, f"{split}video{i // 2}[{i % 2}]", ids=ids, words=words)
            for i in range(size)
        ]
        for split, size in SIZES.items()
    }


def write_pickle(path: pathlib.Path, tree, protocol: int = 4) -> pathlib.Path:
    path.write_bytes(pickle.dumps(tree, protocol))
    return path


def write_glove(path: pathlib.Path, words=WORDS[:-1]) -> dict[str, np.ndarray]:
    """Vectors of three numbers; the last of `WORDS` has none."""
    rng = np.random.default_rng(9)
    vectors = {word: rng.normal(size=3).astype(np.float32) for word in words}
    lines = [f"{w} {' '.join(repr(float(x)) for x in v)}\n" for w, v in vectors.items()]
    path.write_text("".join(["the 1 2 3\n", *lines]), encoding="utf-8")
    return vectors


def refusal(path: pathlib.Path, tree=None, **options) -> str:
    """The sentence with which a pickle, or what is at the path already, is refused."""
    if tree is not None:
        write_pickle(path, tree)
    return refusals.refusal(open_corpus, path, DataConfig(**options))


def assert_converts(corpus: Corpus, folder: pathlib.Path) -> None:
    """Both native formats give back what the corpus holds, to the bit."""
    headers = {}
    for name, header in corpus.headers.items():  # opening some does not tell which texts are blank
        transcripts = count_transcripts(corpus.split(name).raw_text)
        headers[name] = dataclasses.replace(header, transcripts=transcripts)
    save_native(folder / "native.npz", corpus)
    save_mapped(str(folder / "mapped"), corpus)
    for again in map(open_corpus, (folder / "native.npz", folder / "mapped")):
        assert again.headers == headers
        assert again.repeated_ids == corpus.repeated_ids and again.aligned == corpus.aligned
        for name in corpus.headers:
            wanted, found = corpus.split(name), again.split(name)
            assert found.features.keys() == wanted.features.keys()
            assert found.masks.keys() == wanted.masks.keys()
            for kind in ("features", "masks"):
                for m, array in getattr(wanted, kind).items():
                    np.testing.assert_array_equal(getattr(found, kind)[m], array, strict=True)
            for kind in ("ids", "labels", "raw_text", "words", "segments"):
                array, other = getattr(wanted, kind), getattr(found, kind)
                assert (array is None) == (other is None)
                if kind in ("words", "segments"):
                    assert array is None or array.tolist() == other.tolist()
                elif array is not None:
                    np.testing.assert_array_equal(other, array, strict=True)
