"""Every experiment file: its parameters are counted, its step is lowered, and some train."""

import functools
import itertools
import math
import pathlib

import jax
import jax.export
import numpy as np
import pytest
from launching import load_file
from tiny_text import write_folder

from msajax.config import SYNTHETIC, from_config_dict, registry
from msajax.experiment import run
from msajax.experiment.run import build, open_sources
from msajax.layers.platform import made_for
from msajax.models.build import parameter_shapes
from msajax.models.contract import blank_sample
from msajax.preparation.batches import Batch
from msajax.runs.folder import RunFolder
from msajax.spec import CorpusSpec
from msajax.training.step import begin, train_step

CONFIGS = sorted((pathlib.Path(__file__).resolve().parent.parent / "configs").glob("*.py"))
# Parameters in all at the widths and lengths that the file's smoke corpus is cut from.
WHOLE = {
    "sequence_small": 732_932,
    "sequence_base": 1_130_372,
    "mosi_trimodal": 1_130_372,
    "sequence_large": 7_009_796,
    "pooled_ablation": 865_412,
    "early_pooling": 768_004,
    "early_pooling_clean": 809_428,
}
# Parameters of the whole encoder, where features are as wide as the model, and that width.
ENCODERS = {
    "connectome": (793_344, 128),
    "connectome_rmsnorm": (792_192, 128),
    "classic_encoder": (15_761_920, 512),
}


@pytest.fixture(autouse=True)
def models(monkeypatch):
    """What an experiment file registers is known in its own tests alone."""
    monkeypatch.setattr(registry, "_MODELS", dict(registry._MODELS))


def parameters(name: str, **changes):
    """Shapes of the parameters by path, at the file's own widths."""
    values = load_file(CONFIGS[0].with_name(f"{name}.py")).get_config("smoke")
    values.model.update(changes)
    config = from_config_dict(values)
    synthetic = config.data.synthetic
    spec = CorpusSpec(synthetic.modalities, synthetic.widths, (20,) * len(synthetic.modalities))
    return parameter_shapes(config.model, spec)


def count(shapes: dict[str, tuple[int, ...]], module: str = "") -> int:
    return sum(math.prod(shape) for path, shape in shapes.items() if path.startswith(module))


def on_corpus(name: str, widths: dict[str, int], steps: int):
    """Shapes of the parameters of a run of an experiment file, on a corpus of its own."""
    config = load_file(CONFIGS[0].with_name(f"{name}.py")).get_config()
    config.data.path = SYNTHETIC
    config.data.synthetic.update(
        train=2, valid=2, test=2, modalities=tuple(widths), widths=tuple(widths.values())
    )
    config.data.synthetic.update(lengths=(steps,) * len(widths), absent_share=0.0)
    config = from_config_dict(config)
    return parameter_shapes(config.model, open_sources(config)[2].spec)


@pytest.mark.parametrize(("name", "golden"), ENCODERS.items())
def test_the_encoder_of_a_run_is_the_documents_where_features_are_as_wide_as_the_model(
    name, golden
):
    expected, width = golden
    found = on_corpus(name, {"tokens": width}, 9)
    assert count(found, "tokens_encoder/") == expected
    assert count(found) == expected + width + 1  # the head alone comes on top
    if name == "connectome":
        projected = on_corpus(name, {"tokens": 30}, 9)
        assert count(projected, "tokens_encoder/") == expected + 31 * width


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        # The document's text has RMSNorm, its code ends in LayerNorm.
        ("connectome_rmsnorm", {"final_norm_type": "layernorm"}, 792_320),
        # The formulas write no biases of attention: four of 512 in each of five layers.
        ("classic_encoder", {"qkv_bias": False, "out_bias": False}, 15_751_680),
    ],
)
def test_the_other_reading_of_a_document_is_a_setting_away(name, settings, expected):
    found = parameters(name, **settings)
    (encoder,) = {path.split("/")[0] for path in found if "_encoder/" in path}
    assert count(found, f"{encoder}/") == expected


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_the_models_of_twenty_steps_are_the_same_on_longer_corpora(name):
    synthetic = load_file(CONFIGS[0].with_name(f"{name}.py")).get_config("smoke").data.synthetic
    widths = dict(zip(synthetic.modalities, synthetic.widths, strict=True))
    assert count(on_corpus(name, widths, 50)) == WHOLE[name]


def test_the_classic_encoder_has_the_seven_numbers_of_its_document():
    config = load_file(CONFIGS[0].with_name("classic_encoder.py")).get_config()
    assert (config.model.model_dim, config.model.num_heads, config.model.ff_dim) == (512, 8, 2048)
    assert (config.model.n_layers_mod, config.model.dropout_rate) == (5, 0.1)
    assert (config.model.max_len, config.train.batch_size) == (200, 30)


@pytest.mark.parametrize(
    ("name", "gates", "both"),
    [("rnn", 1, True), ("gru", 3, False), ("gru", 3, True), ("lstm", 4, False)],
)
def test_golden_parameter_counts_of_recurrent_encoders(name, gates, both):
    # Per gate an input and a state kernel and their biases; both ways, half of the units each.
    units = 64 if both else 128
    biases = {"rnn": units, "gru": 4 * units, "lstm": 4 * units}[name]
    layer = (1 + both) * (gates * (128 * units + units * units) + biases)
    projections = 128 * (300 + 74 + 47 + 3)
    gate = 128 * 64 + 64 + 64 * 3 + 3
    found = parameters(name, **({"both_directions": True} if both else {}))
    assert count(found) == projections + 3 * 2 * layer + gate + 129


@pytest.mark.parametrize(("out_bias", "expected"), [(True, 797_568), (False, 797_056)])
def test_golden_parameter_count_of_the_lectures_decoder(out_bias, expected):
    config = load_file(CONFIGS[0].with_name("decoder.py")).get_config()
    assert config.model.out_bias  # as its formula has it
    config.model.out_bias = out_bias
    spec = CorpusSpec(("text",), (0,), (20,), "next_token", ("nats", "tokens"), (47,))
    assert count(parameter_shapes(from_config_dict(config).model, spec)) == expected


def test_golden_parameter_count_of_fusion_first():
    block = 4 * 128**2 + 2 * 128 * 1024 + 128 + 4 * 128  # W_Q, W_K, W_V, W_O; W_1, W_2, b_2; norms
    projections = 128 * (300 + 74 + 47 + 3) + 3 * 20 * 128
    assert count(parameters("fuse_then_encode")) == projections + (4 + 6) * block + 3 * 128 + 1


def shrunk(path: pathlib.Path, folder: pathlib.Path):
    """A smoke run as deep and wide as compiling leaves time for; real sizes are counted above."""
    config = load_file(path).get_config("smoke")
    assert (config.train.seeds, config.train.epochs) == (2, 2)
    config.data.synthetic.lengths = (1,) * len(config.data.synthetic.lengths)  # one length quarter
    small = {"model_dim": 16, "ff_dim": 16, "head_dim": min(config.model.head_dim, 16)}
    small |= {"dropout_rate": 0.0, "input_dropout": 0.0}
    for depth in ("n_layers_mod", "n_layers_fuse", "n_layers_post_fuse"):
        small[depth] = min(config.model[depth], 1)
    reads = registry.registered()[config.model.name].reads
    config.model.update({k: v for k, v in small.items() if reads is None or k in reads})
    config.train.seeds = 1
    config.train.select_by = "auto"  # embedded labels are scores
    if config.model.text_encoder:
        config.model.text_encoder = write_folder(folder / "encoder")
    return from_config_dict(config)


def lower(run, platform: str, name: str) -> str:
    """Makes the step of a run for a GPU or a TPU that need not be there: the program as text."""
    recipe, spec, rows = run.recipe, run.spec, 2 * run.recipe.accumulation_steps
    memory = run.model.memory.begin(run.train.labels, spec) if run.model.memory else {}
    seed = jax.ShapeDtypeStruct((), np.uint32)
    state = jax.eval_shape(functools.partial(begin, recipe=recipe, spec=spec), seed, memory)
    features, masks = jax.tree.map(lambda x: np.repeat(x, rows, axis=0), blank_sample(spec))
    row, labels = np.arange(rows, dtype=np.int32), run.train.labels[:1].astype(np.float32)
    batch = Batch(features, masks, np.repeat(labels, rows, axis=0), np.ones(rows, np.float32), row)
    step = jax.jit(functools.partial(train_step, recipe=recipe, rates=run.rates))
    with made_for(platform):
        return jax.export.export(step, platforms=[name])(state, batch).mlir_module()


def test_the_step_of_every_file_is_lowered_for_accelerators(tmp_path):
    lowered, platforms = {}, itertools.cycle((("gpu", "cuda"), ("tpu", "tpu")))
    for path in CONFIGS:
        config = shrunk(path, tmp_path)
        run = build(config, open_sources(config), RunFolder(str(tmp_path / path.stem)))
        if run.recipe not in lowered:
            lowered[run.recipe] = lower(run, *next(platforms))
    assert len(lowered) > 20 and not any("callback" in text for text in lowered.values())


# Programs that no other test trains: a recurrence, and guidance.
TRAINED = ("gru", "connectome_guided")


@pytest.mark.parametrize("name", TRAINED)
def test_smoke_trains_for_two_epochs_to_finite_results(name, tmp_path):
    config = shrunk(CONFIGS[0].with_name(f"{name}.py"), tmp_path)
    results = run.train(config, str(tmp_path / "run"))
    assert results["seeds"] == [0]
    assert results["timing"]["epochs"] == 2
    decisive = "mae" if "mae" in results["test"] else "cross_entropy"
    assert np.isfinite([results[s][decisive]["mean"] for s in ("valid", "test")]).all()
    assert set(results["corpus"]["modalities"]) <= set(results["corpus"]["widths"])
