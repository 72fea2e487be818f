"""Every stored step that is not zero is read, or counted and said, in every layout that is read.

Each stored step holds a number of its own, so that those that arrive in a prepared split can be
told apart.
"""

import json
import logging
import pathlib
import re

import h5py
import numpy as np
import pytest
from csd_files import write_csd
from pickle_corpora import assert_converts, write_pickle

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.corpus import Split
from msajax.corpus.formats import FORMATS, open_corpus
from msajax.corpus.formats.native import save_mapped, save_native
from msajax.corpus.in_memory import corpus_of
from msajax.preparation.apply import prepare
from msajax.preparation.fit import fit
from msajax.preparation.inspection import inspect_corpus

SIZES = {"train": 30, "valid": 9, "test": 7}
Stored = dict[str, dict[str, list[np.ndarray]]]  # by split and modality, numbers of each sample
SPOKEN = {"standardize": (), "clip": 0.0, "allow_loss": True}


def draw(rng, size: int, steps: int, padded: str = "anywhere") -> np.ndarray:
    """Numbers `[N, T]`, each once, and 0 before, behind and between them; some rows of one kind."""
    numbers = (rng.permutation(size * steps) + 1).reshape(size, steps)
    first = rng.integers(0, steps, size) * (padded != "behind")
    end = np.where(padded == "before", steps, rng.integers(first + 1, steps + 1))
    at = np.arange(steps)
    inside = (at >= first[:, None]) & (at < end[:, None]) & (rng.random(numbers.shape) < 0.8)
    inside[rng.random(size) < 0.1] = False
    inside[rng.random(size) < 0.1] = True
    return np.where(inside, numbers, 0)


def as_features(numbers: np.ndarray, dtype=np.float32) -> np.ndarray:
    """Two features of each step: 0 or NaN, and its number."""
    other = np.where(numbers % 7 == 1, np.nan, 0.0)
    return np.stack([other, numbers], axis=-1).astype(dtype)


def native(rng, folder: pathlib.Path) -> tuple[pathlib.Path, Stored]:
    splits, stored = {}, {}
    for name, size in SIZES.items():
        drawn = {m: draw(rng, size, 8) for m in ("text", "audio", "eeg", "codes")}
        masks = {m: rng.random(drawn[m].shape) < 0.7 for m in ("text", "codes")}
        drawn["codes"] %= 90
        features = {m: as_features(x) for m, x in drawn.items() if m != "codes"}
        features["codes"] = np.where(rng.random(drawn["codes"].shape) < 0.1, -1, drawn["codes"])
        drawn["codes"] = np.maximum(features["codes"], 0)
        ids = np.array([f"{name}{i}" for i in range(size)])
        splits[name] = Split(ids, features, masks, rng.normal(size=(size, 1)))
        stored[name] = {m: list(x) for m, x in drawn.items()}
    save_native(folder / "corpus.npz", corpus_of(splits))
    return folder / "corpus.npz", stored


def mapped(rng, folder: pathlib.Path) -> tuple[pathlib.Path, Stored]:
    path, stored = native(rng, folder)
    save_mapped(str(folder / "corpus"), open_corpus(path))
    return folder / "corpus", stored


def old_hdf5(rng, folder: pathlib.Path) -> tuple[pathlib.Path, Stored]:
    stored = {}
    for name, size in SIZES.items():
        drawn = {"text": draw(rng, size, 8), "audio": draw(rng, size, 5)}
        files = {f"{m}_{name}": as_features(x, np.float64) for m, x in drawn.items()}
        for file, values in (files | {f"y_{name}": rng.normal(size=size)}).items():
            with h5py.File(folder / f"{file}.h5", "w") as content:
                content["d1"] = values
        stored[name] = {m: list(x) for m, x in drawn.items()}
    return folder, stored


def split_dicts(rng, folder: pathlib.Path, complete) -> tuple[pathlib.Path, Stored]:
    tree, stored = {}, {}
    for name, size in SIZES.items():
        drawn = {m: draw(rng, size, t) for m, t in (("text", 8), ("audio", 12), ("video", 8))}
        fields = {"id": [f"{name}v{i}$_$0" for i in range(size)], "labels": rng.normal(size=size)}
        complete(fields, drawn)
        fields |= {m: as_features(x, np.float64) for m, x in drawn.items() if m not in fields}
        tree[name], stored[name] = fields, {m: list(x) for m, x in drawn.items()}
    return write_pickle(folder / "corpus.pkl", tree), stored


def mult(rng, folder: pathlib.Path) -> tuple[pathlib.Path, Stored]:
    return split_dicts(rng, folder, lambda fields, drawn: None)


def mmsa(rng, folder: pathlib.Path, text: str, lengths: bool) -> tuple[pathlib.Path, Stored]:
    """Padding of text and of text_bert on any side, or none of text; lengths of any size."""

    def complete(fields, drawn):
        size, steps = drawn["text"].shape
        if text == "whole":
            drawn["text"] = (rng.permutation(size * steps) + 1).reshape(size, steps)
            drawn["text"][:, 1:-1] *= rng.random((size, steps - 2)) < 0.8
            drawn["text"][0] = 0
        elif text == "before":
            drawn["text"] = draw(rng, size, steps, "before")
        tokens = draw(rng, size, steps, "behind") % 90
        mask = rng.random(tokens.shape) < 0.7
        fields["text_bert"] = np.stack([tokens, mask, 0 * tokens], axis=1).astype(float)
        if lengths:
            fields["audio_lengths"] = rng.integers(0, 14, size)
        if text == "ids":
            drawn["text"] = tokens
            fields["text"] = np.ones((size, steps, 2))

    return split_dicts(rng, folder, complete)


def misa(rng, folder: pathlib.Path) -> tuple[pathlib.Path, Stored]:
    tree, stored = {}, {}
    for name, size in SIZES.items():
        drawn = {m: draw(rng, size, 8) for m in ("text", "audio", "video")}
        drawn["text"] %= 90
        cut = {m: [x[: rng.integers(1, 9)] for x in rows] for m, rows in drawn.items()}
        tree[name] = [
            ((cut["text"][i], as_features(cut["video"][i]), as_features(cut["audio"][i])),
             rng.normal(size=(1, 1)), f"{name}{i}[0]")
            for i in range(size)
        ]  # fmt: skip
        stored[name] = cut
    return write_pickle(folder / "corpus.pkl", tree), stored


def connectome(rng, folder: pathlib.Path) -> tuple[pathlib.Path, Stored]:
    """Two channels: a number for each band; the band's edges make every step one that is not 0."""
    lines, stored = ["id,label,age,gender,file,split"], {}
    for name, size in SIZES.items():
        numbers = (rng.permutation(size * 4) + 1).reshape(size, 4)
        for i, row in enumerate(numbers):
            np.save(folder / f"{name}{i}.npy", np.broadcast_to(row[:, None, None], (4, 2, 2)))
            lines.append(f"{name}{i},{rng.normal()},30,{i % 2},{name}{i}.npy,{name}")
        stored[name] = {"connectome": list(numbers)}
    (folder / "samples.csv").write_text("\n".join(lines))
    (folder / "bands.csv").write_text("low_hz,high_hz\n1,4\n4,8\n8,13\n13,30\n")
    return folder, stored


LAYOUTS = {
    **{f.__name__: (f, "auto") for f in (native, mapped, old_hdf5, connectome, mult, misa)},
    "mmsa padded before": (lambda *args: mmsa(*args, "before", True), "auto"),
    "mmsa padded anywhere": (lambda *args: mmsa(*args, "anywhere", False), "features"),
    "mmsa not padded": (lambda *args: mmsa(*args, "whole", True), "auto"),
    "mmsa ids": (lambda *args: mmsa(*args, "ids", False), "ids"),
}


WITH_MASKS = ("native", "mapped", "mmsa not padded", "mmsa ids")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_read_and_what_is_counted_are_all_stored_steps_that_are_not_zero(
    tmp_path, layout, seed
):
    assert {name.split()[0] for name in LAYOUTS} | {"csd"} == set(FORMATS)  # none is forgotten
    write, text = LAYOUTS[layout]
    path, stored = write(np.random.default_rng(seed), tmp_path)
    data = DataConfig(**SPOKEN, text=text)
    corpus = open_corpus(path, data)
    preparation = fit(corpus, data, ModelConfig(max_len=14))
    report = inspect_corpus(corpus, data)
    assert preparation.spec.modalities == corpus.modalities
    for name, modalities in stored.items():
        split, repairs = prepare(corpus.split(name), preparation)
        facts, warned = report["splits"][name], " ".join(report["warnings"])
        for m, rows in modalities.items():
            x, mask = split.features[m], split.masks[m]
            numbers = x if x.ndim == 2 else x[..., -1]
            read = 0
            for found, valid, row in zip(numbers, mask, rows, strict=True):
                arrived = found[valid & (found != 0)].astype(int).tolist()
                kept = iter(row.tolist())
                assert all(number in kept for number in arrived)  # in their order
                read += len(arrived)
                if facts["modalities"][m]["mask"] == "from zeros" and arrived and m != "codes":
                    there = found[valid]
                    assert there[0] != 0 and there[-1] != 0 and len(arrived) == (row != 0).sum()
            counts = repairs.get(m, {})
            assert layout in WITH_MASKS or "hidden_steps" not in counts
            counted = counts.get("hidden_steps", 0) + counts.get("lost_steps", 0)
            assert read + counted == sum(np.count_nonzero(row) for row in rows)
            lost = facts["lost"].get(m, {"steps": 0})["steps"]
            assert facts["modalities"][m]["hidden"] + lost == counted
            assert (f"{name}/{m}: " in warned) == (counted > 0)
    (tmp_path / "converted").mkdir()
    assert_converts(corpus, tmp_path / "converted")


def test_rows_of_the_sdk_are_in_a_step_or_said_to_be_in_none(tmp_path, caplog):
    """A row for each word of a second; words outside segments, and rows that are not finite."""
    rng = np.random.default_rng(0)
    folds = {"train": ["v0", "v1", "v2"], "valid": ["v3"], "test": ["v4"]}
    labels, words, audio = {}, {}, {}
    for k in range(5):
        times = np.stack([np.arange(20.0), np.arange(1.0, 21)], axis=1)
        labels[f"v{k}"] = np.ones((2, 1)), np.array([[2.0, 7.0], [9.0, 15.0]])
        words[f"v{k}"] = np.array([[b"good"]] * 20), times
        rows = np.arange(1.0, 21)[:, None] + 20 * k
        rows[rng.random(20) < 0.2] = np.nan
        rows[rng.random(20) < 0.2] = 0
        audio[f"v{k}"] = rows, times
    for root, content in (("labels", labels), ("words", words), ("audio", audio)):
        root = {"labels": "All Labels", "audio": "COVAREP"}.get(root, root)
        write_csd(tmp_path / f"{root}.csd", content, root)
    (tmp_path / "folds.json").write_text(json.dumps(folds))
    data = DataConfig(**SPOKEN)
    corpus = open_corpus(tmp_path, data)
    preparation = fit(corpus, data, ModelConfig())
    caplog.clear()
    corpus = open_corpus(tmp_path, data)  # says again what it does not read
    for name, videos in folds.items():
        with caplog.at_level(logging.INFO):
            split, repairs = prepare(corpus.split(name), preparation)
        read = int(split.masks["audio"].sum())
        said = [int(n) for n in re.findall(rf"(\d+) of \d+ rows of {name}/audio", caplog.text)]
        bad = sum(int(np.isnan(audio[v][0]).sum()) for v in videos)
        assert repairs == {} and said[1:] == [bad] * (bad > 0)
        inside = [row for v in videos for row in (*audio[v][0][2:7], *audio[v][0][9:15])]
        assert read + said[0] + int(np.isnan(inside).sum()) == 20 * len(videos)
        here = split.features["audio"][split.masks["audio"]]
        np.testing.assert_array_equal(here, np.array(inside)[np.isfinite(inside)[:, 0]])
