"""A user's own model, outside the package: the recipe as it stands, and what it can go wrong by."""

import dataclasses
import importlib
import json
import pathlib
import re
import shlex
import subprocess

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
from pages import PAGES, blocks, commands, words_of
from tiny import tiny_config_dict

import msajax
from msajax.config import (
    Config,
    ModelConfig,
    from_config_dict,
    identity,
    known_keys,
    load_models_from,
    registry,
)
from msajax.errors import UserError
from msajax.experiment import artefacts
from msajax.files import write_text
from msajax.preparation.batches import Batch
from msajax.runs import manifest

SOURCE, LOSS = (x for x in blocks("docs/recipes.md", "python") if "register_model" in x)


@pytest.fixture
def entries():
    """The models that are registered, as they were after the test."""
    before = dict(registry._MODELS)
    yield registry._MODELS
    registry._MODELS.clear()
    registry._MODELS.update(before)


def test_the_recipe_trains_goes_on_and_is_measured(forks, tmp_path):
    def in_shell(line: str, folder: pathlib.Path, *more: str) -> subprocess.CompletedProcess:
        assert line.startswith("python -m msajax.main ")
        return forks.run(*shlex.split(line)[3:], *more, folder=folder)

    assert len([line for line in SOURCE.splitlines() if line.strip()]) <= 25
    (tmp_path / "my_model.py").write_text(SOURCE)
    rng, arrays = np.random.default_rng(0), {}
    for split, n in (("train", 20), ("valid", 8), ("test", 8)):
        arrays[f"{split}/id"] = np.array([f"{split}_{i}" for i in range(n)])
        arrays[f"{split}/text"] = rng.normal(size=(n, 2, 4)).astype(np.float32)
        arrays[f"{split}/audio"] = rng.normal(size=(n, 3, 2)).astype(np.float32)
        arrays[f"{split}/label"] = rng.uniform(-3, 3, n)
    np.savez(tmp_path / "corpus.npz", **arrays)
    train, inspect, evaluate, predict = commands("docs/recipes.md", "A model of your own")
    few = [f"--config.train.{x}" for x in ("epochs=2", "seeds=2", "report=False")]
    assert in_shell(train, tmp_path, *few, "--stop_after_epochs=1").returncode == 75
    done = in_shell(train, tmp_path, *few)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "runs/mine/results.json").read_text())
    assert results["model"]["name"] == "late_fusion" and results["epochs"] == 2
    assert results["model"]["parameters"] == 4 * 128 + 128 + 2 * 128 + 128 + 2 * (128 + 1)
    done = in_shell(inspect, tmp_path)
    assert done.returncode == 0 and "Dense_0" in done.stdout, done.stderr
    done = in_shell(evaluate, tmp_path)
    assert "Largest difference from results.json: 0" in done.stdout, done.stderr
    done = in_shell(predict, tmp_path)
    assert "36 predictions: scores.csv" in done.stdout, done.stderr
    assert "is not as it was" not in done.stderr
    (tmp_path / "my_model.py").write_text(SOURCE.replace("nn.relu", "nn.tanh"))
    assert "my_model.py is not as it was when The bundle" in in_shell(predict, tmp_path).stderr
    without = in_shell(predict.replace("--models my_model.py ", ""), tmp_path)
    assert without.returncode == 2
    assert "it was LateFusion in my_model.py. Add --models=FILE.py" in without.stderr


def rows_of_tables(what: str) -> dict[str, tuple[str, str]]:
    """Shape and type of every field that a table of the recipe has."""
    (table,) = re.findall(rf"(?m)^\| `{what}\.…` .*\n\|.*\n((?:\|.*\n)+)", PAGES["docs/recipes.md"])
    cells = (line.strip("| ").split(" | ") for line in table.splitlines())
    return {name.strip("`"): (shape.strip("`"), kind) for name, shape, kind, *_ in cells}


def test_the_recipe_of_a_loss_trains_on_what_its_tables_say(entries, tmp_path, monkeypatch):
    (tmp_path / "my_loss.py").write_text(LOSS)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = importlib.import_module("my_loss").get_config()
    rng, arrays, seen = np.random.default_rng(0), {}, {}
    for split, n in (("train", 7), ("valid", 4), ("test", 4)):
        arrays[f"{split}/id"] = np.array([f"{split}_{i}" for i in range(n)])
        for m, width in (("text", 4), ("audio", 2), ("video", 3)):
            arrays[f"{split}/{m}"] = rng.normal(size=(n, 1, width)).astype(np.float32)
        arrays[f"{split}/label"] = rng.uniform(-3, 3, n)
    np.savez(tmp_path / "corpus.npz", **arrays)
    entry = entries["two_modalities"]

    def spying(config, name, loss):
        def alone(prediction, batch):
            seen["prediction"], seen["batch"] = prediction, batch  # the last trace is the program's
            return of_recipe["alone"].measure(prediction, batch)

        of_recipe = entry.declared.terms(config, name, loss)
        return of_recipe | {"alone": of_recipe["alone"]._replace(measure=alone)}

    model = dataclasses.replace(entry.declared, terms=spying)
    msajax.register_model("two_modalities", model, entry.settings)
    (command,) = commands("docs/recipes.md", "A loss of your own")
    words = dict(word.split("=") for word in words_of(command) if word.startswith("--config."))
    config.data.path = str(tmp_path / words.pop("--config.data.path"))
    config.model.two_modalities.matched = float(words.pop("--config.model.two_modalities.matched"))
    assert not words
    config.model.model_dim, config.train.epochs, config.train.seeds = 4, 1, 1
    config.train.batch_size, config.train.report = 4, False
    result = msajax.train(from_config_dict(config), tmp_path / "run")
    (line,) = result.history()
    of_terms = line["train_l1"] + 0.3 * line["train_alone"] + 0.2 * line["train_matched"]
    assert line["train_loss"] == pytest.approx(of_terms, rel=1e-5)
    assert 0 < line["train_matched"] and set(result.bundle.variables) == {"params", "batch_stats"}
    sizes = {"B": 4, "K": 1, "L": 1, "M": 2, "T_m": 1}
    for what, kind in (("batch", Batch), ("prediction", msajax.Prediction)):
        table = rows_of_tables(what)
        assert list(table) == [field.name for field in dataclasses.fields(kind)]
        for name, (shape, dtype) in table.items():
            found = getattr(seen[what], name)
            found = found._asdict() if name == "progress" else found
            assert isinstance(found, dict) == shape.startswith("{"), name
            for x in found.values() if isinstance(found, dict) else [found]:
                axes = re.findall(r"[^ ,]+", re.search(r"\[(.*?)\]", shape)[1])
                known = [sizes.get(axis) for axis in axes if axis != "…"]
                assert "…" in axes or len(x.shape) == len(axes), name
                assert all(k in (None, n) for k, n in zip(known, x.shape, strict=False)), name
                assert x.dtype.name in dtype or dtype == "any", name


def test_the_terms_of_the_recipe_are_what_it_says_and_rows_that_fill_count_nothing(entries):
    recipe = {}
    exec(LOSS, recipe)
    rng = np.random.default_rng(0)
    labels, guesses = rng.normal(size=(3, 1)), rng.normal(size=(3, 2, 1))
    hidden, weight = rng.normal(size=(3, 2, 5)), np.array([1.0, 1.0, 0.0])
    prediction = msajax.Prediction(labels, None, {"guesses": guesses, "hidden": hidden})
    batch = Batch({}, {}, jnp.asarray(labels), jnp.asarray(weight), None)
    total, rows = recipe["alone"](prediction, batch)
    error = np.abs(guesses - labels[:, None])[:2].mean((1, 2))
    np.testing.assert_allclose(total, error.sum(), 1e-5)
    assert rows == 2
    total, rows = recipe["matched"](prediction, batch)
    alike = np.exp(hidden[:2, 0] @ hidden[:2, 1].T)
    np.testing.assert_allclose(total, -np.log(np.diag(alike) / alike.sum(1)).sum(), 1e-5)
    assert rows == 2


class Constant(nn.Module):
    config: msajax.ModelConfig
    spec: msajax.CorpusSpec

    @nn.compact
    def __call__(self, features, masks, *, train=False):
        rows = len(masks[self.spec.modalities[0]])
        width = self.config.own.width if self.config.own else 1
        kernel = self.param("kernel", nn.initializers.ones, (width,))
        bias = self.param("bias", nn.initializers.zeros, (len(self.spec.label_names),))
        score = jnp.ones((rows, 1)) * kernel.mean() + bias
        return msajax.Prediction(score, jnp.ones((rows, len(self.spec.modalities))))


@dataclasses.dataclass(frozen=True, repr=False)
class Own(msajax.Settings):
    width: int = 3

    def __post_init__(self):
        if self.width < 1:
            raise UserError(f"model.constant.width = {self.width}: must be 1 or more.")


def trained(tmp_path, **settings):
    config = tiny_config_dict(model__name="constant", train__epochs=1, **settings)
    return msajax.train(from_config_dict(config), tmp_path / "run")


def test_settings_of_its_own_are_keys_and_part_of_a_run(entries, tmp_path):
    msajax.register_model("constant", Constant, Own)
    assert "model.constant.width" in known_keys()
    config = tiny_config_dict(model__name="constant", model__constant__width=5)
    config = from_config_dict(config)
    assert config.model.own == Own(5)
    assert identity(config)["model.constant.width"] == 5
    assert from_config_dict(config.to_dict()) == config
    other = from_config_dict(tiny_config_dict())
    assert other.model.own is None and "model.constant.width" not in identity(other)
    with pytest.raises(UserError, match="model.constant.width = 0: must be 1 or more"):
        from_config_dict(tiny_config_dict(model__name="constant", model__constant__width=0))
    with pytest.raises(UserError, match="did you mean 'model.constant.width'"):
        from_config_dict({"model": {"constant": {"widht": 3}}})


def test_settings_of_a_model_that_is_not_chosen_are_said(entries, caplog):
    msajax.register_model("constant", Constant, Own)
    from_config_dict(tiny_config_dict(model__constant__width=5))
    assert "Nothing reads model.constant.*" in caplog.text


@pytest.mark.filterwarnings("ignore:.* is undefined")  # of a constant score
def test_a_bundle_is_refused_by_another_module_of_the_same_name(entries, tmp_path):
    msajax.register_model("constant", msajax.Model(Constant, output_bias="bias"), Own)
    result = trained(tmp_path)
    assert result.bundle.predict({"text": np.ones((2, 1, 6))}).score.shape == (2, 1)
    del entries["constant"]
    with pytest.raises(UserError, match="'constant', which is no model of msajax"):
        msajax.load(tmp_path / "run" / "bundle")
    msajax.register_model("constant", Constant)
    with pytest.raises(UserError, match="model.constant"):
        msajax.load(tmp_path / "run" / "bundle")

    class Wider(Constant):
        @nn.compact
        def __call__(self, features, masks, *, train=False):
            self.param("more", nn.initializers.ones, (2,))
            return super().__call__(features, masks, train=train)

    msajax.register_model("constant", Wider, Own)
    with pytest.raises(UserError, match=r"parameter more is \(2,\) here, missing in the bundle"):
        msajax.load(tmp_path / "run" / "bundle")


@pytest.mark.parametrize("name", ["sequence_level", "anchor", "own", "two words", "über", ""])
def test_a_name_that_cannot_be_is_refused(entries, name):
    with pytest.raises(UserError, match="cannot be used"):
        msajax.register_model(name, Constant)


@dataclasses.dataclass
class Thawed(msajax.Settings):
    width: int = 3


@dataclasses.dataclass(frozen=True)
class Bare(msajax.Settings):
    width: int


@pytest.mark.parametrize("settings", [dict, msajax.Settings, Thawed, Bare, Own()])
def test_settings_must_be_settings(entries, settings):
    with pytest.raises(UserError, match=r"must be a frozen dataclass that inherits"):
        msajax.register_model("constant", Constant, settings)


def test_a_task_must_be_one(entries):
    with pytest.raises(UserError, match="task = 'regresion' must be one of regression, classif"):
        msajax.register_model("constant", Constant, task="regresion")


def test_a_file_of_models_that_fails_is_one_sentence(entries, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import flax\n1 / 0\n")
    with pytest.raises(UserError, match=r"broken.py, line 2: ZeroDivisionError: division by zero"):
        load_models_from(str(path))
    with pytest.raises(UserError, match="there is no such file"):
        load_models_from(str(tmp_path / "none.py"))
    path.write_text("if:\n")
    with pytest.raises(UserError, match="SyntaxError"):
        load_models_from(str(path))


def test_a_model_begins_with_values_of_its_own(entries, tmp_path, monkeypatch):
    """As those of a pretrained encoder; a value of no parameter, or another shape, is a bug."""
    begun = {}

    def initial(config, spec):
        return {"kernel": np.full(3, 7.0)}

    def see(run):
        begun.update(run.initial)
        raise UserError("seen")

    monkeypatch.setattr("msajax.experiment.run.train_groups", see)
    msajax.register_model("constant", msajax.Model(Constant, initial=initial), Own)
    with pytest.raises(UserError, match="seen"):
        trained(tmp_path)
    np.testing.assert_array_equal(begun["kernel"], np.full(3, 7.0))
    origin = json.loads((tmp_path / "run" / "run.json").read_text())["initial"]
    assert origin == {"model": ["kernel"]}
    msajax.register_model("constant", msajax.Model(Constant, initial=initial))
    with pytest.raises(UserError, match=r"of kernel are \(3,\); the parameter is \(1,\)"):
        trained(tmp_path / "other")


def wrong(**given):
    """A model that is right but for its `score`, `weights`, `aux` or what it declares."""
    parts = {name: given.pop(name) for name in ("score", "weights", "dtype") if name in given}

    class Wrong(nn.Module):
        config: msajax.ModelConfig
        spec: msajax.CorpusSpec

        @nn.compact
        def __call__(self, features, masks, *, train=False):
            rows = len(masks["text"])
            zeros = nn.initializers.zeros
            bias = self.param("bias", zeros, (1,), parts.get("dtype", jnp.float32))
            score = jnp.zeros((rows, 1)) + bias
            score = parts.get("score", lambda x: x)(score)
            weights = parts.get("weights", lambda rows: jnp.ones((rows, 2)))(rows)
            return msajax.Prediction(score, weights, {"bias": jnp.zeros((rows, 1)) + bias})

    return msajax.Model(Wrong, **given)


def term(measure, **more):
    return lambda config, name, loss: {name: loss, "own": msajax.Term(measure, **more)}


def memory(begin, update=None):
    return msajax.Memory(begin, update or (lambda memory, prediction, batch, epoch: batch.memory))


def a_sum(prediction, batch):
    return prediction.score.sum(), batch.row_weight.sum()


WRONG = {
    "a score of one axis": (
        lambda: wrong(score=lambda x: x[:, 0]),
        r"score of 2 samples is float32 \(2,\): it must be float32 \(2, 1\)",
    ),
    "whole scores": (lambda: wrong(score=lambda x: x.astype(int)), "score of 2 samples is int32"),
    "a weight too few": (
        lambda: wrong(weights=lambda rows: jnp.ones((rows, 1))),
        r"modality_weights of 2 samples is float32 \(2, 1\): it must be float32 \(2, 2\)",
    ),
    "no weights": (lambda: wrong(weights=lambda rows: None), "weights of 2 samples is None"),
    "an error of its own": (
        lambda: wrong(score=lambda x: 1 / 0),
        r"fails.*ZeroDivisionError: division by zero",
    ),
    "half a parameter": (lambda: wrong(dtype=jnp.bfloat16), "parameter bias is bfloat16"),
    "no such bias": (lambda: wrong(output_bias="out/bias"), "'out/bias' is no parameter"),
    "bound to nothing": (lambda: wrong(bound={"*": ("lables",)}), "a tuple of some of labels"),
    "a term without a weight": (
        lambda: wrong(terms=term(lambda p, b: p.score.sum())),
        r"py, line \d+: the term 'own' must return \(sum, weight\).* one value, not two",
    ),
    "a term of rows": (
        lambda: wrong(terms=term(lambda p, b: (p.score[:, 0], b.row_weight))),
        r"the term 'own' must return .*; here they are \[\(2,\), \(2,\)\]",
    ),
    "a term without a gradient": (
        lambda: wrong(terms=term(lambda p, b: (p.score.sum().astype(int), b.row_weight.sum()))),
        r"line \d+: the sum of the term 'own' is int32, which has no gradient",
    ),
    "terms of two arguments": (
        lambda: wrong(terms=lambda config, name: {}),
        r"line \d+: terms must take three arguments",
    ),
    "a term of what is not": (lambda: wrong(terms=term(lambda p, b: p.aux["x"])), "KeyError: 'x'"),
    "an endless term": (lambda: wrong(terms=term(a_sum, weight=float("nan"))), "finite weight"),
    "a scope that is none": (lambda: wrong(terms=term(a_sum, scope="rows")), "the scope 'row' or"),
    "a check that answers": (lambda: wrong(check=lambda *_: False), "'wrong' returned a bool: it"),
    "a value of nothing": (
        lambda: wrong(initial=lambda *_: {"nope": 1.0}),
        "gives initial values of nope, but there is no such parameter",
    ),
    "no term": (lambda: wrong(terms=lambda *_: {}), "nothing to minimise"),
    "a memory of three": (
        lambda: wrong(memory=memory(lambda labels, spec: {"x": np.zeros(4)})),
        r"memory 'x' begins as \(4,\) for 3 samples",
    ),
    "a memory that forgets": (
        lambda: wrong(memory=memory(lambda y, spec: {"x": np.zeros(len(y))}, lambda *_: {})),
        "KeyError: 'x'",
    ),
    "a stage of nothing": (lambda: wrong(stages=(msajax.Stage(trains=()),)), "it does nothing"),
    "a string of names": (lambda: wrong(mutable="batch_stats"), "must be a tuple of names"),
    "a name that is taken": (lambda: wrong(mutable=("statistics",)), "which is msajax's own"),
    "terms that are no dict": (
        lambda: wrong(terms=lambda *_: [msajax.Term(a_sum)]),
        r"py, line \d+: terms must return a dict of terms by name; it returns list",
    ),
    "a weight that is text": (lambda: wrong(terms=term(a_sum, weight="0.3")), "finite weight"),
}

HERE = r"^test_own_model.py, line \d+: "
DECLARED_WRONG = {
    "no module": (lambda: msajax.Model(3), "must be a flax.linen.Module"),
    "nothing": (lambda: None, "register_model: .* must be a msajax.Model or a flax.linen.Module"),
    "an instance": (lambda: Constant(None, None), "an instance of Constant: give the class"),
    "a module of its own mind": (lambda: Alone, "Alone must have two attributes to begin with"),
    "a call without train": (lambda: Deaf, r"Deaf must take \(features, masks, \*, train=F"),
    "a dict of terms": (
        lambda: wrong(terms={"own": msajax.Term(a_sum)}),
        r"terms is a dict: it must be a function \(config, name of the task's loss, that loss\)",
    ),
    "values in place of a function": (lambda: wrong(initial={"bias": 0}), "initial is a dict"),
    "a bias that is no path": (lambda: wrong(output_bias=("out", "bias")), "a path, as text"),
    "bound as a list": (lambda: wrong(bound=["labels"]), "bound = .* must be a dict"),
    "space as a list": (lambda: wrong(space=["lr"]), "a dict, by key of .*, or a function of"),
    "a memory that is none": (lambda: wrong(memory={}), "must be a msajax.Memory"),
    "a lone stage": (lambda: wrong(stages=msajax.Stage()), "must be a tuple of msajax.Stage"),
    "names that are none": (lambda: wrong(mutable=(3,)), "must be a tuple of names"),
}


class Alone(nn.Module):
    def __call__(self, features, masks, *, train=False):
        return None


class Deaf(Constant):
    def __call__(self, features, masks):
        return None


@pytest.mark.parametrize("name", DECLARED_WRONG)
def test_what_cannot_be_registered_is_one_sentence_with_the_users_line(entries, name):
    make, message = DECLARED_WRONG[name]
    with pytest.raises(UserError, match=f"{HERE}.*{message}"):
        msajax.register_model("wrong", make())
    assert "wrong" not in entries


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_in_a_model_is_one_sentence_and_leaves_nothing(entries, tmp_path, name):
    make, message = WRONG[name]
    config = tiny_config_dict(train__epochs=1)
    with pytest.raises(UserError, match=message):
        msajax.register_model("wrong", make())
        config.model.name = "wrong"
        msajax.train(from_config_dict(config), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_weight_that_needs_the_prediction_is_refused_with_parts(entries, tmp_path):
    msajax.register_model("wrong", wrong(terms=term(lambda p, b: (p.score.sum(), p.score.sum()))))
    config = tiny_config_dict(model__name="wrong", train__accumulation_steps=2)
    with pytest.raises(UserError, match="term 'own' depends on the prediction"):
        msajax.train(from_config_dict(config), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_that_is_right_passes_where_the_wrong_ones_fail(entries, tmp_path, monkeypatch):
    monkeypatch.setattr("msajax.experiment.run.train_groups", lambda run: 1 / 0)
    msajax.register_model("wrong", wrong(output_bias="bias", terms=term(a_sum)))
    with pytest.raises(ZeroDivisionError):
        msajax.train(from_config_dict(tiny_config_dict(model__name="wrong")), tmp_path / "run")


@pytest.mark.filterwarnings("ignore:.* is undefined")  # of a constant score
def test_hooks_see_every_epoch_and_a_run_that_has_ended_gets_a_new_artefact(
    entries, tmp_path, monkeypatch, caplog
):
    msajax.register_model("constant", msajax.Model(Constant, output_bias="bias"), Own)
    seen = []
    config = from_config_dict(tiny_config_dict(model__name="constant", train__epochs=2))
    result = msajax.train(config, tmp_path / "run", after_epoch=seen.append)
    assert [line for lines in seen for line in lines] == [
        {key: line[key] for key in seen[0][0]} for line in result.history()
    ]
    names = ("note.txt", "bad.txt")
    rows = [manifest.Entry(name, is_result=True, is_derived=True) for name in names]
    monkeypatch.setattr(manifest, "ENTRIES", (*manifest.ENTRIES, *rows))

    def write_note(folder):
        write_text(folder.file("note.txt"), str(folder.read_results()["seeds"]))

    def fail(folder):
        raise ArithmeticError("no library")

    makers = {"note.txt": write_note, "bad.txt": fail}
    monkeypatch.setattr(artefacts, "MAKERS", artefacts.MAKERS | makers)
    before = (tmp_path / "run" / "results.json").stat().st_mtime_ns
    msajax.train(config, tmp_path / "run")
    assert (tmp_path / "run" / "note.txt").read_text() == "[0, 1]"
    assert "bad.txt cannot be made: no library" in caplog.text
    (tmp_path / "run" / "note.txt").write_text("kept")
    msajax.train(config, tmp_path / "run")
    assert (tmp_path / "run" / "note.txt").read_text() == "kept"
    assert (tmp_path / "run" / "results.json").stat().st_mtime_ns == before


def test_a_model_says_which_settings_it_reads_and_no_other_is_in_its_identity(entries):
    msajax.register_model("narrow", wrong(), reads=("model_dim",))
    found = identity(Config(model=ModelConfig(name="narrow", model_dim=4)))
    of_model = {key for key in found if key.startswith("model.")}
    of_all = ("name", "task", "init_from", "modalities")
    assert of_model == {f"model.{key}" for key in (*of_all, "model_dim")}
    message = "model.fusion = 'pooled': model.name = 'narrow' does not read it, but model.model_dim"
    with pytest.raises(UserError, match=rf"^{re.escape(message)}[.]$"):
        ModelConfig(name="narrow", fusion="pooled")
    with pytest.raises(UserError, match="reads names 'width', which is no setting of model"):
        msajax.register_model("other", wrong(), reads=("model_dim", "width"))
