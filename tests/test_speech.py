"""Pretrained encoders of sound: what they compute, what is read of a folder, and runs with one."""

import dataclasses
import functools
import json
import pathlib

import jax
import numpy as np
import pytest
import safetensors.numpy
import tiny_text
from flax.traverse_util import flatten_dict, unflatten_dict
from pretrained_folders import SPEECH, encode_sound, random_tensors, write_folder
from tiny import tiny_config

from msajax.cli.bundles import export
from msajax.cli.corpora import embed
from msajax.cli.explain import explain_run
from msajax.cli.finished import measure_robustness
from msajax.cli.predict import predict as predict_corpus
from msajax.config import Config, ModelConfig, OptimConfig
from msajax.corpus.corpus import Split
from msajax.corpus.formats import open_corpus
from msajax.encoders.folder import open_folder
from msajax.encoders.module import make_encoder, parameters_of
from msajax.encoders.table import architecture_from_dict, read_architecture
from msajax.errors import UserError
from msajax.experiment import run
from msajax.inference.bundle import load
from msajax.layers.basic import rows_of_batch
from msajax.models.build import parameter_shapes
from msajax.preparation.waveforms import read_waveforms
from msajax.robustness import measure
from msajax.studies.ablation import only
from msajax.training.groups import settings_of

KINDS = {
    "wav2vec2": SPEECH,
    "hubert, norms of channels and before, biases, no projection norm": {
        **SPEECH, "model_type": "hubert", "feat_extract_norm": "layer", "conv_bias": True,
        "do_stable_layer_norm": True, "feat_proj_layer_norm": False,
    },
    "wavlm, an odd kernel of positions": {
        **SPEECH, "model_type": "wavlm", "num_buckets": 8, "max_bucket_distance": 9,
        "num_conv_pos_embeddings": 3,
    },
}
HOP, LENGTHS = 20, np.array([400, 333, 150, 20])


def architecture(config):
    return read_architecture(config, "config.json")


def params_of(config, tensors=None):
    flat = parameters_of(architecture(config), tensors or random_tensors(config))
    return unflatten_dict(flat, sep="/")


def waveforms(lengths, seed=0):
    x = np.random.default_rng(seed).normal(0.1, 0.5, (len(lengths), max(lengths)))
    return x.astype(np.float32)


# --- what they compute ---


@pytest.mark.parametrize(
    ("kind", "normalizes"), list(zip(KINDS, (True, False, False), strict=True))
)
def test_each_row_of_a_batch_is_its_samples_alone(kind, normalizes):
    config, x = KINDS[kind] | {"do_normalize": normalizes}, waveforms(LENGTHS)
    a = dataclasses.replace(architecture(config), normalizes=normalizes)
    tensors = random_tensors(config)
    encoder = make_encoder(a, "float32")  # padding holds other samples
    (output, valid), kept = jax.jit(
        functools.partial(encoder.apply, train=False, mutable="intermediates")
    )({"params": params_of(config, tensors)}, x, LENGTHS)
    found = [*kept["intermediates"]["hidden"][0], output]
    assert valid.sum(axis=1).tolist() == [19, 16, 7, 0] and not np.asarray(found)[:, ~valid].any()
    for row, length in enumerate(LENGTHS[:3]):
        expected = encode_sound(config, tensors, x[row, :length])
        for layer, here in zip(expected, found, strict=True):
            np.testing.assert_allclose(here[row, : len(layer)], layer, rtol=1e-4, atol=3e-5)


def test_longer_sound_is_encoded_in_parts_of_thirty_seconds(monkeypatch):
    config = KINDS["hubert, norms of channels and before, biases, no projection norm"]
    a, tensors = architecture(config), random_tensors(config)
    assert a.most_steps * HOP == 30 * 16_000
    monkeypatch.setattr(type(a), "most_steps", 400 // HOP)
    lengths = np.array([950, 700, 390])
    x = waveforms(lengths)
    steps = -(-x.shape[1] // HOP)
    there = np.clip(lengths[:, None] - HOP * np.arange(steps), 0, HOP)
    given = np.pad(x, ((0, 0), (0, steps * HOP - x.shape[1]))).reshape(3, steps, HOP)
    given = np.concatenate([given, there[..., None]], axis=2).astype(np.float32)
    encoder = make_encoder(a, "float32")
    read = functools.partial(encoder.apply, train=False, method=encoder.read_steps)
    found, valid = jax.jit(read)({"params": params_of(config, tensors)}, given, there > 0)
    assert found.shape == (3, steps, 8) and not np.asarray(found)[~np.asarray(valid)].any()
    for row, length in enumerate(lengths):
        count = 0
        for begin in range(0, length, 400):
            *_, expected = encode_sound(config, tensors, x[row, begin : min(begin + 400, length)])
            part = slice(begin // HOP, begin // HOP + len(expected))
            np.testing.assert_allclose(found[row, part], expected, rtol=1e-4, atol=3e-5)
            assert valid[row, part].all()
            count += len(expected)
        assert valid[row].sum() == count


def test_a_layer_may_be_left_out_and_frames_hidden_in_training_alone():
    a, x = architecture(SPEECH), waveforms([4000] * 40)
    params = params_of(SPEECH)

    def hidden(train=True, rows=slice(None), first=0, **settings):
        encoder = make_encoder(a, "float32", **settings)
        there = x[rows]
        lengths = np.full(len(there), 4000)
        variables = {"params": params, **rows_of_batch(first, np.ones(len(there)))}
        _, kept = encoder.apply(
            variables, there, lengths, train=train, mutable="intermediates",
            rngs={"dropout": jax.random.key(1)},
        )
        return np.asarray(kept["intermediates"]["hidden"][0])  # [layers + 1, B, T, D]

    plain = hidden()
    np.testing.assert_array_equal(
        plain, hidden(train=False, layer_drop=0.5, time_masking=0.5)
    )
    dropped = hidden(layer_drop=0.5)
    same = (dropped[1:] == dropped[:-1]).all(axis=(2, 3))  # [layers, B]
    assert 0.25 < same.mean() < 0.75 and (dropped[1][~same[0]] == plain[1][~same[0]]).all()
    # A part of a batch draws what its rows draw in the whole one.
    np.testing.assert_array_equal(
        hidden(rows=slice(10, 20), first=10, layer_drop=0.5) == plain[:, 10:20],
        dropped[:, 10:20] == plain[:, 10:20],
    )
    without = {k: v for k, v in params.items() if k != "mask_vector"}
    shapes = jax.eval_shape(
        lambda: make_encoder(a, "float32").init(
            jax.random.key(0), x[:1], np.array([4000]), train=False
        )
    )["params"]
    assert flatten_dict(shapes).keys() == flatten_dict(without).keys()
    encoder = make_encoder(a, "float32", time_masking=0.3)
    spans = encoder.bind({"params": params}, rngs={"dropout": jax.random.key(2)})._spans((400, 200))
    assert abs(np.asarray(spans[:, 10:]).mean() - 0.3) < 0.01
    changes = np.diff(np.asarray(spans).astype(int), axis=1)
    begins, ends = (np.argwhere(changes == sign) for sign in (1, -1))
    follows = {(row, at) for row, at in ends}
    assert all((row, at + k) not in follows for row, at in begins for k in range(1, 10))


# --- what is read of a folder ---


def test_a_folder_is_read_in_the_newer_and_the_older_names(tmp_path):
    tensors = random_tensors(SPEECH)
    name = "encoder.pos_conv_embed.conv"
    weight = tensors.pop(f"{name}.weight")
    direction = 3 * weight
    length = np.sqrt(np.square(weight).sum((0, 1), keepdims=True))
    newer = (".parametrizations.weight.original0", ".parametrizations.weight.original1")
    for k, (of_length, of_direction) in enumerate((newer, (".weight_g", ".weight_v"))):
        stored = {f"wav2vec2.{key}": x for key, x in tensors.items()}
        stored |= {f"wav2vec2.{name}{of_length}": length, "lm_head.weight": weight[0]}
        stored[f"wav2vec2.{name}{of_direction}"] = direction
        folder = open_folder(write_folder(tmp_path / str(k), SPEECH, stored))
        found = parameters_of(folder.architecture, folder.tensors())
        np.testing.assert_allclose(found["positions/kernel"], weight.transpose(2, 1, 0), rtol=1e-5)
        assert found["mask_vector"].shape == (8,)
    del stored["wav2vec2.masked_spec_embed"], stored["wav2vec2.encoder.layer_norm.bias"]
    folder = open_folder(write_folder(tmp_path / "less", SPEECH, stored))
    with pytest.raises(UserError, match="config.json asks for: encoder.layer_norm.bias"):
        parameters_of(folder.architecture, folder.tensors())


def test_a_folder_says_whether_waveforms_are_normalised(tmp_path):
    path = write_folder(tmp_path / "folder", SPEECH, random_tensors(SPEECH))
    file, digests = tmp_path / "folder" / "preprocessor_config.json", [open_folder(path).digest]
    assert not open_folder(path).architecture.normalizes
    for content, normalizes in (({}, True), ({"do_normalize": False}, False)):
        file.write_text(json.dumps({"sampling_rate": 16_000} | content))
        folder = open_folder(path)
        assert folder.architecture.normalizes == normalizes
        stored = json.dumps(dataclasses.asdict(folder.architecture))
        assert architecture_from_dict(json.loads(stored)) == folder.architecture
        digests.append(folder.digest)
    assert len(set(digests)) == 3
    file.write_text('{"sampling_rate": 8000}')
    with pytest.raises(UserError, match="sampling_rate = 8000: is not computed here, only 16000"):
        open_folder(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "whisper"}, "one of bert, .*wav2vec2, hubert, wavlm"),
        ({"conv_stride": [5, 2]}, "conv_dim = .*must be as long as conv_kernel and conv_stride"),
        ({"conv_kernel": [10, 3, 0]}, "conv_kernel = .*whole numbers from 1"),
        ({"num_feat_extract_layers": 7}, "num_feat_extract_layers = 7"),
        ({"feat_extract_norm": "batch"}, "feat_extract_norm = 'batch': .*group or layer"),
        ({"num_conv_pos_embedding_groups": 3}, "must divide hidden_size = 8"),
        ({"add_adapter": True}, "add_adapter = True"),
        ({"model_type": "wavlm", "num_buckets": 6}, "num_buckets = 6: must be a multiple of 4"),
        ({"feat_extract_activation": "relu"}, "feat_extract_activation = 'relu'"),
        ({"hidden_size": None}, "lacks hidden_size"),
    ],
)
def test_what_is_not_computed_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        architecture(SPEECH | changes)


# --- waveforms as a corpus stores them ---


def test_sound_is_read_from_its_first_to_its_last_sample():
    x, mask = np.zeros((4, 130, 1), np.float16), np.zeros((4, 130), bool)
    sound = np.arange(1, 66) / 64
    x[0, :65, 0], mask[0, :65] = sound, True
    x[1, 60:125, 0], mask[1, 60:125] = sound, True  # padded in front
    x[2, :65, 0], mask[2, :65] = sound, True
    x[2, 70:, 0], mask[2, 30:40] = 9, False  # something behind the mask, and a hole in it
    split = Split(np.array(list("abcd")), {"audio": x}, {"audio": mask})
    a = architecture(SPEECH)
    read, counts = read_waveforms(split, {"audio": a}, True)
    steps = read.features["audio"]
    assert steps.shape == (4, 4, HOP + 1) and counts == {"audio": {"hidden_steps": 70}}
    assert read.masks["audio"].tolist() == [[True] * 4] * 3 + [[False] * 4]
    expected = np.pad(sound, (0, 15)).reshape(4, HOP)
    for rows in (slice(0, 4), np.array([0, 1, 2, 3])):
        found = steps[rows]
        np.testing.assert_array_equal(found[0, :, :-1], expected)
        np.testing.assert_array_equal(found[0], found[1])
        assert found[..., -1].tolist() == [[20, 20, 20, 5]] * 3 + [[0] * 4]
    silent = np.where((np.arange(80) >= 30) & (np.arange(80) < 40), 0, expected.ravel())
    np.testing.assert_array_equal(steps[np.array([2])][0, :, :-1].ravel(), silent)
    # What is encoded in parts is counted.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(a), "most_steps", 3)
        assert read_waveforms(split, {"audio": a}, True)[1]["audio"]["in_parts"] == 3
    # Without a mask zeros at the ends are padding.
    x[2, 70:] = 0
    bare = dataclasses.replace(split, masks={}, features={"audio": x[[0, 1, 3]]}, ids=split.ids[:3])
    again, _ = read_waveforms(bare, {"audio": a}, True)
    np.testing.assert_array_equal(again.features["audio"][0:2], steps[0:2])
    for bad, message in (
        (np.zeros((4, 130, 2)), "audio is 2 wide, but its pretrained encoder reads sound"),
        (np.full((4, 130, 1), np.nan), "sound of 'a' .audio. has a sample that is not a finite"),
    ):
        with pytest.raises(UserError, match=message):
            read_waveforms(dataclasses.replace(split, features={"audio": bad}), {"audio": a}, True)


# --- runs ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    place = tmp_path_factory.mktemp("encoders") / "wav2vec2"
    return write_folder(place, SPEECH, random_tensors(SPEECH))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    """Tones of 301 to 400 samples, in one length quarter."""
    rng, arrays = np.random.default_rng(0), {}
    for split, size in (("train", 24), ("valid", 10), ("test", 10)):
        lengths = rng.integers(301, 401, size)
        x, label = np.zeros((size, 400, 1), np.float32), rng.uniform(-3, 3, size)
        for i, length in enumerate(lengths):
            x[i, :length, 0] = np.sin((label[i] + 4) / 20 * np.arange(length)) + 0.01
        arrays |= {
            f"{split}/id": np.array([f"{split}{i}" for i in range(size)]),
            f"{split}/label": label,
            f"{split}/audio": x,
            f"{split}/audio_mask": np.arange(400) < lengths[:, None],
            f"{split}/text": rng.normal(size=(size, 1, 3)),
        }
    path = tmp_path_factory.mktemp("corpus") / "corpus.npz"
    np.savez(path, **arrays)
    return str(path)


def config_of(corpus: str, folder: str, **settings) -> Config:
    encoders = (f"audio={folder}",) if folder else ()
    settings = {"model__encoders": encoders, "train__epochs": 2, "train__seeds": 2} | settings
    return tiny_config(data__path=corpus, model__n_layers_fuse=0, **settings)


@pytest.fixture(scope="module")
def trained(corpus, folder, tmp_path_factory) -> pathlib.Path:
    workdir = tmp_path_factory.mktemp("trained") / "run"
    run.train(config_of(corpus, folder), str(workdir))
    return workdir


def rows_of(path) -> list[list[str]]:
    return [line.split(",")[:4] for line in pathlib.Path(path).read_text().splitlines()]


def test_convolutions_stay_unless_a_group_says_otherwise(corpus, folder, trained):
    opened = open_folder(folder)
    begin = parameters_of(opened.architecture, opened.tensors())
    within = "audio_pretrained/encoder/"
    kept = safetensors.numpy.load_file(trained / "frozen.safetensors")
    stay = {name for name in begin if name.startswith("convolutions/")}
    assert {name.removeprefix(within) for name in kept} == stay
    moved = flatten_dict(load(trained / "bundle").params, sep="/")
    for name in begin.keys() - stay - {"mask_vector"}:
        # Of keys a bias changes no score.
        assert (moved[within + name] != begin[name]).any() or name.endswith("key/bias")
    bundle = load(trained / "bundle")
    shapes = parameter_shapes(bundle.config.model, bundle.preparation.spec)
    groups = (f"{within}convolutions/*:frozen=false",)
    assert not any(one.frozen for one in settings_of(OptimConfig(groups=groups), shapes).values())


def test_predictions_are_those_of_the_run_from_a_file_and_from_memory(
    corpus, trained, tmp_path, folder
):
    bundle, test = load(trained / "bundle"), open_corpus(corpus).split("test")
    predict_corpus(str(trained / "bundle"), corpus, str(tmp_path / "p.csv"), "test")
    expected = rows_of(trained / "predictions" / "test.csv")
    assert rows_of(tmp_path / "p.csv") == expected
    # Lists of waveforms of their own lengths.
    masks = test.masks["audio"]
    given = [x[mask] for x, mask in zip(test.features["audio"], masks, strict=True)]
    scores = bundle.predict({"audio": given, "text": test.features["text"]}).score[:, 0]
    np.testing.assert_allclose(scores, [float(row[2]) for row in expected[1:]], rtol=1e-8)
    with pytest.raises(UserError, match="has a pretrained encoder of its own, which reads wave"):
        bundle.with_data(encoders={"audio": folder})
    with pytest.raises(UserError, match=r"cannot be cut to single ones: choose first or last"):
        bundle.with_data(truncate="uniform").predict({"audio": [np.ones((500, 1))]})
    assert bundle.with_data(truncate="last").predict({"audio": [np.ones((500, 1))]}).score.size


def test_an_exported_program_scores_sound(trained, corpus, tmp_path):
    export(str(trained / "bundle"), str(tmp_path / "exported"))
    folder, test = tmp_path / "exported", open_corpus(corpus).split("test")
    manifest = json.loads((folder / "manifest.json").read_text())
    program = jax.export.deserialize(bytearray((folder / manifest["program"]).read_bytes()))
    parameters = dict(np.load(folder / manifest["parameters"]))
    x, mask = test.features["audio"][..., 0], test.masks["audio"].copy()
    x, mask = np.roll(x, 7, axis=1) * (np.arange(400) >= 7), np.roll(mask, 7, axis=1)
    mask[:, :7] = False  # as far as it fits, sound begins seven samples later
    inputs = {
        "features/audio": x.reshape(-1, 20, HOP).astype(np.float32),
        "masks/audio": mask.reshape(-1, 20, HOP).astype(np.int8),
        "features/text": test.features["text"].astype(np.float32),
        "masks/text": np.ones((10, 1), np.int8),
    }
    found = jax.jit(program.call)(parameters, inputs)["score"][:, 0]
    samples = [one[there] for one, there in zip(x, mask, strict=True)]
    bundle = load(trained / "bundle")
    given = {"audio": [one[:, None] for one in samples], "text": test.features["text"]}
    np.testing.assert_allclose(found, bundle.predict(given).score[:, 0], atol=2e-6)


def test_reports_of_a_run_with_sound(trained, monkeypatch):
    monkeypatch.setattr(measure, "RATES", (0.0, 0.5))
    report = measure_robustness(str(trained))
    kinds = [(curve["kind"], *curve["modalities"]) for curve in report["curves"]]
    assert ("drop_steps", "audio") in kinds and ("noise", "text") in kinds
    assert ("noise", "audio") not in kinds
    explained = explain_run(str(trained), "test", 3)
    assert explained["summary"]["completeness"]["relative_median"] < 0.01
    assert all(any(sample["contributions"]["audio"]) for sample in explained["samples"])
    parts = {(one["part"], one["from"]) for one in explained["samples"][0]["attention"]}
    assert ("pretrained", "audio") in parts


def test_embedded_sound_is_what_the_encoder_writes_and_predict_makes_it_anew(
    corpus, folder, tmp_path
):
    output = str(tmp_path / "embedded.npz")
    embed(corpus, config_of(corpus, folder), output)
    stored, there = open_corpus(corpus).split("valid"), open_corpus(output)
    embedding, tensors = there.source.embedding("audio"), random_tensors(SPEECH)
    assert (embedding.kind, embedding.width) == ("wav2vec2", 8)
    found = there.split("valid")
    for row, mask in enumerate(stored.masks["audio"]):
        *_, expected = encode_sound(SPEECH, tensors, stored.features["audio"][row, mask, 0])
        length = len(expected)
        assert found.masks["audio"][row].sum() == length
        np.testing.assert_allclose(
            found.features["audio"][row, :length], expected, rtol=1e-4, atol=3e-5
        )
    run.train(config_of(output, ""), str(tmp_path / "run"))
    bundle, csv = str(tmp_path / "run" / "bundle"), str(tmp_path / "p.csv")
    with pytest.raises(UserError, match=r"--config.model.encoders=audio=FOLDER"):
        predict_corpus(bundle, corpus, csv, "test")
    predict_corpus(bundle, corpus, csv, "test", encoders={"audio": folder})
    assert rows_of(csv) == rows_of(tmp_path / "run" / "predictions" / "test.csv")
    test = stored.features["audio"][:2]
    with pytest.raises(UserError, match=r"with_data\(encoders=\{'audio': FOLDER\}\)"):
        load(bundle).predict({"audio": test})
    given = load(bundle).with_data(encoders={"audio": folder})
    assert given.predict({"audio": test}).score.shape == (2, 1)


def test_settings_that_contradict_each_other_are_refused(corpus, folder, tmp_path):
    of_text = tiny_text.write_folder(tmp_path / "bert")
    for encoders, text, message in (
        (("audio",), "", "model.encoders = .*'audio' is no MODALITY=FOLDER"),
        (("audio=a", "audio=b"), "", "must name one folder for each modality"),
        (("text=a",), "b", "must name one folder for each modality; model.text_encoder is that"),
        (("audio=a,b",), "", "a folder whose name has a comma cannot be named"),
    ):
        with pytest.raises(UserError, match=message):
            ModelConfig(encoders=encoders, text_encoder=text)
    for entry, message in (
        (f"audio={of_text}", "audio=.*bert is an encoder of text, not of audio"),
        (f"text={folder}", "wav2vec2 is an encoder of sound, not of text"),
        (f"video={folder}", "video=.*corpus.npz has no video"),
    ):
        with pytest.raises(UserError, match=message):
            run.train(config_of(corpus, "", model__encoders=(entry,)), str(tmp_path / "run"))
    noise = config_of(corpus, folder, train__transforms=("feature_noise:audio=0.1",))
    with pytest.raises(UserError, match="'audio' is sound, which has no features"):
        run.train(noise, str(tmp_path / "run"))
    with pytest.raises(UserError, match="data.standardize names 'audio', which is sound"):
        run.train(
            config_of(corpus, folder, data__standardize=("audio",)), str(tmp_path / "run")
        )
    assert not (tmp_path / "run").exists()
    assert only(config_of(corpus, folder), ["text"]).model.encoders == ()
    assert only(config_of(corpus, folder), ["audio"]).model.encoders == (f"audio={folder}",)
