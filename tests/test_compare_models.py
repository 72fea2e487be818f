"""Models on equal terms: what each contender is given, and one comparison that is made twice."""

import csv
import json
import math
import os

import pytest
from tiny import SMALLEST, tiny_config

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.models.build import declared
from msajax.models.table import MODELS
from msajax.studies import compare_models
from msajax.studies.compare_models import Budget, of_contender
from msajax.studies.sweep.space import plan

DONE = ("lf_dnn", "text_only")


def test_a_contender_has_what_all_share_and_only_settings_that_it_reads():
    config = tiny_config(data__path="corpus.npz", optim__learning_rate=0.01, train__seeds=4)
    ours, theirs = of_contender(config, "sequence_level"), of_contender(config, "tfn")
    assert ours == config
    assert theirs.train == config.train and theirs.optim == config.optim
    assert theirs.data == config.data
    assert theirs.model == ModelConfig(name="tfn", own=theirs.model.own)
    assert of_contender(config, "text_only").model.modalities == ("text",)
    with pytest.raises(UserError, match="'tfm', which is no model: known are sequence_level"):
        of_contender(config, "tfm")


@pytest.mark.parametrize("name", [name for name in MODELS if name != "next_token"])
def test_the_space_of_every_model_can_be_searched(name):
    config = of_contender(tiny_config(), name)
    drawn = plan(declared(config.model).space, config, 8)
    assert len(drawn) == 8 and all(drawn)


def test_what_cannot_be_compared_is_refused_before_anything_is_written(tmp_path):
    config, workdir = tiny_config(), str(tmp_path / "w")
    for names, message in (
        ((), "--contenders names no model"),
        (("tfn", "tfn"), "names 'tfn' twice"),
        (("tfn", ""), "names no model, or an empty one"),
        (("models",), "a name that files of a comparison have"),
        (("next_token",), "declares no space of settings"),
    ):
        with pytest.raises(UserError, match=message):
            compare_models.compare_models(names, config, workdir, Budget())
    for budget, message in (
        (Budget(trials=-1), "--trials=-1: must be a whole number, 0 or more"),
        (Budget(trial_seeds=1.5), "--trial_seeds=1.5: must be a whole number, 1 or more"),
        (Budget(hours=math.nan), "--hours=nan: must be a number, 0 or more"),
        (Budget(models="nothing.py"), "--models=nothing.py: there is no such file"),
    ):
        with pytest.raises(UserError, match=message):
            compare_models.compare_models(("tfn",), config, workdir, budget)
    assert not os.path.exists(workdir)
    (tmp_path / "tfn.py").write_text("mine")
    with pytest.raises(UserError, match=r"holds 'tfn.py' but no models.json"):
        compare_models.compare_models(("tfn",), config, str(tmp_path), Budget())
    assert (tmp_path / "tfn.py").read_text() == "mine"


def test_a_comparison_ends_in_one_table_and_what_has_ended_is_only_read(forks, tmp_path):
    workdir = tmp_path / "models"
    keys = {"data__path": "synthetic", **SMALLEST, "data__synthetic__train": 24,
            "data__synthetic__valid": 12, "data__synthetic__test": 12, "train__seeds": 2,
            "train__epochs": 2, "train__report": False}  # fmt: skip
    keys = {key.replace("__", "."): value for key, value in keys.items()}
    as_text = {k: ",".join(map(str, v)) if isinstance(v, tuple) else v for k, v in keys.items()}
    command = ["--mode=compare_models", "--contenders=lf_dnn,mag", "--trials=0",
               "--config.model.text_only.hidden=9",
               f"--workdir={workdir}", *(f"--config.{k}={v}" for k, v in as_text.items())]
    done = forks.run(*command)
    assert done.returncode == 0, done.stderr

    content = json.loads((workdir / "models.json").read_text())
    rows = {row["name"]: row for row in content["contenders"]}
    assert list(rows) == ["lf_dnn", "mag", "text_only"] and content["reference"] == "lf_dnn"
    assert content["budget"] == {"trials": 0, "trial_seeds": 1, "seeds": 2}
    assert rows["mag"]["status"].startswith("refused: ") and not rows["mag"]["test"]
    for name in DONE:
        row = rows[name]
        results = json.loads((workdir / name / "results.json").read_text())
        assert row["status"] == "done" and row["test"] == results["test"]
        assert row["parameters"] > 0 and row["peak_mib"] > 50 and row["samples_per_second"] > 0
    assert rows["lf_dnn"]["p"] is None and 0 < rows["text_only"]["p_holm"] <= 1
    with open(workdir / "models.csv", newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == list(rows)
    assert "lf\\_dnn" in (workdir / "models.tex").read_text()
    assert "<svg" in (workdir / "models.html").read_text()

    assert "config.model.text_only.hidden = 9" in (workdir / "text_only.py").read_text()
    # What has ended is only read.
    before = {name: (workdir / name / "results.json").stat().st_mtime_ns for name in DONE}
    assert forks.run(*command).returncode == 0
    again = json.loads((workdir / "models.json").read_text())["contenders"]
    assert [row for row in again if row["name"] in DONE] == [rows[name] for name in DONE]
    assert before == {n: (workdir / n / "results.json").stat().st_mtime_ns for n in DONE}
    for key, what in (("train.epochs=3", "train.epochs"), ("model.lf_dnn.hidden=9", "lf_dnn.py")):
        other = forks.run(*command, f"--config.{key}")
        assert other.returncode == 2 and f"holds another comparison ({what}" in other.stderr
