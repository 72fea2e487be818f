"""Every experiment file: its parameters are counted, and `:smoke` trains it."""

import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from msajax import experiment
from msajax.config import from_config_dict
from msajax.models import build_model
from msajax.spec import CorpusSpec

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
# Parameters of the one modality's layers alone: without its projection and the head.
LAYERS = {
    "connectome": 793_344,
    "connectome_rmsnorm": 792_192,
    "classic_encoder": 15_761_920,
}


def load(path: pathlib.Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parameters(name: str):
    """Shapes of the parameters at the file's own widths."""
    path = next(p for p in CONFIGS if p.stem == name)
    config = from_config_dict(load(path).get_config("smoke"))
    synthetic = config.data.synthetic
    spec = CorpusSpec(synthetic.modalities, synthetic.widths, (20,) * len(synthetic.modalities))
    features = {m: jnp.zeros((1, 2, spec.width(m))) for m in spec.modalities}
    masks = {m: jnp.ones((1, 2), bool) for m in spec.modalities}
    model = build_model(config.model, spec)
    return jax.eval_shape(model.init, jax.random.key(0), features, masks)["params"]


def count(tree) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(("name", "expected"), WHOLE.items())
def test_golden_parameter_counts_of_whole_models(name, expected):
    assert count(parameters(name)) == expected


@pytest.mark.parametrize(("name", "expected"), LAYERS.items())
def test_golden_parameter_counts_of_encoders(name, expected):
    (encoder,) = [tree for key, tree in parameters(name).items() if key.endswith("_encoder")]
    layers = {k: v for k, v in encoder.items() if k not in ("projection", "positions")}
    assert count(layers) == expected


@pytest.mark.parametrize(("name", "gates"), [("rnn", 1), ("gru", 3), ("lstm", 4)])
def test_golden_parameter_counts_of_recurrent_encoders(name, gates):
    # Two directions of 64 units: per gate an input and a state kernel and their biases.
    biases = {"rnn": 64, "gru": 4 * 64, "lstm": 4 * 64}[name]
    layer = 2 * (gates * (128 * 64 + 64 * 64) + biases)
    projections = 128 * (300 + 74 + 47 + 3)
    gate = 128 * 64 + 64 + 64 * 3 + 3
    assert count(parameters(name)) == projections + 3 * 2 * layer + gate + 129


def test_golden_parameter_count_of_the_lectures_decoder():
    config = from_config_dict(load(CONFIGS[0].with_name("decoder.py")).get_config())
    spec = CorpusSpec(("text",), (0,), (20,), "next_token", ("nats", "tokens"), (47,))
    model = build_model(config.model, spec)
    ids, mask = {"text": jnp.zeros((1, 2), int)}, {"text": jnp.ones((1, 2), bool)}
    assert count(jax.eval_shape(model.init, jax.random.key(0), ids, mask)["params"]) == 797_056


def test_golden_parameter_count_of_fusion_first():
    block = 4 * 128**2 + 2 * 128 * 1024 + 9 * 128 + 1024
    projections = 128 * (300 + 74 + 47 + 3) + 3 * 20 * 128
    assert count(parameters("fuse_then_encode")) == projections + (4 + 6) * block + 3 * 128 + 1


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_smoke_trains_for_two_epochs_to_finite_results(path, tmp_path):
    config = load(path).get_config("smoke")
    assert config.train.seeds == 2
    # As deep and wide as compiling leaves time for; the real sizes are counted above.
    config.data.synthetic.lengths = (1,) * len(config.data.synthetic.lengths)  # one bucket
    config.model.model_dim = config.model.ff_dim = 16
    config.model.head_dim = min(config.model.head_dim, 16)
    for depth in ("n_layers_mod", "n_layers_fuse", "n_layers_post_fuse"):
        config.model[depth] = min(config.model[depth], 1)
    config.train.seeds = 1
    results = experiment.train(from_config_dict(config), str(tmp_path / "run"))
    assert results["seeds"] == [0]
    assert results["timing"]["epochs"] == 2
    decisive = "mae" if "mae" in results["test"] else "cross_entropy"
    assert np.isfinite([results[s][decisive]["mean"] for s in ("valid", "test")]).all()
    assert set(results["corpus"]["modalities"]) <= set(results["corpus"]["widths"])
