"""Promises of runs with a pretrained text encoder: what moves, what is kept, what is the same."""

import functools
import json
import pathlib

import chex
import jax
import numpy as np
import pytest
import safetensors.numpy
import tiny_text
from flax.traverse_util import flatten_dict, unflatten_dict
from survivors import state_of
from tiny import lines_of, tiny_config
from tiny_text import PIECES, WORDPIECE

from msajax.cli.corpora import convert, embed
from msajax.cli.explain import explain_corpus
from msajax.cli.finished import measure_robustness
from msajax.cli.inspect import inspect_model
from msajax.cli.predict import predict as predict_corpus
from msajax.config import Config, DataConfig
from msajax.corpus.formats import open_corpus
from msajax.encoders.folder import open_folder
from msajax.encoders.module import make_encoder, parameters_of
from msajax.errors import UserError
from msajax.experiment import run
from msajax.inference.bundle import load
from msajax.models.build import parameter_shapes
from msajax.preparation.inspection import inspect_corpus
from msajax.robustness import measure
from msajax.training.plan import plan
from msajax.training.saving import Saving

FROZEN = ("text_pretrained/*:frozen=true",)
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
write_folder = functools.partial(tiny_text.write_folder, **NO_DROPOUT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A folder with a BERT of one layer."""
    return write_folder(tmp_path_factory.mktemp("encoders") / "bert")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    """A corpus of transcripts of 5 to 8 pieces of the tokenizer, in one length quarter, and audio.

    What is compiled for a quarter serves every test.
    """
    rng, arrays = np.random.default_rng(0), {}
    for split, size in (("train", 24), ("valid", 10), ("test", 10)):
        words = [rng.choice(["a", "b", "good"], k) for k in rng.integers(3, 6, size)]
        texts = [" ".join((*of_sample, *["films"] * (k % 2))) for k, of_sample in enumerate(words)]
        arrays |= {
            f"{split}/id": np.array([f"{split}{i}" for i in range(size)]),
            f"{split}/raw_text": np.array(texts),
            f"{split}/label": rng.normal(size=size).clip(-3, 3),
            f"{split}/audio": rng.normal(size=(size, 1, 3)),
        }
    path = tmp_path_factory.mktemp("corpus") / "corpus.npz"
    np.savez(path, **arrays)
    return str(path)


def config_of(corpus: str, folder: str, **settings) -> Config:
    """Text alone: the encoder's output is pooled and regressed."""
    return tiny_config(
        **{
            "data__path": corpus,
            "model__text_encoder": folder,
            "model__modalities": ("text",),
            "model__n_layers_fuse": 0,
            "model__max_len": 16,
            "train__epochs": 2,
            "train__seeds": 2,
            **settings,
        }
    )


@pytest.fixture(scope="module")
def fine_tuned(corpus, tmp_path_factory) -> pathlib.Path:
    """A whole run in which everything moves, and whose folder of an encoder is gone."""
    place = tmp_path_factory.mktemp("fine_tuned")
    copy = write_folder(place / "bert")
    run.train(config_of(corpus, copy), str(place / "run"))
    for file in pathlib.Path(copy).iterdir():
        file.unlink()
    return place / "run"


@pytest.fixture(scope="module")
def frozen(corpus, folder, tmp_path_factory) -> pathlib.Path:
    """A whole run whose encoder stays as it is in its folder."""
    workdir = tmp_path_factory.mktemp("frozen") / "run"
    run.train(config_of(corpus, folder, optim__groups=FROZEN), str(workdir))
    return workdir


def scores_in(workdir: pathlib.Path, split: str = "test") -> str:
    return (workdir / "predictions" / f"{split}.csv").read_text()


def test_the_encoder_begins_as_its_folder_says_and_moves(corpus, folder, fine_tuned):
    opened = open_folder(folder)
    begin = parameters_of(opened.architecture, opened.tensors())
    found = flatten_dict(load(fine_tuned / "bundle").params, sep="/")
    for path, values in begin.items():
        moved = found[f"text_pretrained/encoder/{path}"]
        assert moved.shape == (2, *values.shape)
        assert np.abs(moved - values).max() < 1  # two epochs of small steps from it
    kernel = "layers_0/attention/query/kernel"
    assert (found[f"text_pretrained/encoder/{kernel}"] != begin[kernel]).any(axis=(1, 2)).all()


def test_pieces_are_lost_but_take_no_noise_and_frozen_weights_are_shared(frozen, monkeypatch):
    monkeypatch.setattr(measure, "RATES", (0.0, 0.5))
    report = measure_robustness(str(frozen))
    assert [curve["kind"] for curve in report["curves"]] == ["drop_modality", "drop_steps"]
    for curve in report["curves"]:
        rest, worse = (point["metrics"]["mae"]["mean"] for point in curve["points"])
        assert rest != worse


def test_frozen_weights_are_once_in_the_run_and_in_the_bundle_and_in_no_checkpoint(folder, frozen):
    opened = open_folder(folder)
    begin = parameters_of(opened.architecture, opened.tensors())
    named = {f"text_pretrained/encoder/{path}": values for path, values in begin.items()}
    for place in (frozen, frozen / "bundle"):
        kept = safetensors.numpy.load_file(place / "frozen.safetensors")
        chex.assert_trees_all_equal(kept, named)
    state = state_of(frozen)
    assert state and not [key for key in state if "text_pretrained" in key]
    bundle = load(frozen / "bundle")
    assert "text_pretrained" not in bundle.params
    shapes = parameter_shapes(bundle.config.model, bundle.preparation.spec)
    assert bundle.parameters == sum(int(np.prod(shape)) for shape in shapes.values())


def test_frozen_once_is_what_a_copy_for_every_seed_was(
    corpus, folder, frozen, tmp_path, monkeypatch
):
    monkeypatch.setattr("msajax.experiment.run.shared_values", lambda *_: {})
    run.train(config_of(corpus, folder, optim__groups=FROZEN), str(tmp_path / "run"))
    assert not (tmp_path / "run" / "frozen.safetensors").exists()
    assert scores_in(tmp_path / "run") == scores_in(frozen)
    assert lines_of(tmp_path / "run") == lines_of(frozen)


def test_seeds_in_groups_give_the_same_numbers(corpus, folder, frozen, tmp_path):
    config = config_of(corpus, folder, optim__groups=FROZEN, train__seeds_at_once=1)
    assert run.train(config, str(tmp_path / "groups"), stop_after_epochs=1) is None
    while (grouped := run.train(config, str(tmp_path / "groups"), 1)) is None:
        pass
    assert sorted(p.name for p in (tmp_path / "groups" / "checkpoints").iterdir()) == ["0", "1"]
    together = json.loads((frozen / "results.json").read_text())
    grouped = json.loads(json.dumps(grouped))
    assert grouped["test"] == together["test"]
    assert grouped["best_epoch"] == together["best_epoch"]
    assert scores_in(tmp_path / "groups") == scores_in(frozen)
    lines = [lines_of(workdir) for workdir in (tmp_path / "groups", frozen)]
    grouped_lines, lines_together = (
        sorted(one, key=lambda line: (line["seed"], line["epoch"])) for one in lines
    )
    assert grouped_lines == lines_together
    assert grouped["timing"]["epochs"] == 4  # two of each group


def test_a_bundle_predicts_without_the_folder(corpus, folder, fine_tuned):
    bundle = load(fine_tuned / "bundle")
    with pytest.raises(UserError, match="a pretrained encoder of its own"):
        bundle.with_data(text_encoder=folder)
    with pytest.raises(UserError, match=r"raw_text\[1\] holds a character that Unicode does not"):
        bundle.predict(raw_text=["a", "b \ud800"])
    assert (fine_tuned / "bundle" / "tokenizer.json").read_text() == WORDPIECE
    test = open_corpus(corpus).split("test")
    found = bundle.predict(raw_text=test.raw_text.tolist())
    rows = scores_in(fine_tuned).splitlines()[1:]
    written = np.array([float(row.split(",")[2]) for row in rows])
    # Other batches than the file's, of full length: float32 sums of scores of some tenths.
    np.testing.assert_allclose(found.score[:, 0], written, rtol=0, atol=5e-7)


def test_the_folders_content_is_in_the_identity_and_its_path_is_not(corpus, fine_tuned, tmp_path):
    same = write_folder(tmp_path / "same")
    assert run.train(config_of(corpus, same), str(fine_tuned)) is not None
    other = write_folder(tmp_path / "other", seed=1)
    with pytest.raises(UserError, match="text encoder digest"):
        run.train(config_of(corpus, other), str(fine_tuned))


def test_shared_values_that_changed_are_refused(corpus, folder, tmp_path):
    config = config_of(corpus, folder, optim__groups=FROZEN)
    assert run.train(config, str(tmp_path), stop_after_epochs=1) is None
    path = tmp_path / "frozen.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(UserError, match="other values than the frozen parameters"):
        run.train(config, str(tmp_path))


def test_a_model_that_reads_no_pieces_refuses_an_encoder(corpus, folder):
    with pytest.raises(UserError, match="text_encoder.*'next_token' does not read it"):
        config_of(corpus, folder, model__name="next_token")


# --- features once ---


def test_embedded_text_is_what_the_encoder_writes(corpus, folder, tmp_path):
    output = str(tmp_path / "embedded.npz")
    embed(corpus, config_of(corpus, folder, model__max_len=0), output)
    there, opened = open_corpus(output), open_folder(folder)
    embedding = there.source.embedding("text")
    assert (embedding.digest, embedding.pool, embedding.width) == (opened.digest, "pieces", 8)
    module = make_encoder(opened.architecture, np.float32)
    params = unflatten_dict(parameters_of(opened.architecture, opened.tensors()), sep="/")
    encode = jax.jit(lambda ids: module.apply({"params": params}, ids, ids >= 0, train=False))
    split, found = open_corpus(corpus).split("valid"), there.split("valid")
    assert found.raw_text.tolist() == split.raw_text.tolist()
    np.testing.assert_array_equal(found.features["audio"], split.features["audio"])
    for row, text in enumerate(split.raw_text.tolist()):
        ids = [2]
        for word in text.split():
            ids += [PIECES.index(p) for p in (("film", "##s") if word == "films" else (word,))]
        ids = np.array([[*ids, 3]])
        expected = encode(ids)
        assert found.masks["text"][row].sum() == ids.size
        np.testing.assert_allclose(
            found.features["text"][row, : ids.size], expected[0], rtol=1e-5, atol=2e-6
        )
        assert not found.features["text"][row, ids.size :].any()
        names = [PIECES[k] for k in ids[0]]  # of each step the piece, in words that are kept
        assert found.pieces[row].tolist() == names + [""] * (found.pieces.shape[1] - ids.size)
    folder_of_it = str(tmp_path / "embedded")
    convert(output, DataConfig(), folder_of_it)
    np.testing.assert_array_equal(open_corpus(folder_of_it).split("valid").pieces, found.pieces)
    folds = open_corpus(output, DataConfig(folds=3, fold=1)).split("test")
    for row, name in enumerate(folds.ids.tolist()):
        split = there.split(name.rstrip("0123456789"))
        (k,) = np.flatnonzero(split.ids == name)
        assert [p for p in folds.pieces[row] if p] == [p for p in split.pieces[k] if p]
    report = inspect_corpus(there, DataConfig())
    assert report["splits"]["test"]["modalities"]["text"]["named_by"] == "pieces"


def test_embedding_says_what_it_cuts_and_refuses_to_cut_all(corpus, folder, tmp_path, caplog):
    config = config_of(corpus, folder, model__max_len=4, data__truncate="first")
    with caplog.at_level("WARNING"):
        embed(corpus, config, str(tmp_path / "cut.npz"))
    there = open_corpus(str(tmp_path / "cut.npz"))
    for name in ("train", "valid", "test"):
        texts = open_corpus(corpus).split(name).raw_text.tolist()
        pieces = [len(text.split()) + text.count("films") + 2 for text in texts]
        cut = sum(max(length - 4, 0) for length in pieces)
        assert f"Repaired in {name}: text: {cut} piece(s) of transcripts" in caplog.text
        assert there.split(name).masks["text"].sum() == sum(min(length, 4) for length in pieces)
    config = config_of(corpus, folder, model__max_len=2, data__truncate="first")
    with pytest.raises(UserError, match="adds 2 special pieces"):
        embed(corpus, config, str(tmp_path / "nothing.npz"))
    assert not (tmp_path / "nothing.npz").exists()


def test_predict_embeds_with_the_same_folder_alone(corpus, folder, tmp_path, caplog):
    output, csv = str(tmp_path / "embedded.npz"), str(tmp_path / "scores.csv")
    embed(corpus, config_of(corpus, folder), output)
    config = config_of(output, "", model__max_len=0)
    run.train(config, str(tmp_path / "run"))
    bundle = str(tmp_path / "run" / "bundle")
    with pytest.raises(UserError, match="name its folder with --config.model.text_encoder"):
        predict_corpus(bundle, corpus, csv, "test")
    predict_corpus(bundle, corpus, csv, "test", text_encoder=folder)
    assert "lacks modality" not in caplog.text
    columns = [
        [row.split(",")[2] for row in text.splitlines()]
        for text in (pathlib.Path(csv).read_text(), scores_in(tmp_path / "run"))
    ]
    assert columns[0] == columns[1]
    page, encoders = str(tmp_path / "why.html"), {"text": folder}
    found = explain_corpus(bundle, corpus, page, "test", samples=1, encoders=encoders)
    assert found["samples"][0]["words"][0] == "[CLS]"
    loaded = load(bundle)
    with pytest.raises(UserError, match="name its folder with --config.model.text_encoder"):
        loaded.predict(raw_text=["a good film"])
    embedding = loaded.with_data(text_encoder=folder)
    assert embedding.predict(raw_text=["a good film"]).score.shape == (1, 1)
    other = write_folder(tmp_path / "other", seed=1)
    with pytest.raises(UserError, match="another encoder"):
        loaded.with_data(text_encoder=other)


# --- memory, disk and time ---


def test_a_plan_counts_what_a_run_keeps(corpus, folder, frozen):
    config = config_of(corpus, folder, optim__groups=FROZEN)
    bundle = load(frozen / "bundle")
    found = plan(config, bundle.preparation.spec)
    own = sum(x.size for x in jax.tree.leaves(bundle.params)) // 2
    shared = sum(x.size for x in jax.tree.leaves(bundle.shared))
    assert found["parameters"] == {"moving": own, "frozen": shared, "shared": shared}
    assert found["memory"]["parameters"] == 4 * (2 * own + shared)
    assert found["memory"]["moments"] == 4 * 2 * 2 * own
    assert found["disk"]["bundle"] == 4 * (2 * own + shared)
    report = inspect_model(config)
    assert json.loads(json.dumps(report["plan"])) == found


def test_inspect_refuses_transcripts_that_training_would_refuse(corpus, folder, tmp_path):
    arrays = dict(np.load(corpus))
    for split in ("valid", "test"):
        longer = arrays | {f"{split}/raw_text": np.array(["a " * 15] * 10)}
        np.savez(tmp_path / "longer.npz", **longer)
        config = config_of(str(tmp_path / "longer.npz"), folder)
        with pytest.raises(UserError, match=rf"16 pieces, .*'{split}0' with 17"):
            inspect_model(config)


@pytest.mark.parametrize(
    ("asked", "seconds", "found"), [(30.0, 3.0, 30.0), (30.0, 6.0, 54.0), (0.0, 6.0, 0.0)]
)
def test_checkpoints_that_take_long_come_less_often(asked, seconds, found, caplog):
    saving = object.__new__(Saving)
    saving._interval = asked
    with caplog.at_level("INFO"):
        saving._stretch(seconds)
    assert saving._interval == pytest.approx(found)
    assert ("every 54 s" in caplog.text) == (found == 54.0)
