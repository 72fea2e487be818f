"""What a report does with files of a run that were cut, lost or changed."""

import json
import pathlib
import re

import pytest
from made_runs import make_run

from msajax.errors import UserError
from msajax.report import figures, write
from msajax.report.content import read_content, read_folds
from msajax.runs.folder import RunFolder


def page_of(folder: RunFolder) -> str:
    return write.page(read_content(folder))


def test_files_that_are_not_of_one_another_are_refused(tmp_path):
    folder = make_run(tmp_path / "run", "sentiment")
    path = pathlib.Path(folder.file("predictions", "test.csv"))
    rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(rows[:-5]), encoding="utf-8", newline="")
    said = r"test\.csv has 19 samples, not 24 as .*results\.json says\. Delete results\.json: the"
    with pytest.raises(UserError, match=said):
        read_content(folder)


def test_the_training_panel_says_what_is_lost_of_it(tmp_path):
    folder = make_run(tmp_path / "run", "sentiment")
    path = pathlib.Path(folder.file("metrics.jsonl"))
    lines = path.read_text().splitlines(keepends=True)  # seeds 0 and 3 of epochs 1, 2 and 3
    cases = [
        (lines, []),
        ([], ["metrics.jsonl is missing or empty"]),
        (lines[::2], ["metrics.jsonl has no line of random seed 3."]),
        (lines[:2] + lines[4:], ["no line of epoch 2 of random seed 0; epoch 2 was chosen.",
                                 "no line of epoch 2 of random seed 3."]),
        ([*lines, lines[0].replace('"seed": 0', '"seed": 7')],
         ["has lines of random seed 7, which the results do not know: they are left out."]),
    ]  # fmt: skip
    for kept, said in cases:
        path.write_text("".join(kept))
        panel = page_of(folder).partition("Training</h2>")[2].partition("</section>")[0]
        assert panel.count("<li>metrics.jsonl") == len(said)
        assert [of for of in said if of not in panel] == []
        assert "chosen epoch" in panel and "seed 7</bdi>" not in panel
    path.unlink()
    assert "metrics.jsonl is missing or empty" in page_of(folder)
    path.write_text(lines[0].replace('"valid_mae": 2.0', '"valid_mae": "x"'))
    with pytest.raises(UserError, match=r'line 1 .*: valid_mae is "x", not a number or null\.'):
        page_of(folder)


WRONG = ["x", None, [], {}, -1, 1e308, 10**400]


def places(value, at=()):
    """Yields where each value of JSON lies in another one, that one itself first."""
    yield at
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*at, key))


def replaced(value, at, new):
    if not at:
        return new
    copy = value.copy()
    copy[at[0]] = replaced(value[at[0]], at[1:], new)
    return copy


def test_a_wrong_value_in_any_file_is_named_with_its_file(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "run", "sentiment")
    monkeypatch.setattr(figures.Chart, "svg", "")  # which takes long
    refused = {"results.json": 0, "run.json": 0, "config.json": 0, "metrics.jsonl": 0}
    for name in refused:
        path = pathlib.Path(folder.file(name))
        text = path.read_text()
        first, rest = (text, "") if name.endswith("json") else text.split("\n", 1)
        value = json.loads(first)
        if name == "results.json":  # all metrics are alike
            of_metrics = [value[key] for key in ("valid", "test", "test_ensemble")]
            for of in (*of_metrics, *value["floors"].values()):
                for metric in of.keys() - {"mae", "acc7"}:
                    del of[metric]
        for at in places({"data": value["data"]} if name == "config.json" else value):
            for wrong in WRONG:
                path.write_text(f"{json.dumps(replaced(value, at, wrong))}\n{rest}")
                try:
                    page_of(folder)
                except UserError as error:
                    assert name in str(error), (at, wrong)
                    refused[name] += 1
        path.write_text(text)
    assert all(count > 10 for count in refused.values()), refused


@pytest.mark.parametrize(
    ("name", "keys", "wrong", "said"),
    [
        ("results.json", "test.mae.mean", "x", 'test.mae.mean is "x", not a number or null'),
        ("results.json", "best_epoch", [1], "best_epoch has 1 values, not 2"),
        ("results.json", "test.mae.seeds", [1, 2, 3], "test.mae.seeds has 3 values, not 2"),
        ("results.json", "floors", "x", 'floors is "x", not an object'),
        ("results.json", "floors", {"x": {}}, "floors.x is no floor of the metrics of test"),
        ("results.json", "selection", "acc", "selection is no metric of test"),
        ("results.json", "corpus.sizes", {"train": 1, "valid": 1}, "sizes.test is missing"),
        ("config.json", "", [], "it is [], not an object"),
        ("config.json", "", {}, "data is missing"),
        ("config.json", "data", "x", 'data is "x", not an object'),
    ],
)
def test_the_message_says_where_a_file_is_wrong(name, keys, wrong, said, tmp_path):
    folder = make_run(tmp_path / "run", "sentiment")
    path = pathlib.Path(folder.file(name))
    value = json.loads(path.read_text())
    path.write_text(json.dumps(replaced(value, keys.split(".") if keys else (), wrong)))
    with pytest.raises(UserError, match=f"{name} .*{re.escape(said)}"):
        page_of(folder)


def test_folds_that_no_cross_validation_has_written_are_refused(tmp_path):
    path = tmp_path / "folds.json"
    of_folds = {"mean": 1.5, "sd_folds": 0.5, "sd_seeds": None, "folds": [1.0, 2.0]}
    found = {
        **{"folds": 2, "split_seed": 0, "model": {"name": "sequence_level"}},
        **{"corpus": [{"sizes": {"test": 3}}] * 2, "seeds": [[0], [0]], "best_epoch": [[1], [2]]},
        "metrics": {"mae": of_folds},
        "pooled": {"samples": 6, "metrics": {"mae": {"value": 1.5, "ci95": [1.0, None]}}},
        "floors": {"constant_0": {"mae": None}},
    }
    right = replaced(found, ("pooled", "metrics", "mae", "ci95"), [1.0, 2.0])
    path.write_text(json.dumps(right))
    read_folds(str(path))
    wrong = [
        (found, "ci95 of mae has one end"),
        (replaced(right, ("metrics", "mae", "folds"), [1.0]), "metrics.mae.folds has 1 values"),
        (replaced(right, ("seeds",), [[0]]), "seeds has 1 values, not 2"),
        (replaced(right, ("metrics",), {}), "metrics has other ones than pooled.metrics"),
        (replaced(right, ("best_epoch", 1, 0), 1.5), "best_epoch[1][0] is 1.5, not a whole"),
    ]
    for value, said in wrong:
        path.write_text(json.dumps(value))
        with pytest.raises(UserError, match=f"folds.json is not .*{re.escape(said)}"):
            read_folds(str(path))
