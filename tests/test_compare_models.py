"""Models on equal terms: what each contender is given, and one comparison that is made twice."""

import csv
import dataclasses
import json
import math
import os
import re
import sys
import threading
import time

import numpy as np
import pytest
from tiny import SMALLEST, tiny_config

import msajax
from msajax.api import ModelsResult
from msajax.config import ModelConfig, load_models_from, registry
from msajax.corpus import formats
from msajax.errors import UserError
from msajax.files import write_json
from msajax.models.build import declared
from msajax.models.table import MODELS
from msajax.results.measure import summarize_with_intervals
from msajax.runs.lock import Lock
from msajax.studies import compare_models
from msajax.studies.compare_models import Budget, of_contender
from msajax.studies.sweep.space import plan
from msajax.tasks import make_task

DONE = ("lf_dnn", "text_only")
IDS = [f"video{k // 2}[{k % 2}]" for k in range(24)]
LABELS = np.random.default_rng(0).choice(np.arange(-3, 4), len(IDS)).astype(float)


class Children:
    """Stand-ins of a contender's process, each with what it leaves, says and ends with."""

    def __init__(self, folder):
        self.folder, self.program = folder, folder / "child"
        self.program.write_text(
            "#!/bin/bash\n"
            'for a; do case "$a" in --workdir=*) w="${a#--workdir=}";; esac; done\n'
            f'own={folder}/$(basename "$w"); echo begun >> "$own.begun"\n'
            'if [ -e "$own" ] && [ ! -e "$w" ]; then cp -r "$own" "$w"; fi\n'
            'if [ -e "$own.sh" ]; then . "$own.sh"; fi\n'
        )
        self.program.chmod(0o755)

    def begun(self, name):
        """How often that of a contender has begun."""
        path = self.folder / f"{name}.begun"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def ends(self, name, script):
        """What a contender's does in the end, as lines of bash."""
        (self.folder / f"{name}.sh").write_text(script)

    def leaves(self, name, error=0.1, labels=LABELS, seeds=2, selection="mae", **more):
        """What a contender's leaves: a run whose scores are so far from the labels."""
        task = make_task("regression", ("label",), LABELS[:, None])
        noise = np.random.default_rng(len(name)).normal(0, error, (seeds, len(IDS)))
        scores = labels + noise if error else np.ones_like(noise)
        measured = summarize_with_intervals(scores[..., None], labels[:, None], task)
        run = self.folder / name
        (run / "predictions").mkdir(parents=True, exist_ok=True)
        write_json(run / "results.json", {
            "task": "regression", "model": {"name": name, "parameters": 7}, "epochs": 3,
            "corpus": {"sizes": {"train": 20}}, "seeds": list(range(seeds)), "failed": [],
            "selection": selection, "valid": measured, "test": measured,
            "floors": {"constant_0": {"mae": 1.5}}, "best_epoch": [1] * seeds, "test_ensemble": {},
            "timing": {"epochs": 3, "train_seconds": 12.0}, **more,
        })  # fmt: skip
        epochs = [{"seed": k, "epoch": e, "seconds": s} for e, s in enumerate((9, 2, 1, 1), 1)
                  for k in range(seeds)]  # fmt: skip
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in epochs))
        columns = [f"score_seed{k}" for k in range(seeds)]
        rows = zip(IDS, labels, scores.mean(0), *scores, strict=True)
        with open(run / "predictions" / "test.csv", "w", newline="") as file:
            csv.writer(file).writerows([("id", "label", "score", *columns), *rows])


@pytest.fixture
def children(tmp_path_factory, monkeypatch):
    made = Children(tmp_path_factory.mktemp("children"))
    monkeypatch.setattr(sys, "executable", str(made.program))
    return made


@pytest.fixture
def own_model(tmp_path_factory, monkeypatch):
    """A file that registers the model from_a_file, for this test alone."""
    monkeypatch.setattr(registry, "_MODELS", dict(registry._MODELS))
    path = tmp_path_factory.mktemp("own") / "mine.py"
    path.write_text(
        "import flax.linen as nn\nimport msajax\n"
        "class Mine(nn.Module):\n    config: object\n    spec: object\n"
        "    def __call__(self, features, masks, *, train=False): ...\n"
        "space = {'optim.learning_rate': [1e-3, 1e-4]}\n"
        "msajax.register_model('from_a_file', msajax.Model(Mine, space=space))\n"
    )
    return str(path)


def compared(tmp_path, names=("lf_dnn",), config=None, trials=0, **more):
    """A comparison in a folder that stays the same; its rows by name are `["rows"]`."""
    config = tiny_config() if config is None else config
    own = more.pop("own", None)
    content, is_done = compare_models.compare_models(
        names, config, str(tmp_path / "w"), Budget(trials=trials, **more), own=own
    )
    rows = {row["name"]: row for row in content["contenders"]}
    return content | {"rows": rows, "is_done": is_done}


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
    space = declared(config.model).space
    drawn = plan(space, config, 8)
    # The optimiser is the same for all but for its rate.
    assert {key for key in space if key.startswith("optim.")} <= {"optim.learning_rate"}
    assert len(drawn) == 8 and all(drawn)


def test_what_cannot_be_compared_is_refused_before_anything_is_written(
    children, tmp_path, own_model
):
    load_models_from(own_model)
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
        (Budget(trials=3), r"'from_a_file': --trials=3: get_space\(\) has only 2 combinations"),
    ):
        with pytest.raises(UserError, match=message):
            compare_models.compare_models(("from_a_file",), config, workdir, budget)
    for own, message in (
        ({"tnf": {"hidden": 9}}, "own names 'tnf', which is no contender"),
        ({"tfn": 9}, r"own\['tfn'\] = 9: must be {setting: value}"),
        (9, "own = 9: must be {name of a contender"),
        ({"sequence_level": {}}, "own names 'sequence_level', a model without settings of its own"),
        ({"tfn": {"hiden": 9}}, "Unknown configuration key 'model.tfn.hiden'"),
    ):
        with pytest.raises(UserError, match=message):
            compare_models.compare_models(
                ("tfn", "sequence_level"), config, workdir, Budget(), own=own
            )
    with pytest.raises(UserError, match="--models=nothing.py: there is no such file"):
        msajax.compare_models("tfn", config, workdir, models="nothing.py")
    with pytest.raises(UserError, match="a:b/w has a colon in its path"):
        compare_models.compare_models(("tfn",), config, f"{tmp_path}/a:b/w", Budget())
    assert not os.path.exists(workdir) and not os.path.exists(tmp_path / "a:b")
    (tmp_path / "tfn.py").write_text("mine")
    with pytest.raises(UserError, match=r"holds 'tfn.py' but no models.json"):
        compare_models.compare_models(("tfn",), config, str(tmp_path), Budget())
    assert (tmp_path / "tfn.py").read_text() == "mine"
    for damaged in ('{"identity": {}}', '{"identity": {}, "contenders": null}', "[]", '{"iden'):
        (tmp_path / "models.json").write_text(damaged)
        with pytest.raises(UserError, match="is not that of a comparison|cannot be read"):
            compare_models.compare_models(("tfn",), config, str(tmp_path), Budget())


def test_a_comparison_goes_on_with_the_same_corpus_and_what_changes_no_run(children, tmp_path):
    for name in DONE:
        children.leaves(name)

    def corpus(path, **settings):
        data = tiny_config(**{f"data__synthetic__{k}": v for k, v in settings.items()}).data
        formats.save(formats.open_own("synthetic", data), str(path))
        return tiny_config(data__path=str(path))

    config = corpus(tmp_path / "c.npz")
    assert compared(tmp_path, config=config)["is_done"]
    # A copy is the same corpus; a report, a cache and places of checkpoints change no run.
    copy = corpus(tmp_path / "copy.npz")
    train = dataclasses.replace(copy.train, report=True, compile_cache=str(tmp_path / "cache"))
    again = compared(tmp_path, config=dataclasses.replace(copy, train=train))
    assert again["is_done"] and [children.begun(name) for name in DONE] == [1, 1]
    assert "train.report" not in (tmp_path / "w" / "lf_dnn.py").read_text()
    assert "copy.npz" in (tmp_path / "w" / "lf_dnn.py").read_text()
    # Another corpus, shared setting or setting of a contender's own is named.
    before = (tmp_path / "w" / "models.json").read_bytes()
    for other, more, message in (
        (corpus(tmp_path / "c.npz", train=40), {}, r"another comparison \(corpus digest: '\w+' th"),
        (tiny_config(data__path=str(tmp_path / "copy.npz"), train__epochs=3), {},
         r"another comparison \(train.epochs: 4 there, 3 here\)"),
        (copy, {"own": {"lf_dnn": {"hidden": 9}}},
         r"another comparison \(lf_dnn.py: model.lf_dnn.hidden: 64 there, 9 here\)"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            compared(tmp_path, ("lf_dnn", "tfn"), other, **more)
    assert (tmp_path / "w" / "models.json").read_bytes() == before
    # So is one that changes while a contender trains.
    children.leaves("tfn")
    children.ends("tfn", f"cp {tmp_path}/c.npz {tmp_path}/copy.npz")
    with pytest.raises(UserError, match="copy.npz, or an encoder, has changed since the"):
        compared(tmp_path, ("lf_dnn", "tfn", "lmf"), copy)
    assert children.begun("tfn") == 1 and not children.begun("lmf")
    corpus(tmp_path / "copy.npz")
    (tmp_path / "w" / "lf_dnn.py").write_text("import nothing_at_all")
    with pytest.raises(UserError, match="line 1: ModuleNotFoundError: .*it was changed"):
        compared(tmp_path, config=copy)


def test_a_file_registers_models_from_python_too(children, tmp_path, own_model):
    for name in ("from_a_file", "text_only"):
        children.leaves(name)
    how = {"trials": 0, "models": own_model}
    result = msajax.compare_models("from_a_file", tiny_config(), tmp_path / "w", **how)
    assert result["reference"] == "from_a_file" and result["contenders"][1]["p"] is not None


@pytest.mark.filterwarnings("ignore:(corr|spearman) is undefined")
def test_what_is_undefined_on_test_leaves_the_others_a_table(children, tmp_path):
    children.leaves("lf_dnn", selection="corr")
    children.leaves("tfn", 0, selection="corr")  # of scores that never change
    children.leaves("text_only", 0.5, selection="corr")
    content = compared(tmp_path, ("lf_dnn", "tfn"))
    row = content["rows"]["tfn"]
    assert row["test"]["corr"]["mean"] is row["p"] is row["p_holm"] is row["verdict"] is None
    assert content["rows"]["text_only"]["p"] > 0
    assert "Undefined on test is the difference in corr of tfn." in content["notes"]
    assert json.loads((tmp_path / "w" / "models.json").read_text())["notes"] == content["notes"]
    page = (tmp_path / "w" / "models.html").read_text()
    assert "<svg" in page and "tfn:" not in page and "lf_dnn: 0.9" in page
    assert re.search(r"tfn +7 +- +- +- +- +-", str(ModelsResult("", content)))
    # A metric that the labels of the test split do not have is not compared.
    for name in ("lf_dnn", "text_only"):
        children.leaves(name, labels=np.append(LABELS[:-1], 3.2), selection="acc7")
    content = compared(tmp_path / "other", ("lf_dnn",))
    assert content["rows"]["text_only"]["p"] is None
    assert "The labels of the test split have no acc7: nothing was compared." in content["notes"]


def test_the_file_for_a_spreadsheet_has_settings_intervals_and_verdicts(children, tmp_path):
    for name, error in (("lf_dnn", 0.01), ("text_only", 2.0)):
        children.leaves(name, error, seeds=4)
    settings = {"optim.learning_rate": 0.001, "model.text_only.hidden": 9}
    sweep = json.dumps({"trials": [{}, {}], "winner": {"settings": settings}})
    children.ends("text_only", f"""mkdir "$w/winner"; mv "$w"/*.json* "$w/predictions" "$w/winner"
        echo '{sweep}' > "$w/sweep.json"
        """)
    row = compared(tmp_path, trials=8)["rows"]["text_only"]
    with open(tmp_path / "w" / "models.csv", newline="") as file:
        listed = {one["name"]: one for one in csv.DictReader(file)}["text_only"]
    assert listed["settings"] == "optim.learning_rate = 0.001, model.text_only.hidden = 9"
    ends = [float(listed[f"test_mae_{end}"]) for end in ("low", "high")]
    assert ends == pytest.approx(row["test"]["mae"]["ci95"]) and ends[0] < ends[1]
    assert listed["verdict"] == row["verdict"] == "worse" and listed["trials_done"] == "2"
    # Four seeds of 20 samples; the first epoch compiles.
    assert float(listed["samples_per_second"]) == 80


def test_seeds_that_failed_leave_the_others_their_row(children, tmp_path):
    children.leaves("lf_dnn")
    failed = {"seed": 1, "epoch": 2, "step": 5}
    children.leaves("text_only", seeds=1, failed=[failed])
    children.ends("text_only", "echo error: seed 1 failed >&2; exit 3")
    children.ends("tfn", "echo error: all failed >&2; exit 3")
    content = compared(tmp_path, ("lf_dnn", "tfn"))
    row = content["rows"]["text_only"]
    assert row["status"] == "done" and row["p"] is not None and row["failed"] == [failed]
    assert content["is_done"] and content["rows"]["tfn"]["status"] == "not finite: all failed"
    shown = str(ModelsResult("", content))
    assert "text_only: The numbers of 1 random seed(s)" in shown and "its other seeds" in shown
    assert compared(tmp_path, ("lf_dnn", "tfn"))["is_done"] and children.begun("text_only") == 1


def test_a_result_that_cannot_be_compared_is_that_contenders_status(children, tmp_path):
    for name in ("lf_dnn", "tfn", "lmf", "mult", "text_only"):
        children.leaves(name, labels=LABELS + (name == "lmf"))
    (children.folder / "tfn" / "predictions" / "test.csv").unlink()
    (children.folder / "mult" / "metrics.jsonl").write_text("damaged\n")
    content = compared(tmp_path, ("lf_dnn", "tfn", "lmf", "mult"))
    rows = content["rows"]
    assert re.match("cannot be compared: .*test.csv cannot be read", rows["tfn"]["status"])
    assert re.match("cannot be compared: .* differ in the labels", rows["lmf"]["status"])
    assert re.match("cannot be compared: .*metrics.jsonl", rows["mult"]["status"])
    assert rows["text_only"]["p"] is not None and content["is_done"]
    # Without the reference nothing is compared, which is said.
    content = compared(tmp_path, ("tfn", "lf_dnn"))
    assert content["rows"]["lf_dnn"]["p"] is None
    assert "tfn, the reference, has no result: nothing was compared." in content["notes"]


def test_so_few_videos_that_nothing_can_be_shown_are_told(children, tmp_path, monkeypatch):
    few = [f"video{k // 6}[{k % 6}]" for k in range(24)]
    monkeypatch.setattr(sys.modules[__name__], "IDS", few)
    for name in DONE:
        children.leaves(name)
    content = compared(tmp_path)
    said = "Only 4 video(s): the smallest p that can come out is about 0.12, and nothing can be"
    printed = " ".join(str(ModelsResult("", content)).split())
    page = (tmp_path / "w" / "models.html").read_text()
    assert said in " ".join(content["notes"]) and said in printed and said in page
    assert 'aria-label="models"' in page and "<bdi>constant 0</bdi>" in page


def test_what_a_contender_takes_is_of_its_own_process_and_adds_up(children, tmp_path):
    for name in DONE:
        children.leaves(name)
    children.ends("lf_dnn", "sleep 0.7")
    held = np.ones(400 * 2**17)  # 400 MiB of this process
    rows = compared(tmp_path)["rows"]
    assert held.all() and 0 < rows["lf_dnn"]["peak_mib"] < 100 < 400
    assert 0.7 <= rows["lf_dnn"]["seconds"] < 30
    # What a start that was killed has noted is counted, and it goes on.
    path = tmp_path / "w" / "lf_dnn.json"
    write_json(path, json.loads(path.read_text()) | {"code": None, "seconds": 100.0})
    again = compared(tmp_path)["rows"]["lf_dnn"]
    assert 100.7 <= again["seconds"] < 130 and children.begun("lf_dnn") == 2


def test_a_program_that_is_interrupted_leaves_no_process_behind(children, tmp_path):
    children.ends("lf_dnn", f"trap 'echo saved; exit 75' TERM; echo $$ > {tmp_path}/pid\n"
                  "while true; do sleep 0.05; done")  # fmt: skip

    class Interrupt:
        @property
        def requested(self):  # as Ctrl-C in a notebook
            if (tmp_path / "pid").exists():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare_models.compare_models(
            ("lf_dnn",), tiny_config(), str(tmp_path / "w"), Budget(trials=0), Interrupt()
        )
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    taken = json.loads((tmp_path / "w" / "lf_dnn.json").read_text())
    assert taken["code"] == 75 and taken["why"] == "saved"


@pytest.mark.parametrize("place", [".", "fold_1"])
def test_the_process_of_a_killed_start_is_waited_for(place, children, tmp_path):
    for name in DONE:
        children.leaves(name)
    folder = tmp_path / "w" / "lf_dnn" / place
    begun = compared(tmp_path, hours=0)
    assert "no metric yet, 2 random seeds" in str(ModelsResult("", begun))
    folder.mkdir(parents=True)
    held = Lock(str(folder))
    held.__enter__()
    threading.Timer(1.0, held.__exit__).start()
    began = time.monotonic()
    compared(tmp_path)
    assert time.monotonic() - began > 1 and children.begun("lf_dnn") == 1


def test_only_contenders_that_are_named_decide_whether_all_have_ended(children, tmp_path):
    for name in DONE:
        children.leaves(name)
    children.ends("tfn", "exit 75")
    assert not compared(tmp_path, ("lf_dnn", "tfn"))["is_done"]
    content = compared(tmp_path)
    assert content["is_done"] and content["rows"]["tfn"]["status"] == "paused"


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
    for key, what in (("train.epochs=3", "train.epochs"), ("model.lf_dnn.hidden=9", "lf_dnn")):
        other = forks.run(*command, f"--config.{key}")
        assert other.returncode == 2 and f"holds another comparison ({what}" in other.stderr
