"""Checks exported bundles: jax runs them alone, with the scores of `Bundle.predict`."""

import dataclasses
import json
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_text
from test_pieces import corpus, split_of
from tiny import tiny_config

from msajax.cli.bundles import export
from msajax.config import Config, DataConfig, ModelConfig
from msajax.corpus.corpus import Embedding, Split
from msajax.corpus.in_memory import corpus_of
from msajax.errors import UserError
from msajax.inference.bundle import Bundle, save_bundle
from msajax.inference.export import program as exporting
from msajax.inference.export.preparation import as_pair, prepare
from msajax.inference.export.program import make_program, write_export
from msajax.models.build import build_model
from msajax.models.contract import Prediction, blank_sample
from msajax.preparation.fit import fit
from msajax.preparation.pieces import read_pieces

N, T, WIDTHS = 7, {"text": 5, "audio": 3}, {"text": 6, "audio": 4}
HEARD = Embedding("5a52f0", "wavlm", 4, modality="audio")
# Runs a file where msajax and what it is made of cannot be imported.
ALONE = """
import runpy, sys
for name in ("msajax", "flax", "optax", "orbax", "safetensors", "absl", "ml_collections", "chex"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def samples(n: int = N, seed: int = 1) -> Split:
    """Makes features far from standardised, padded behind and in front; some audio is missing."""
    rng = np.random.default_rng(seed)
    features = {m: rng.normal(700, 3, (n, T[m], d)).astype("f4") for m, d in WIDTHS.items()}
    features["text"][::2, 3:] = 0
    features["text"][1::3, :1] = 0
    features["audio"][::4] = 0
    return Split(np.arange(n).astype(str), features, {}, rng.uniform(-3, 3, (n, 1)))


def trained(config: Config, of_corpus, seeds: int = 2, encoder=None) -> Bundle:
    """Makes a bundle of random parameters and of what is fitted on a corpus."""
    preparation = fit(of_corpus, config.data, config.model, {"text": encoder} if encoder else {})
    model = build_model(config.model, preparation.spec)
    sample = blank_sample(preparation.spec)
    shapes = jax.eval_shape(model.init, jax.random.key(0), *sample)["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda w: rng.normal(0, 0.3, (seeds, *w.shape)).astype("f4"), shapes)
    given = list(range(seeds)), [1] * seeds, params, "digest"
    return Bundle(config, preparation, *given)


def of_features(seeds: int = 2, **settings) -> Bundle:
    settings = {"model__modalities": ("text", "audio")} | settings
    config = tiny_config(data__standardize=settings["model__modalities"], **settings)
    return trained(config, corpus_of({"train": samples(40, 0)}), seeds)


def inputs_of(features, masks=None) -> dict[str, np.ndarray]:
    found = {f"features/{m}": x for m, x in features.items()}
    for m, x in features.items():
        given = np.full(x.shape[:2], -1) if masks is None else masks[m]
        found[f"masks/{m}"] = given.astype(np.int8)
    return found


def agree(found, wanted) -> None:
    for name in ("score", "score_sd", "seeds", "weights"):
        np.testing.assert_allclose(
            np.asarray(found[name]), getattr(wanted, name), atol=1e-5, err_msg=name
        )


# --- the folder ---


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Returns a bundle of three seeds, clipped at one deviation, and the folder of its export."""
    folder = tmp_path_factory.mktemp("export")
    bundle = of_features(3, data__clip=1.0)
    made = dataclasses.replace(bundle.preparation, embeddings=(HEARD,))
    bundle = dataclasses.replace(bundle, preparation=made)
    save_bundle(folder / "bundle", bundle)
    export(str(folder / "bundle"), str(folder / "exported"))
    return bundle, folder / "exported"


def run_example(folder, tmp_path, inputs):
    """Returns what `example.py` writes in a process that cannot import msajax."""
    given, written = tmp_path / "inputs.npz", tmp_path / "scores.npz"
    np.savez(given, **inputs)
    done = subprocess.run(
        [sys.executable, "-P", "-c", ALONE, folder / "example.py", given, written],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    return done, dict(np.load(written)) if written.exists() else None


def test_the_example_gives_the_scores_of_the_bundle_without_msajax(exported, tmp_path):
    bundle, folder = exported
    x = samples().features
    x["text"][2, 1, :3] = np.nan, np.inf, 1e30  # no measurement; 1e30 is beyond 1e6 deviations
    assert len((folder / "example.py").read_text().splitlines()) == 20
    done, found = run_example(folder, tmp_path, inputs_of(x))
    assert done.returncode == 0, done.stderr
    agree(found, bundle.predict(x))
    assert len(np.unique(found["score"])) == N and (found["score_sd"] > 1e-3).all()
    too_long = {m: np.pad(v, [(0, 0), (0, 1), (0, 0)]) for m, v in x.items()}
    done, found = run_example(folder, tmp_path, inputs_of(too_long))
    assert done.returncode == 1 and "'steps_text': 5, 'steps_audio': 3} is read" in done.stderr


def test_any_batch_any_length_and_given_masks(exported):
    bundle, folder = exported
    program = jax.export.deserialize(bytearray((folder / "program.jax_export").read_bytes()))
    parameters = dict(np.load(folder / "parameters.npz"))
    x = samples().features
    one = {"text": x["text"][:1, :3], "audio": x["audio"][1:2, :2]}
    agree(program.call(parameters, inputs_of(one)), bundle.predict(one))
    # Zeros that are said to be steps are steps; holes stay where they are.
    masks = {m: np.arange(T[m]) % 3 != (np.arange(N) % 2)[:, None] for m in T}
    agree(program.call(parameters, inputs_of(x, masks)), bundle.predict(x, masks))
    assert program.platforms == ("cpu", "cuda", "tpu")


def test_the_manifest_says_what_is_needed_to_call_it(exported):
    _, folder = exported
    manifest = json.loads((folder / "manifest.json").read_text())
    shapes = {x["name"]: (x["dtype"], x["shape"]) for x in manifest["inputs"]}
    assert shapes == {
        "features/text": ("float32", ["batch", "steps_text", 6]),
        "masks/text": ("int8", ["batch", "steps_text"]),
        "features/audio": ("float32", ["batch", "steps_audio", 4]),
        "masks/audio": ("int8", ["batch", "steps_audio"]),
    }
    assert manifest["longest"] == {"steps_text": 5, "steps_audio": 3} and not manifest["padded"]
    assert [(x["name"], x["shape"]) for x in manifest["outputs"]] == [
        ("score", ["batch", 1]),
        ("score_sd", ["batch", 1]),
        ("seeds", [3, "batch", 1]),
        ("weights", ["batch", 2]),
    ]
    assert manifest["embeddings"] == [dataclasses.asdict(HEARD)]
    assert manifest["modalities"] == ["text", "audio"] and manifest["model"]["seeds"] == [0, 1, 2]
    assert manifest["preparation"]["clip"] == 1 and manifest["corpus_digest"] == "digest"
    names = {path.name for path in folder.iterdir()}
    assert names == {*manifest["sha256_of"], "manifest.json"}
    program = (folder / "program.jax_export").read_bytes()
    assert b"site-packages" not in program and b"msajax/" not in program  # nobody's paths


def test_the_folder_is_whole_or_not_there(exported, tmp_path, monkeypatch):
    _, folder = exported
    with pytest.raises(UserError, match="is there already"):
        export(str(folder.parent / "bundle"), str(folder))
    with pytest.raises(UserError, match="lies inside the bundle"):
        export(str(folder.parent / "bundle"), str(folder.parent / "bundle" / "x"))

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("msajax.inference.export.program.write_npz", fail)
    monkeypatch.setattr(
        "msajax.inference.export.program.make_program",
        lambda _: exporting.Program(Serialised(), [], {}, {}, {}),
    )
    with pytest.raises(KeyboardInterrupt):
        write_export(exported[0], str(tmp_path / "new"))
    assert list(tmp_path.iterdir()) == []


class Serialised:
    def serialize(self) -> bytes:
        return b""


def test_pairs_hold_what_float32_does_not():
    values = np.array([700.123456789012, -1e-3 / 3, 12345678.9])
    pair = as_pair(values)
    assert pair.dtype == np.float32
    np.testing.assert_allclose(pair.astype(np.float64).sum(0), values, rtol=1e-14)
    assert np.abs(pair[0] - values).max() > 0.05  # the half that would be lost


# --- every kind of model ---

FAMILY = {
    "computed positions, pooled fusion": (
        {"positions": "sinusoidal", "fusion": "pooled"},
        {"text": 5, "audio": 3},
    ),
    "recurrent, both directions, attention pooling, concatenated": (
        {
            "modalities": ("audio",),
            "n_layers_mod": 1,
            "mixer": "gru",
            "both_directions": True,
            "pooling_method": "attention",
            "head": "concat",
        },
        {},
    ),
    "guided by gradients": (
        {"modalities": ("text",), "n_layers_mod": 1, "guidance": "gradient_x_input"},
        {},
    ),
}


@pytest.mark.parametrize("name", FAMILY)
def test_models_of_the_family(name):
    settings, padded = FAMILY[name]
    bundle = of_features(**{f"model__{key}": value for key, value in settings.items()})
    program = make_program(bundle)
    assert program.padded == padded
    x = {m: samples().features[m] for m in bundle.preparation.spec.modalities}
    agree(program.exported.call(program.parameters, inputs_of(x)), bundle.predict(x))


def test_words_are_token_ids_and_the_score_may_be_a_likelihood():
    texts = np.array(["a good film", "a film", "good good film a", "film"])
    split = Split(np.arange(4).astype(str), {}, {}, np.zeros((4, 1)), texts)
    config = tiny_config(
        model__name="next_token",
        model__modalities=("text",),
        model__causal=True,
        model__n_layers_mod=1,
        data__text="words",
        data__min_count=1,
    )
    bundle = trained(config, corpus_of({"train": split}))
    program = make_program(bundle)
    rows = {word: i for i, word in enumerate(bundle.preparation.words)}
    ids = np.zeros((4, 4), np.int32)
    for row, text in zip(ids, texts.tolist(), strict=True):
        row[: len(text.split())] = [rows[word] for word in text.split()]
    inputs = {"ids/text": ids, "masks/text": np.full(ids.shape, -1, np.int8)}
    wanted = bundle.predict(raw_text=texts.tolist())
    agree(program.exported.call(program.parameters, inputs), wanted)
    ids[0, 2] = 99  # no word of the vocabulary: padding, as on the host
    masked = program.exported.call(program.parameters, inputs)
    agree(masked, bundle.predict(raw_text=["a good", *texts[1:].tolist()]))


def prepared_only(split: Split, **data) -> Bundle:
    """Returns a bundle that prepares, and cannot predict."""
    settings = DataConfig(standardize=("é",), clip=1.0, allow_loss=True, **data)
    of_corpus = corpus_of({"train": split}, aligned=("text", "é"))
    model = ModelConfig(modalities=("text", "é", "alone"))
    return Bundle(Config(), fit(of_corpus, settings, model), [0], [1], {}, "digest")


def compiled(bundle: Bundle, lengths: dict[str, int]):
    """Returns the program of `prepare`."""

    return jax.jit(lambda inputs, pairs: prepare(inputs, pairs, bundle.preparation, lengths))


@pytest.mark.parametrize("mask_from_zeros", [True, False])
def test_aligned_modalities_move_as_one_and_share_a_size(mask_from_zeros):
    rng = np.random.default_rng(2)
    x = {m: rng.normal(3, 2, (6, 4, 2)).astype("f4") for m in ("text", "é")}
    x["alone"] = rng.normal(size=(6, 2, 3)).astype("f4")
    x["text"][:3, :2] = 0
    x["é"][2:5, :1] = 0
    x["é"][5] = 0
    split = Split(np.arange(6).astype(str), x, {}, rng.uniform(-3, 3, (6, 1)))
    bundle = prepared_only(split, mask_from_zeros=mask_from_zeros)
    inputs, _ = exporting.make_inputs(bundle)
    sizes = {one["name"]: one["shape"][1] for one in inputs}
    assert sizes["features/text"] == sizes["masks/é"] == "steps_text"
    assert sizes["features/alone"] == "steps_alone"
    pairs = {
        f"é/{name}": as_pair(values)
        for name, values in zip(
            ("mean", "deviation"), bundle.preparation.statistics["é"], strict=True
        )
    }
    found = compiled(bundle, {})(inputs_of(x), pairs)
    wanted, masks = bundle.prepare(x)
    for m in x:
        np.testing.assert_array_equal(found.masks[m], masks[m], err_msg=m)
        np.testing.assert_allclose(found.features[m], wanted[m], atol=1e-6, err_msg=m)
    assert np.abs(wanted["é"]).max() == 1  # it was clipped


# --- text of a pretrained encoder ---

SPOKEN = [["films", "a", ""], ["", "ungoods", "b!"], ["", "", ""], ["a", "", "good"]]


def of_pieces(pool: str, split: Split, **settings) -> Bundle:
    names = ("text", *split.features)
    config = tiny_config(
        model__modalities=names,
        model__text_encoder="FOLDER",
        model__text_pool=pool,
        model__n_layers_mod=0,
        data__text="pieces",
        data__standardize=(),
        **settings,
    )
    shared = names if split.words is not None else ()
    return trained(config, corpus(split, shared), 2, tiny_text.Encoder())


def inputs_of_pieces(bundle: Bundle, split: Split) -> dict[str, np.ndarray]:
    """Returns the stored pieces of a split, as whoever calls the program has them."""
    read, _ = read_pieces(split, bundle.preparation.text_source)
    ids, segments, steps = np.moveaxis(read.features["text"], -1, 0)
    length = bundle.preparation.spec.length("text")
    found = {"ids/text": ids, "segments/text": segments, "steps/text": steps}
    found["masks/text"] = read.masks["text"].astype(np.int8)
    found = {name: x[:, :length] for name, x in found.items()}
    if "audio" in split.features:
        found |= inputs_of({"audio": split.features["audio"].astype(np.float32)})
    return found


@pytest.mark.parametrize("pool", ["pieces", "words", "first"])
def test_what_shares_steps_with_words_moves_as_on_the_host(pool):
    split = split_of(SPOKEN)
    split.features["audio"][1, 0] = 0  # a step before any word
    bundle = of_pieces(pool, split)
    spec = bundle.preparation.spec
    lengths = exporting.make_lengths(bundle)
    assert lengths == {m: spec.length(m) for m in spec.modalities}
    inputs, program = inputs_of_pieces(bundle, split), compiled(bundle, lengths)
    found = program(inputs, {})
    wanted, masks = bundle.prepare(
        {"audio": split.features["audio"]}, words=[list(words) for words in split.words]
    )
    for m in spec.modalities:
        np.testing.assert_array_equal(found.masks[m], masks[m], err_msg=m)
        np.testing.assert_array_equal(found.features[m], wanted[m], err_msg=m)
    assert not found.wrong.any()
    for name, bad in (("ids/text", 10**6), ("segments/text", 2), ("steps/text", 10**6)):
        broken = inputs | {name: inputs[name].copy()}
        broken[name][1, 1] = bad
        assert program(broken, {}).wrong.tolist() == [False, True, False, False]


def test_pieces_enter_as_ids_and_their_tokenizer_lies_beside(tmp_path):
    """The encoder is frozen: one copy for all seeds."""
    texts = ["a films", "", "good film!", "a"]
    split = split_of(raw_text=texts)
    bundle = of_pieces("pieces", split)
    own = dict(bundle.params)
    shared = {"text_pretrained": jax.tree.map(lambda x: x[0], own.pop("text_pretrained"))}
    bundle = dataclasses.replace(bundle, params=own, shared=shared)
    manifest = write_export(bundle, str(tmp_path / "exported"))
    assert (tmp_path / "exported" / "tokenizer.json").read_text() == tiny_text.WORDPIECE
    assert manifest["text"]["tokenizer"] == "tokenizer.json" and not manifest["padded"]
    assert manifest["longest"] == {"steps_text": bundle.preparation.spec.length("text")}
    program = jax.export.deserialize(
        bytearray((tmp_path / "exported" / "program.jax_export").read_bytes())
    )
    inputs = inputs_of_pieces(bundle, split)
    parameters = dict(np.load(tmp_path / "exported" / "parameters.npz"))
    wanted = bundle.predict(raw_text=texts)
    agree(program.call(parameters, inputs), wanted)
    inputs["ids/text"][0, 1] = 10**6
    found = program.call(parameters, inputs)
    assert np.isnan(found["score"]).ravel().tolist() == [True, False, False, False]


# --- a model of one's own ---


class OfBatch(nn.Module):
    """Needs the number of samples when it is traced."""

    config: object
    spec: object

    @nn.compact
    def __call__(self, features, masks, *, train=False):
        x = features["text"]
        bias = self.param("bias", nn.initializers.ones, (1,))
        score = jnp.asarray(np.arange(int(x.shape[0])))[:, None] + bias
        return Prediction(score, jnp.ones((x.shape[0], 2)))


def test_a_model_that_cannot_be_exported_is_refused_in_a_sentence(monkeypatch):
    bundle = of_features()
    monkeypatch.setattr(exporting, "build_model", lambda config, spec: OfBatch(config, spec))
    params = {"bias": np.ones((2, 1), np.float32)}
    with pytest.raises(UserError, match="'sequence_level' cannot be exported: its module cannot"):
        make_program(dataclasses.replace(bundle, params=params))
