"""The mapped folder: the corpus of the archive, and whatever is not what its manifest says."""

import json
import pathlib
import re

import numpy as np
import pytest
from tiny import tiny_config

from msajax.cli.corpora import convert
from msajax.cli.inspect import inspect
from msajax.config import DataConfig
from msajax.corpus.formats import open_corpus
from msajax.errors import UserError
from msajax.experiment import run


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    """The tiny corpus as a mapped folder; beside it, as an archive."""
    for name in ("corpus", "corpus.npz"):
        convert("synthetic", tiny_config().data, str(tmp_path / name))
    return tmp_path / "corpus"


def test_a_folder_and_an_archive_are_the_same_corpus(folder):
    mapped, native = open_corpus(folder), open_corpus(folder.with_suffix(".npz"))
    assert mapped.digest == native.digest and mapped.headers == native.headers
    for name in native.headers:
        one, other = mapped.split(name), native.split(name)
        assert isinstance(one.features["text"], np.memmap)
        for field in ("ids", "labels", "raw_text"):
            np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
        for m in native.modalities:
            np.testing.assert_array_equal(one.features[m], other.features[m])
            np.testing.assert_array_equal(one.masks[m], other.masks[m])


DAMAGE = {
    "a flipped byte": lambda folder: flip(folder / "test" / "text.npy"),
    "a flipped label": lambda folder: flip(folder / "train" / "label.npy"),
    "another digest": lambda folder: edit(folder, sha256="0" * 64),
    "an array left out": lambda folder: edit(folder, without="train/audio_mask"),
    "an array put in": lambda folder: np.save(folder / "train" / "video.npy", np.ones((44, 2, 2))),
}


def flip(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def edit(folder: pathlib.Path, without: str = "", **changes) -> None:
    manifest = json.loads((folder / "corpus.json").read_text())
    manifest["arrays"] = [name for name in manifest["arrays"] if name != without]
    (folder / "corpus.json").write_text(json.dumps(manifest | changes))


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_not_what_the_manifest_says_is_refused_before_it_is_used(folder, kind, tmp_path):
    DAMAGE[kind](folder)
    config = tiny_config(data__path=str(folder))
    uses = (
        lambda: run.train(config, str(tmp_path / "run")),
        lambda: inspect(str(folder), DataConfig()),
        lambda: convert(str(folder), DataConfig(), str(tmp_path / "again")),
    )
    for use in uses:
        with pytest.raises(UserError) as caught:
            use()
        assert re.fullmatch(rf"{re.escape(str(folder))}[^\n]+\.", str(caught.value))
    assert not (tmp_path / "run").exists() and not (tmp_path / "again").exists()


NONSENSE = {
    "gone": lambda folder: (folder / "train" / "text.npy").unlink(),
    "no JSON": lambda folder: (folder / "corpus.json").write_text("{"),
    "version": lambda folder: edit(folder, version=2),
    "names": lambda folder: edit(folder, arrays={"train/text": 1}),
    "dev": lambda folder: edit(folder, arrays=["dev/text"]),
    "path": lambda folder: edit(folder, arrays=["train/../../x"]),
}


@pytest.mark.parametrize("change", NONSENSE)
def test_a_manifest_that_makes_no_sense_is_one_sentence(folder, change):
    NONSENSE[change](folder)
    with pytest.raises(UserError, match=r"^[^\n]+\.$") as caught:
        open_corpus(folder)
    assert ("rename dev/… to valid/…." in str(caught.value)) == (change == "dev")


def test_a_corpus_is_not_converted_into_itself_or_over_something(folder, tmp_path):
    with pytest.raises(UserError, match="lies inside the corpus"):
        convert(str(folder), DataConfig(), str(folder / "sub"))
    with pytest.raises(UserError, match="is there already"):
        convert(str(folder), DataConfig(), str(folder.with_suffix(".npz")))
    with pytest.raises(UserError, match="cannot be written: No such file or directory"):
        convert(str(folder), DataConfig(), str(tmp_path / "no" / "x"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "corpus.npz"]


def test_converting_touches_nothing_but_its_output(folder, tmp_path):
    archive = folder.with_suffix(".npz").rename(tmp_path / "again.npz.partial")
    (tmp_path / "again.partial").mkdir()
    before = archive.read_bytes()
    for name in ("again.npz", "again/"):
        convert(str(archive), DataConfig(), f"{tmp_path}/{name}")
        assert open_corpus(tmp_path / name).digest == open_corpus(folder).digest
    assert archive.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {
        *("corpus", "again", "again.npz", "again.npz.partial", "again.partial")
    }
