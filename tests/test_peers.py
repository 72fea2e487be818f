"""The peers' models: counts of parameters, references, and short runs of every one."""

import dataclasses
import functools
import pathlib

import check_peers
import jax
import numpy as np
import pytest
import tiny_text
import toys
from flax.traverse_util import flatten_dict
from layer_formulas import dense
from tiny import tiny_config

from msajax.cli.explain import explain_run
from msajax.cli.finished import measure_robustness
from msajax.cli.predict import predict as predict_corpus
from msajax.config import Config, ModelConfig, OptimConfig, from_config_dict, identity
from msajax.config.registry import registered
from msajax.errors import UserError
from msajax.experiment import run
from msajax.inference.bundle import load
from msajax.inference.export.program import make_program
from msajax.models.build import build_model, declared, parameter_shapes
from msajax.models.peers.settings import (
    AlmtSettings,
    DlfSettings,
    EfLstmSettings,
    LfDnnSettings,
    LmfSettings,
    MisaSettings,
    MmimSettings,
    MultSettings,
    SelfMmSettings,
    TextOnlySettings,
    TfnSettings,
)
from msajax.preparation.batches import Batch
from msajax.runs.folder import RunFolder
from msajax.spec import CorpusSpec

PEERS = [name for name, entry in registered().items() if entry.module.startswith("peers.")]
ALL = ("text", "audio", "video")
MOSI, MOSEI = (768, 5, 20), (768, 74, 35)
LENGTHS = (50, 50, 50)
TABLES = {("almt", MOSI): (50, 375, 500), ("almt", MOSEI): (50, 500, 500)}  # steps, if not those
ORIGINAL_MULT = {"d_model": 30, "num_heads": 5, "num_layers": 5, "text_kernel": 1,
                 "audio_kernel": 1, "video_kernel": 1}  # fmt: skip
COUNTS = [
    # Floors: of 128 units, or 64, by their layers.
    ("ef_lstm", EfLstmSettings(), MOSI, 4 * 128 * (793 + 128 + 2) + 128 * 129 + 129),
    ("ef_lstm", EfLstmSettings(), MOSEI, 4 * 128 * (877 + 128 + 2) + 128 * 129 + 129),
    # Of each mean of width d: 2 d of a norm, 64 (d + 1) and two layers of 64 (64 + 1).
    ("lf_dnn", LfDnnSettings(), MOSI,
     66 * 793 + 3 * (64 + 2 * 64 * 65) + 64 * (3 * 64 + 1) + 64 * 65 + 65),
    ("lf_dnn", LfDnnSettings(), MOSEI,
     66 * 877 + 3 * (64 + 2 * 64 * 65) + 64 * (3 * 64 + 1) + 64 * 65 + 65),
    ("text_only", TextOnlySettings(), MOSI, 128 * 769 + 128 * 129 + 129),
    ("text_only", TextOnlySettings(), MOSEI, 128 * 769 + 128 * 129 + 129),
    # As counted on the reference implementations.
    ("tfn", TfnSettings(), MOSI, 9_497_043),
    ("tfn", TfnSettings(audio_hidden=16, text_out=128, post_fusion=16), MOSEI, 5_042_539),
    ("lmf", LmfSettings(), MOSI, 505_071),
    ("lmf", LmfSettings(rank=4), MOSEI, 508_475),
    # Without those that no loss reaches: a discriminator of 4 (128 + 1), and a norm of 2 · 768 that
    # nothing reads, of a scale and a bias (in the authors' own code 2 · 300).
    ("misa", MisaSettings(), MOSI, 1_138_033 - 516 - 2 * 2 * 768),
    ("misa", MisaSettings(), MOSEI, 1_435_105 - 516 - 2 * 2 * 768),
    ("misa", MisaSettings(), (768, 74, 47), 1_479_169 - 516 - 2 * 2 * 300),
    ("self_mm", SelfMmSettings(), MOSI, 159_332),
    ("self_mm", SelfMmSettings(), MOSEI, 165_668),
    # The authors' own sizes, without their two classifiers that nothing reads.
    ("self_mm", SelfMmSettings(audio_lstm=32, video_lstm=64, post_text=64), MOSI, 206_980),
    ("self_mm", SelfMmSettings(audio_lstm=32, video_lstm=32, post_video=16), MOSEI, 172_532),
    ("mmim", MmimSettings(), MOSI, 281_673),
    ("mmim", MmimSettings(), MOSEI, 292_425),
    ("mult", MultSettings(), MOSI, 2_571_551),
    ("mult", MultSettings(d_model=30, num_heads=6, audio_kernel=1, video_kernel=3), MOSEI, 982_951),
    ("mult", MultSettings(**ORIGINAL_MULT), (300, 5, 20), 1_071_211),
    ("mult", MultSettings(**ORIGINAL_MULT), (300, 74, 35), 1_073_731),
    ("dlf", DlfSettings(), MOSI, 1_628_605),  # what receives gradients
    ("dlf", DlfSettings(text_kernel=3, audio_kernel=3, video_kernel=3), MOSEI, 1_576_905),
    ("almt", AlmtSettings(), MOSI, 2_603_649),
    ("almt", AlmtSettings(fusion_depth=4), MOSEI, 3_223_041),
]  # fmt: skip
READS = {  # of the corpus, if that is not all of it
    "ef_lstm": ("text",), "text_only": ("text",),
    **dict.fromkeys(("mult", "almt", "dlf"), ("text", "audio")),  # others only compile longer
}  # fmt: skip
SMALL = {  # settings of models whose usual size would take long
    "tfn": {"text_hidden": 8, "text_out": 4, "audio_hidden": 4, "video_hidden": 4},
    "lmf": {"text_hidden": 8, "audio_hidden": 4, "video_hidden": 4},
    "misa": {"hidden": 4, "ff_dim": 8},
    "self_mm": {"audio_lstm": 4, "video_lstm": 4, "post_fusion": 8},
    "mmim": {"audio_lstm": 4, "video_lstm": 4, "fusion": 8},
    # Of the corpus below both sequences become as long: their encoders are one program.
    "mult": {"d_model": 4, "num_heads": 2, "num_layers": 1, "audio_kernel": 7},
    "dlf": {"d_model": 4, "num_heads": 2, "num_layers": 1, "audio_kernel": 7},
    "almt": {"d_model": 8, "num_tokens": 2, "embed_heads": 1, "text_heads": 1, "hyper_heads": 2,
             "hyper_depth": 2, "fusion_depth": 1, "fusion_heads": 1, "head_dim": 4,
             "embed_ff": 8, "text_ff": 8, "fusion_ff": 8, "hyper_head_dim": 4},
}


def features_of(rng, spec, rows):
    """Random features of every modality of a specification."""
    each = zip(spec.modalities, spec.lengths, spec.widths, strict=True)
    return {m: rng.normal(size=(rows, t, d)).astype("f4") for m, t, d in each}


@pytest.mark.parametrize(("name", "own", "widths", "expected"), COUNTS)
def test_a_model_has_as_many_parameters_as_its_reference(name, own, widths, expected):
    modalities = ("text",) if name == "text_only" else ALL
    lengths = TABLES.get((name, widths), LENGTHS)[: len(modalities)]
    spec = CorpusSpec(modalities, widths[: len(modalities)], lengths, groups=(modalities,))
    shapes = parameter_shapes(ModelConfig(name=name, own=own), spec)
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == expected


def test_every_model_agrees_with_its_reference(shared_data: pathlib.Path):
    files = sorted(shared_data.parent.glob("reference/peers/*.npz"))
    if not files:
        pytest.skip("no ../shared/reference/peers beside this checkout")
    here = [f for f in files if f.stem.startswith(tuple(PEERS))]
    with jax.default_matmul_precision("float32"):
        for file in here:
            for kind, distance in check_peers.check(str(file)).items():
                assert distance <= check_peers.LIMITS[kind], (file.name, kind)


def test_low_rank_fusion_is_the_product_with_a_tensor_of_that_rank():
    """Of LMF's factors, `sum_i w_i a_i v_i t_i` is a tensor that TFN's product is multiplied by."""
    rng, spec = np.random.default_rng(0), CorpusSpec(ALL, (6, 3, 4), (5, 5, 5))
    own = LmfSettings(rank=4, text_hidden=6, audio_hidden=3, video_hidden=2)
    module = build_model(ModelConfig(name="lmf", own=own), spec)
    features = features_of(rng, spec, 7)
    masks = {m: np.ones((7, 5), bool) for m in ALL}
    variables = jax.jit(module.init)(jax.random.key(1), features, masks)
    apply = jax.jit(functools.partial(module.apply, mutable="intermediates"))
    prediction, kept = apply(variables, features, masks)
    params, hidden = variables["params"], kept["intermediates"]["vectors"]
    before = ((0, 0), (1, 0))
    vectors = {m: np.pad(hidden[f"{m}_hidden"][0], before, constant_values=1) for m in ALL}
    tensor = np.einsum(
        "r,rak,rvk,rtk->avtk", params["fusion_weights"][0],
        *(np.float64(params[f"{m}_factor"]) for m in ("audio", "video", "text")),
    )  # fmt: skip
    product = np.einsum("ba,bv,bt->bavt", *(vectors[m] for m in ("audio", "video", "text")))
    expected = np.einsum("bavt,avtk->bk", product, tensor) + params["fusion_bias"][0]
    np.testing.assert_allclose(prediction.score, expected, rtol=1e-5, atol=1e-6)


def test_a_modality_that_a_sample_lacks_leaves_the_products_of_the_others():
    rng, spec = np.random.default_rng(0), CorpusSpec(ALL, (6, 3, 4), (5, 5, 5))
    own = TfnSettings(text_hidden=6, text_out=2, audio_hidden=3, video_hidden=2, post_fusion=4)
    module = build_model(ModelConfig(name="tfn", own=own), spec)
    features = features_of(rng, spec, 7)
    masks = {m: np.ones((7, 5), bool) for m in ALL}
    masks["audio"][3] = False
    variables = jax.jit(module.init)(jax.random.key(1), features, masks)
    apply = jax.jit(functools.partial(module.apply, mutable="intermediates"))
    _, kept = apply(variables, features, masks)
    product = np.asarray(kept["intermediates"]["fused"][0]).reshape(7, 4, 3, 3)
    assert not product[3, 1:].any() and product[3, 0].any() and product[0, 1:].any()


def corpus_of(path: pathlib.Path) -> str:
    """Three modalities, one of them missing in some samples, and another that is a single step."""
    rng, arrays = np.random.default_rng(0), {}
    for split, size in (("train", 20), ("valid", 8), ("test", 8)):
        arrays |= {
            f"{split}/id": np.array([f"{split}{i}" for i in range(size)]),
            f"{split}/label": rng.uniform(-3, 3, size),
        }
        for m, steps, width in (("text", 7, 6), ("audio", 9, 3), ("video", 1, 4)):
            x = rng.normal(size=(size, steps, width))
            x[::3, steps - (steps > 1) :] = 0  # by no more, so that one program serves all lengths
            x[1] = 0 if m == "audio" else x[1]
            arrays[f"{split}/{m}"] = x
    np.savez(path, **arrays)
    return str(path)


def test_where_padding_is_read_a_score_is_that_of_the_sample_alone(tmp_path):
    """Batches are cut to what their samples need; means and last steps are of the full length."""
    rng, arrays = np.random.default_rng(0), {}
    for split, size in (("train", 8), ("valid", 4), ("test", 4)):
        arrays |= {
            f"{split}/id": np.array([f"{split}{i}" for i in range(size)]),
            f"{split}/label": rng.uniform(-3, 3, size),
        }
        for m, width in (("text", 4), ("audio", 3)):
            arrays[f"{split}/{m}"] = rng.normal(size=(size, 8, width))
            arrays[f"{split}/{m}"][::2, 2:] = 0
    corpus = str(tmp_path / "corpus.npz")
    np.savez(corpus, **arrays)
    for name in ("lmf", "mult"):
        own = {**SMALL[name], "compat": "reference", "positions": True, "audio_kernel": 1}
        names = [field.name for field in dataclasses.fields(registered()[name].settings)]
        config = tiny_config(
            data__path=corpus, train__epochs=1, train__seeds=1, optim__learning_rate=0.05,
            model={"name": name, name: {key: own[key] for key in own if key in names}},
        )  # fmt: skip
        run.train(config, str(tmp_path / name))
        bundle = load(tmp_path / name / "bundle")
        x = {m: np.float32(arrays[f"test/{m}"]) for m in ("text", "audio")}
        together = bundle.predict(x).score[:, 0]
        alone = [bundle.predict({m: v[[i]] for m, v in x.items()}).score[0, 0] for i in range(4)]
        lines = (tmp_path / name / "predictions" / "test.csv").read_text().splitlines()[1:]
        there = [float(line.split(",")[2]) for line in lines]
        np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(there, together, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["tfn", "misa", "almt"])
def test_where_padding_is_read_a_shorter_batch_scores_the_same(name):
    names, rng = ("text", "audio"), np.random.default_rng(0)
    own = registered()[name].settings(**SMALL[name] | {"compat": "reference"})
    module = build_model(ModelConfig(name=name, own=own), CorpusSpec(names, (3, 5), (8, 9)))
    lengths = {"text": 2, "audio": 1 if name == "misa" else 3}  # text's count for both
    cut = {m: rng.normal(size=(2, lengths[m], d)) for m, d in (("text", 3), ("audio", 5))}
    behind = {"text": (0, 6), "audio": (0, 9 - lengths["audio"])}
    whole = {m: np.pad(x, ((0, 0), behind[m], (0, 0))) for m, x in cut.items()}
    masks = {m: np.ones(x.shape[:2], bool) for m, x in cut.items()}
    padded = {m: np.pad(mask, ((0, 0), behind[m])) for m, mask in masks.items()}
    variables = jax.jit(module.init)(jax.random.key(1), whole, padded)
    apply = jax.jit(lambda *given: module.apply(variables, *given).score)
    np.testing.assert_allclose(apply(cut, masks), apply(whole, padded), rtol=1e-5, atol=1e-6)


def check_modes(folder, corpus):
    """What robustness, explanation and export make of a run."""
    curves = measure_robustness(str(folder))["curves"]
    assert {"drop_modality", "noise"} <= {curve["kind"] for curve in curves}
    assert all(None not in curve["area"].values() for curve in curves if curve["kind"] == "noise")
    found = explain_run(str(folder), "test", samples=2)
    assert found["samples"] and (folder / "explanation.html").stat().st_size
    bundle, x = load(folder / "bundle"), {}
    with np.load(corpus) as arrays:
        x = {m: np.float32(arrays[f"test/{m}"]) for m in bundle.preparation.spec.modalities}
    program = make_program(bundle)
    given = {f"features/{m}": v for m, v in x.items()}
    given |= {f"masks/{m}": np.full(v.shape[:2], -1, np.int8) for m, v in x.items()}
    scores = program.exported.call(program.parameters, given)["score"]
    np.testing.assert_allclose(scores, bundle.predict(x).score, atol=1e-5)


# The other models' own tests give them padding.
PADDED = ("tfn", "lmf", "misa", "self_mm")
IN_ALL_MODES = ("lf_dnn", "self_mm")  # one with statistics of batches, one with a memory


# `mag` needs words and a text encoder: test_mag.py.
@pytest.mark.parametrize("name", [name for name in PEERS if name != "mag"])
def test_every_model_trains_and_predicts(name, tmp_path):
    corpus = corpus_of(tmp_path / "corpus.npz")
    config = tiny_config(
        data__path=corpus, train__epochs=1, train__batch_size=8, train__report=False,
        model={"name": name, name: SMALL.get(name, {}), "modalities": READS.get(name, ())},
    )  # fmt: skip
    run.train(config, str(tmp_path / "run"))
    predict_corpus(str(tmp_path / "run" / "bundle"), corpus, str(tmp_path / "p.csv"), "test")
    scores = [line.split(",")[2] for line in (tmp_path / "p.csv").read_text().splitlines()]
    there = (tmp_path / "run" / "predictions" / "test.csv").read_text().splitlines()
    assert scores == [line.split(",")[2] for line in there]
    if name in IN_ALL_MODES:
        check_modes(tmp_path / "run", corpus)
    if name not in PADDED:
        return
    # What stands at padding must not matter.
    bundle, rng = load(tmp_path / "run" / "bundle"), np.random.default_rng(1)
    x = {m: rng.normal(size=(3, t, d)) for m, t, d in (("text", 7, 6), ("audio", 9, 3))}
    masks = {m: np.arange(v.shape[1]) < np.array([[4], [1], [v.shape[1]]]) for m, v in x.items()}
    other = {m: np.where(masks[m][..., None], v, 1e3) for m, v in x.items()}
    scores = []
    for given in (x, other):
        read = {m: x for m, x in given.items() if m in bundle.preparation.spec.modalities}
        scores.append(bundle.predict(read, masks={m: masks[m] for m in read}).score)
    np.testing.assert_array_equal(*scores)


# --- floors: computed again with NumPy ---


def params_and_score(name, spec, features, masks, **own):
    """A floor's random parameters, and its scores in evaluation."""
    settings = registered()[name].settings(**own)
    module = build_model(ModelConfig(name=name, own=settings), spec)
    variables = jax.jit(module.init)(jax.random.key(3), features, masks)
    score = jax.jit(module.apply)(variables, features, masks).score
    return jax.tree.map(np.float64, variables["params"]), np.asarray(score)


def test_floors_are_what_they_say():
    rng, spec = np.random.default_rng(2), CorpusSpec(("text", "audio"), (6, 3), (5, 5))
    features, ends = features_of(rng, spec, 4), {"text": (5, 2, 4, 0), "audio": (5, 2, 0, 0)}
    masks = {m: np.arange(5) < np.array(of)[:, None] for m, of in ends.items()}

    def relu(x):
        return np.maximum(x, 0)

    def mean(m):
        kept = features[m] * masks[m][..., None]
        return kept.sum(1) / np.maximum(masks[m].sum(1, keepdims=True), 1)

    p, score = params_and_score("lf_dnn", spec, features, masks, hidden=4, post_fusion=3)
    vectors = []
    for m in spec.modalities:
        of, x = p[f"{m}_subnet"], mean(m) / np.sqrt(1 + 1e-5)  # statistics of nothing: 0 and 1
        for number in range(3):
            x = relu(dense(of[f"linear_{number}"], x))
        vectors.append(x * masks[m].any(1, keepdims=True))
    x = np.concatenate(vectors, 1)
    x = relu(dense(p["post_1"], relu(dense(p["post_0"], x))))
    np.testing.assert_allclose(score, dense(p["regression"], x), rtol=1e-5, atol=1e-6)

    alone = CorpusSpec(("text",), (6,), (5,))
    p, score = params_and_score("text_only", alone, features, masks, hidden=4)
    x = relu(dense(p["hidden_1"], relu(dense(p["hidden_0"], mean("text")))))
    np.testing.assert_allclose(score, dense(p["regression"], x), rtol=1e-5, atol=1e-6)

    aligned = dataclasses.replace(spec, groups=(spec.modalities,))
    p, score = params_and_score("ef_lstm", aligned, features, masks, hidden=3)
    expected = []
    for row in range(4):
        state, cell = np.zeros((2, 3))
        for step in range(5):
            if not any(masks[m][row, step] for m in spec.modalities):
                continue
            x = [features[m][row, step] * masks[m][row, step] for m in spec.modalities]
            x = np.concatenate(x)
            gates = x @ p["lstm"]["input_kernel"] + state @ p["lstm"]["state_kernel"]
            gates = gates + p["lstm"]["input_bias"] + p["lstm"]["state_bias"]
            i, f, g, o = np.split(gates, 4)
            i, f, o = (1 / (1 + np.exp(-x)) for x in (i, f, o))
            cell = f * cell + i * np.tanh(g)
            state = o * np.tanh(cell)
        expected.append(dense(p["regression"], relu(dense(p["hidden"], state))))
    np.testing.assert_allclose(score, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", PEERS)
def test_settings_are_checked_and_part_of_the_run(name):
    settings = registered()[name].settings
    for field in dataclasses.fields(settings):
        key, usual = f"model.{name}.{field.name}", getattr(settings(), field.name)
        impossible = {int: -1, str: "anything"}.get(type(usual))
        if field.name.endswith("dropout"):
            impossible = 1.0
        if impossible is not None:
            with pytest.raises(UserError, match=f"{key} = {impossible!r}: "):
                settings(**{field.name: impossible})
        assert key in identity(from_config_dict({"model": {"name": name}}))


@pytest.mark.parametrize(
    ("name", "lengths", "message"),
    [
        # As long, but not step by step.
        ("ef_lstm", (5, 5), "joins modalities step by step, and these do not share theirs"),
        ("ef_lstm", (5, 4), "joins modalities step by step, and these do not share theirs"),
        ("text_only", (5, 5), "reads text alone, .*: set model.modalities"),
    ],
)
def test_a_model_says_what_it_needs(name, lengths, message):
    spec = CorpusSpec(("text", "audio"), (6, 3), lengths)
    with pytest.raises(UserError, match=message):
        build_model(ModelConfig(name=name), spec)


@pytest.mark.parametrize(
    ("name", "still"),
    [
        ("lmf", {"fusion_weights", "fusion_bias"}),
        ("mmim", {"audio_projection/kernel", "audio_projection/bias"}),
    ],
)
def test_what_other_code_leaves_untrained_stays_bit_for_bit_under_decay(name, still):
    spec, rng = CorpusSpec(("text", "audio"), (4, 3), (2, 3)), np.random.default_rng(0)
    features = features_of(rng, spec, 16)
    masks = {m: np.ones(x.shape[:2], bool) for m, x in features.items()}
    labels = rng.normal(size=(16, 1)).astype("f4")
    batch = Batch(features, masks, labels, np.ones(16, "f4"), np.arange(16))
    # The last group does not make them move.
    groups = ("*:weight_decay=0.1", "*:frozen=false")
    for compat in ("reference", "clean"):
        own = registered()[name].settings(**SMALL[name], compat=compat)
        optim = OptimConfig(learning_rate=0.01, schedule="constant", groups=groups)
        config = Config(model=ModelConfig(name=name, own=own), optim=optim)
        stages = len(declared(config.model).stages) or 1
        recipe = toys.recipe_of(config, spec, passes=(1,) * stages)
        states, _ = toys.steps(recipe, [batch] * 3, spec=spec)
        before, after = (flatten_dict(states[i].params, sep="/") for i in (0, -1))
        same = {path for path, x in after.items() if np.array_equal(x, before[path])}
        assert same == (still if compat == "reference" else set())


def test_single_steps_are_joined_without_being_aligned():
    assert build_model(ModelConfig(name="ef_lstm"), CorpusSpec(ALL, (6, 3, 4), (1, 1, 1)))


def test_an_lstm_over_one_modality_reads_what_an_encoder_writes():
    encoder = tiny_text.architecture()
    spec = CorpusSpec(("text",), (0,), (8,), vocabularies=(encoder.vocabulary,),
                      encoders=(encoder,), text_steps=5)  # fmt: skip
    assert build_model(ModelConfig(name="ef_lstm", text_encoder="x", text_pool="words"), spec)
    both = CorpusSpec(("text", "audio"), (0, 3), (8, 5), vocabularies=(encoder.vocabulary, 0),
                      encoders=(encoder, None), text_steps=5,
                      groups=(("text", "audio"),))  # fmt: skip
    with pytest.raises(UserError, match="these do not share theirs"):
        build_model(ModelConfig(name="ef_lstm", text_encoder="x", text_pool="words"), both)


def test_labels_that_no_score_can_reach_are_refused_before_training(tmp_path):
    rng, arrays = np.random.default_rng(0), {}
    for split, low in (("train", 1), ("valid", 0), ("test", -9)):  # of which train alone counts
        arrays[f"{split}/id"] = np.array([f"{split}{i}" for i in range(6)])
        arrays[f"{split}/label"] = np.linspace(low, 5, 6)
        arrays[f"{split}/text"] = rng.normal(size=(6, 1, 4))
    np.savez(tmp_path / "corpus.npz", **arrays)
    for name, settings, message in (
        ("tfn", {}, "lowest = -3 and highest = 3: .* labels go from 1 to 5: set both .* both to 0"),
        ("tfn", {"highest": 5.0}, ""),
        ("tfn", {"lowest": 0.0, "highest": 0.0}, ""),
        ("self_mm", {}, "label_range = 3: .* labels reach 5: set it to 5 or more"),
        ("self_mm", {"label_range": 5.0}, ""),
    ):
        model = {"name": name, name: settings}
        config = tiny_config(data__path=str(tmp_path / "corpus.npz"), model=model)
        sources, folder = run.open_sources(config), RunFolder(str(tmp_path / "run"))
        if not message:
            run.build(config, sources, folder)
            continue
        with pytest.raises(UserError, match=f"model.{name}.{message}"):
            run.build(config, sources, folder)
