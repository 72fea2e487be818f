"""MAG-BERT: what is shifted by what, whatever the padding, and a run from a folder to scores."""

import dataclasses
import functools
import pathlib

import jax
import numpy as np
import pytest
import safetensors.numpy
import tiny_text
from tiny import tiny_config

from msajax.cli.predict import predict as predict_corpus
from msajax.config import ModelConfig
from msajax.encoders.folder import open_folder
from msajax.encoders.module import make_encoder
from msajax.encoders.table import read_architecture
from msajax.errors import UserError
from msajax.experiment.run import train
from msajax.inference.bundle import load
from msajax.models.build import build_model, declared, parameter_shapes
from msajax.models.peers.settings import MagSettings
from msajax.spec import CorpusSpec
from msajax.training.initial import from_encoder

ALL = ("text", "audio", "video")
B, P = 3, 8
BASE = {  # as google-bert/bert-base-uncased
    "model_type": "bert", "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12,
    "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 512,
}


def spec_of(names=ALL, widths=(3, 2), encoder=None, aligned=True) -> CorpusSpec:
    encoder = encoder or tiny_text.architecture(hidden_dropout_prob=0.0)
    beside = len(names) - 1
    return CorpusSpec(
        names, (0, *widths[:beside]), (P,) * len(names), groups=(names,) if aligned else (),
        vocabularies=(encoder.vocabulary, *(0,) * beside),
        encoders=(encoder, *(None,) * beside),
    )  # fmt: skip


def config_of(**settings) -> ModelConfig:
    return ModelConfig(name="mag", own=MagSettings(**settings))


def batch_of(seed: int = 0) -> tuple[dict, dict]:
    """[CLS], words and [SEP] of 8, 5 and 3 pieces, rows of the others beside the words."""
    rng = np.random.default_rng(seed)
    mask = np.arange(P) < np.array([[8], [5], [3]])
    special = (np.arange(P) == 0) | (np.arange(P) == mask.sum(1, keepdims=True) - 1)
    step = np.where(mask & ~special, np.arange(P), -1)
    ids = np.where(mask, rng.integers(4, 12, (B, P)), 0)
    pieces = np.stack([ids, np.zeros_like(ids), step], -1).astype(np.int32)
    rows = {m: np.float32(rng.normal(size=(B, P, d))) for m, d in zip(ALL[1:], (3, 2), strict=True)}
    return {"text": pieces, **rows}, {"text": mask, **dict.fromkeys(rows, mask & ~special)}


@pytest.mark.parametrize(
    ("widths", "gate"), [((5, 20), 1_222_656), ((74, 35), 1_351_680), ((74, 47), 1_370_112)]
)
def test_it_has_as_many_parameters_as_its_reference(widths, gate):
    spec = spec_of(widths=widths, encoder=read_architecture(BASE, "config.json"))
    shapes = parameter_shapes(config_of(), spec)
    counts = {path: int(np.prod(shape)) for path, shape in shapes.items()}
    assert sum(n for path, n in counts.items() if path.startswith("gate/")) == gate
    assert sum(counts.values()) == 109_482_240 + gate + 769


def moved(features: dict, masks: dict, places: np.ndarray) -> tuple[dict, dict]:
    """Puts every step of a batch to other places of a longer one, with rubbish between them."""
    found, valid = {}, {}
    for m, x in features.items():
        filler = np.full((B, P + 3, *x.shape[2:]), 1 if m == "text" else np.nan, x.dtype)
        filler[:, places] = x
        found[m], valid[m] = filler, np.zeros((B, P + 3), bool)
        valid[m][:, places] = masks[m]
    return found, valid


def run(module, *arguments, **options):
    """What a model gives of parameters, features and masks, by one program."""
    return jax.jit(functools.partial(module.apply, **options))(*arguments)


def drawn(module, features: dict, masks: dict) -> dict:
    """Parameters as large as after long training: the gate begins with hardly any shift."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), features, masks))
    return jax.tree.map(lambda x: np.float32(rng.normal(0, 0.4, x.shape)), shapes)


def test_rows_stay_beside_their_pieces_wherever_padding_stands():
    module = build_model(config_of(), spec_of())
    features, masks = batch_of()
    variables = drawn(module, features, masks)
    apply = jax.jit(module.apply)
    expected = apply(variables, features, masks).score
    places = np.array([1, 2, 4, 5, 6, 8, 9, 10])
    found = apply(variables, *moved(features, masks, places)).score
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    other = {m: x + (m == "audio") for m, x in features.items()}
    assert (np.abs(apply(variables, other, masks).score - expected) > 1e-4).all()


def test_only_a_piece_with_a_row_is_shifted_unless_as_in_the_reference():
    features, masks = batch_of()
    masks["video"] = masks["video"] & (np.arange(B) != 1)[:, None]
    masks["audio"] = masks["audio"] & (np.arange(B) != 1)[:, None]
    shifts = {}
    for compat in ("clean", "reference"):
        module = build_model(config_of(compat=compat), spec_of())
        variables = drawn(module, features, masks)
        prediction, kept = run(module, variables, features, masks, mutable="intermediates")
        shifts[compat] = np.abs(kept["intermediates"]["gate"]["shift"][0]).sum(-1)
        np.testing.assert_allclose(prediction.modality_weights[1], (1, 0, 0))
    np.testing.assert_array_equal(shifts["clean"] > 0, masks["audio"])
    assert (shifts["reference"][masks["text"]] > 0).all()


def test_text_alone_is_the_encoder():
    spec = spec_of(("text",))
    module = build_model(config_of(), spec)
    features, masks = ({"text": each["text"]} for each in batch_of())
    params = drawn(module, features, masks)["params"]
    assert set(params) == {"text_pretrained", "pooler", "regression"}
    encoder = make_encoder(spec.encoder("text"), "float32")
    ids, mask = features["text"][..., 0], masks["text"]
    within = {"params": params["text_pretrained"]["encoder"]}
    first = np.float64(run(encoder, within, ids, mask, train=False))[:, 0]
    pooled = np.tanh(first @ params["pooler"]["kernel"] + params["pooler"]["bias"])
    expected = pooled @ params["regression"]["kernel"] + params["regression"]["bias"]
    score = run(module, {"params": params}, features, masks).score
    np.testing.assert_allclose(score, expected, rtol=1e-5, atol=1e-7)


def test_gradients_are_finite_where_nothing_is_there():
    module = build_model(config_of(gate_dropout=0.0), spec_of())
    features, masks = batch_of()
    for m, mask in masks.items():
        masks[m] = mask & (np.arange(B) != {"text": 2, "audio": 1, "video": 1}[m])[:, None]
    variables = drawn(module, features, masks)

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def slopes(variables):
        score = module.apply(variables, features, masks).score
        return score.sum(), score

    gradient, score = slopes(variables)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    np.testing.assert_array_equal(score[2], variables["params"]["regression"]["bias"])


def test_what_it_cannot_be_built_of_is_refused_in_a_sentence():
    with pytest.raises(UserError, match="works inside a pretrained text encoder"):
        build_model(config_of(), CorpusSpec(ALL, (4, 3, 2), (P,) * 3, groups=(ALL,)))
    with pytest.raises(UserError, match="audio, video must share the steps of the words"):
        build_model(config_of(), spec_of(aligned=False))
    apart = dataclasses.replace(spec_of(), groups=(("text", "audio"),))
    with pytest.raises(UserError, match="word: video must share"):
        build_model(config_of(), apart)
    with pytest.raises(UserError, match="model.text_pool = 'words': .* does not read it"):
        ModelConfig(name="mag", text_pool="words")


def folder_of(path: pathlib.Path) -> tuple[str, dict[str, np.ndarray]]:
    """A folder with a BERT and its pooler, as it was saved with a head."""
    folder, rng = tiny_text.write_folder(path), np.random.default_rng(9)
    tensors = safetensors.numpy.load_file(f"{folder}/model.safetensors")
    width = tiny_text.CONTENT["hidden_size"]
    shapes = {"weight": (width, width), "bias": (width,)}
    pooler = {name: np.float32(rng.normal(size=shape)) for name, shape in shapes.items()}
    tensors |= {f"pooler.dense.{name}": x for name, x in pooler.items()}
    named = {f"bert.{name}": x for name, x in tensors.items()}
    safetensors.numpy.save_file(named, f"{folder}/model.safetensors")
    return folder, pooler


def corpus_of(path: pathlib.Path) -> str:
    """Words step by step, audio and video beside them, one of them missing in some samples."""
    rng, arrays = np.random.default_rng(0), {}
    for split, size in (("train", 20), ("valid", 8), ("test", 8)):
        lengths = rng.integers(2, 6, size)
        words = rng.choice(["a", "b", "good", "films"], (size, 5))
        valid = np.arange(5) < lengths[:, None]
        arrays |= {
            f"{split}/id": np.array([f"{split}{i}" for i in range(size)]),
            f"{split}/label": rng.uniform(-3, 3, size),
            f"{split}/words": np.where(valid, words, ""),
        }
        for m, width in (("audio", 3), ("video", 2)):
            x = rng.normal(size=(size, 5, width)) * valid[..., None]
            x[1] = 0 if m == "audio" else x[1]
            arrays[f"{split}/{m}"] = x
    np.savez(path, **arrays)
    return str(path)


def test_it_trains_from_a_folder_and_predicts(tmp_path):
    (folder, pooler), corpus = folder_of(tmp_path / "bert"), corpus_of(tmp_path / "corpus.npz")
    config = tiny_config(
        data__path=corpus, model={"name": "mag", "text_encoder": folder}, train__epochs=1,
        train__batch_size=8, train__report=False, optim__learning_rate=1e-5,
    )  # fmt: skip
    train(config, str(tmp_path / "run"))
    bundle = load(tmp_path / "run" / "bundle")
    assert bundle.preparation.spec.groups == (ALL,)
    begun = bundle.params["pooler"]
    np.testing.assert_allclose(begun["kernel"], [pooler["weight"].T] * 2, atol=1e-3)
    np.testing.assert_allclose(begun["bias"], [pooler["bias"]] * 2, atol=1e-3)
    predict_corpus(str(tmp_path / "run" / "bundle"), corpus, str(tmp_path / "p.csv"), "test")
    scores = [line.split(",")[2] for line in (tmp_path / "p.csv").read_text().splitlines()]
    there = (tmp_path / "run" / "predictions" / "test.csv").read_text().splitlines()
    assert scores == [line.split(",")[2] for line in there]


def test_a_folder_without_a_pooler_leaves_it_random(tmp_path):
    model, spec = declared(config_of()), spec_of()
    shapes = parameter_shapes(config_of(), spec)
    for name, has_one in (("with", True), ("without", False)):
        make = folder_of if has_one else tiny_text.write_folder
        make(tmp_path / name)
        found = from_encoder(model, "text", open_folder(tmp_path / name), shapes)
        assert ("pooler/kernel" in found) == ("pooler/bias" in found) == has_one
