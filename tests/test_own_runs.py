"""A run of a model that uses all that a model can declare, interrupted and whole."""

import dataclasses

import chex
import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from tiny import lines_of, tiny_config_dict

import msajax
from msajax.cli.finished import measure_robustness
from msajax.config import from_config_dict, registry
from msajax.layers.basic import Dropout, row_weight
from msajax.layers.heads import mean_pool
from msajax.robustness import measure


class Everything(nn.Module):
    """Batch normalisation, dropout, and an output that a term of its own reads."""

    config: msajax.ModelConfig
    spec: msajax.CorpusSpec

    @nn.compact
    def __call__(self, features, masks, *, train=False):
        names = self.spec.modalities
        pooled = jnp.concatenate([mean_pool(features[m], masks[m]) for m in names], axis=1)
        counts = row_weight(self, len(pooled)) > 0
        norm = nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")
        hidden = Dropout(0.2)(norm(pooled, mask=counts[:, None]), train=train)
        guess = nn.Dense(1, name="guess")(hidden)
        weights = jnp.full((len(pooled), len(names)), 1 / len(names))
        return msajax.Prediction(nn.Dense(1, name="out")(hidden), weights, {"guess": guess})


def terms(config, name, loss):
    def near_what_was_last_guessed(prediction, batch):
        error = jnp.square(prediction.aux["guess"] - batch.memory["guess"])[:, 0]
        return (error * batch.row_weight).sum(), batch.row_weight.sum()

    return {name: loss, "steady": msajax.Term(near_what_was_last_guessed, 0.3)}


MODEL = msajax.Model(
    Everything,
    output_bias="out/bias",
    mutable=("batch_stats",),
    terms=terms,
    memory=msajax.Memory(
        begin=lambda labels, spec: {"guess": np.float32(labels)},
        update=lambda memory, prediction, batch, epoch: {"guess": prediction.aux["guess"]},
    ),
    stages=(
        msajax.Stage(trains=("guess/*",), terms=("steady",), share=0.5),
        msajax.Stage(trains=("*",)),
    ),
)


@pytest.fixture(autouse=True)
def registered():
    msajax.register_model("everything", MODEL)
    yield
    del registry._MODELS["everything"]


def config_of(**settings):
    settings = {"data__synthetic__lengths": (1, 1), "train__epochs": 2, **settings}
    return from_config_dict(tiny_config_dict(model__name="everything", **settings))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("own")


@pytest.fixture
def whole(folder):
    """The run without an interruption; trained by the first test that asks for it."""
    return msajax.train(config_of(), folder / "whole")


def test_it_goes_on_to_the_same_bits(folder, whole):
    assert msajax.train(config_of(), folder / "parts", stop_after_epochs=1) is None
    parts = msajax.train(config_of(), folder / "parts")
    chex.assert_trees_all_equal(parts.bundle.variables, whole.bundle.variables)
    assert lines_of(folder / "parts") == lines_of(folder / "whole")
    assert parts["test"] == whole["test"]


def test_a_checkpoint_of_another_model_is_refused_with_both_shapes(folder, whole):
    assert msajax.train(config_of(train__epochs=3), folder / "other", stop_after_epochs=1) is None

    class Wider(Everything):
        @nn.compact
        def __call__(self, features, masks, *, train=False):
            pooled = {m: jnp.concatenate([x, x], axis=2) for m, x in features.items()}
            return super().__call__(pooled, masks, train=train)

    msajax.register_model("everything", dataclasses.replace(MODEL, module=Wider))
    with pytest.raises(msajax.UserError, match=r"of another model: .* \(2, 11.*\) there, \(2, 22"):
        msajax.train(config_of(train__epochs=3), folder / "other")
    msajax.register_model("everything", MODEL)
    assert msajax.train(config_of(train__epochs=3), folder / "other")["epochs"] == 3


def test_an_epoch_has_the_steps_and_the_terms_of_its_stages(whole):
    for line in whole.history():
        assert line["step"] == line["epoch"] * (3 + 6)  # 44 rows by 8
        assert line["train_loss"] == pytest.approx(line["train_l1"] + 0.3 * line["train_steady"])


def test_the_bundle_has_its_statistics_and_no_memory(folder, whole):
    stored = safetensors.numpy.load_file(folder / "whole/bundle/parameters.safetensors")
    names = {name for name in stored if not name.startswith("statistics/")}
    assert {name.split("/")[0] for name in names} == {"params", "batch_stats"}
    assert stored["batch_stats/norm/mean"].shape == (2, 11)
    assert np.abs(stored["batch_stats/norm/mean"]).max() > 0
    corpus = msajax.open_corpus("synthetic", config_of().data)
    scores = whole.bundle.predict(corpus.split("test").features)
    np.testing.assert_allclose(
        scores.score[:, 0], whole.predictions("test")["score"], atol=1e-6
    )


def test_its_robustness_is_measured(folder, whole, monkeypatch):
    monkeypatch.setattr(measure, "RATES", (0.0, 0.5))
    report = measure_robustness(str(folder / "whole"))
    rest, worse = (point["metrics"] for point in report["curves"][0]["points"])
    assert rest["mae"]["mean"] == whole["test"]["mae"]["mean"] != worse["mae"]["mean"]


def test_what_needs_whole_batches_takes_no_parts(folder):
    with pytest.raises(msajax.UserError, match="has statistics over whole batches .batch_stats."):
        msajax.train(config_of(train__accumulation_steps=2), folder / "refused")
    assert not (folder / "refused").exists()


def test_select_by_follows_any_metric_in_its_direction(folder):
    result = msajax.train(config_of(train__select_by="corr", train__epochs=4), folder / "corr")
    assert result["selection"] == "corr"
    for seed, best in zip(result["seeds"], result["best_epoch"], strict=True):
        found = {x["epoch"]: x["valid_corr"] for x in result.history() if x["seed"] == seed}
        assert best == max(found, key=lambda epoch: (found[epoch], -epoch))
    with pytest.raises(msajax.UserError, match="train.select_by = 'acc': must be auto or one of"):
        msajax.train(config_of(train__select_by="acc"), folder / "none")
    assert not (folder / "none").exists()


def test_a_metric_that_is_never_defined_on_validation_is_said_to_have_chosen_nothing(
    tmp_path, caplog
):
    rng, labels = np.random.default_rng(0), {"train": [0.5, -1, 2, 1], "valid": [1.0] * 4}
    arrays = {}
    for split, label in {**labels, "test": [1.0, -1, 2, 0]}.items():
        arrays |= {f"{split}/text": rng.normal(size=(4, 1, 6)).astype(np.float32)}
        arrays |= {f"{split}/label": np.float32(label)}
        arrays |= {f"{split}/id": np.array([f"{split}{i}" for i in range(4)])}
    np.savez(tmp_path / "constant.npz", **arrays)
    with caplog.at_level("WARNING"):
        result = msajax.train(
            config_of(
                data__path=str(tmp_path / "constant.npz"),
                model__modalities=("text",),
                train__select_by="corr",
                train__epochs=2,
            ),
            tmp_path / "run",
        )
    assert result["best_epoch"] == [1] * len(result["seeds"])
    assert "corr was undefined on validation after every epoch" in caplog.text
