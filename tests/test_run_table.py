"""Tables of many runs: which numbers, which marks, and the forms that papers include."""

import csv
import io
import json
import re

import numpy as np
import pytest
from rich.console import Console
from test_comparison import ALIKE, BAD, GOOD, IDS, LABELS, RNG, command, run_of, write

import msajax
from msajax.comparison.compare import ALIKE as NOT_TOLD
from msajax.comparison.compare import BEST, compare, tabulate
from msajax.comparison.output import (
    RUN_TABLE,
    print_run_table,
    run_table_latex,
    run_table_rows,
)
from msajax.comparison.output import write as write_result
from msajax.comparison.statistics import holm
from msajax.errors import UserError

MIDDLE = LABELS + RNG.normal(0, 0.6, (2, len(IDS)))


@pytest.fixture
def runs(tmp_path):
    """Folders of runs, of which two are good, and a file of another tool with one score."""
    scores = {"bad": BAD, "good": GOOD, "alike": ALIKE, "middle": MIDDLE}
    found = {name: run_of(tmp_path / name, of) for name, of in scores.items()}
    return found | {"theirs": write(tmp_path / "theirs.txt", BAD[:1], separator="\t")}


def column(content, metric) -> dict[str, dict]:
    """What a table says of a metric, by run."""
    return {row["run"]: row["metrics"][metric] for row in content["rows"]}


def printed(content, width=80) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_run_table(content, console)
    return console.file.getvalue()


def test_means_and_deviations_are_over_seeds_and_the_only_best_is_marked(runs):
    content = tabulate([runs[name] for name in ("bad", "theirs", "good", "middle")])
    assert [row["seeds"] for row in content["rows"]] == [4, 1, 3, 2]
    assert [row["run"] for row in content["rows"]] == ["bad", "theirs.txt", "good", "middle"]
    errors = np.abs(BAD - LABELS).mean(axis=1)
    mae = column(content, "mae")
    assert mae["bad"]["mean"] == pytest.approx(errors.mean())
    assert mae["bad"]["sd"] == pytest.approx(errors.std(ddof=1))
    assert mae["theirs.txt"]["sd"] is None
    assert {run: of["mark"] for run, of in mae.items() if of["mark"]} == {"good": BEST}
    corr = column(content, "corr")  # of which larger ones are better
    assert corr["good"]["mark"] and not corr["bad"]["mark"]


def test_the_best_is_tested_against_each_other_run_as_compare_tests_two(runs):
    content = tabulate([runs[name] for name in ("bad", "middle", "good")])
    pairs = [compare([runs["good"], runs[name]])["pairs"][0] for name in ("bad", "middle")]
    for metric in content["metrics"]:
        p = [pair["metrics"][metric]["p"] for pair in pairs]
        found = column(content, metric)
        assert [found["bad"]["p_holm"], found["middle"]["p_holm"]] == holm(p), metric
        assert found["good"]["p_holm"] is None and content["comparisons"] == 2


def test_runs_that_are_not_told_from_the_best_are_marked_with_it_alone(runs, tmp_path):
    again = run_of(tmp_path / "again", GOOD)
    content = tabulate([runs["alike"], runs["bad"], runs["good"], again])
    marks = {run: of["mark"] for run, of in column(content, "mae").items()}
    assert marks == {"alike": NOT_TOLD, "bad": "", "good": NOT_TOLD, "again": NOT_TOLD}
    shown = printed(tabulate([runs["alike"], runs["bad"], runs["good"]], metrics=["mae"]))
    assert len(re.findall(r"(?m)^(?:alike|good) .*\d †$", shown)) == 2 and "*" not in shown
    assert "adjusted for 2 comparisons of a metric (Holm)" in " ".join(shown.split())


def test_an_undefined_metric_is_never_best_and_few_videos_show_nothing(runs, tmp_path):
    flat = write(tmp_path / "flat.csv", np.ones((1, len(IDS))))
    corr = column(tabulate([flat, runs["good"], runs["bad"]], metrics=["corr"]), "corr")
    assert np.isnan(corr["flat.csv"]["mean"]) and corr["flat.csv"]["mark"] == ""
    assert corr["good"]["mark"] == BEST and corr["flat.csv"]["p_holm"] is None
    ids = [f"{'ab'[i % 2]}[{i}]" for i in range(len(IDS))]
    two = [write(tmp_path / f"{k}.csv", of, ids) for k, of in enumerate((GOOD, BAD))]
    content = tabulate(two, metrics=["mae"])
    assert {of["mark"] for of in column(content, "mae").values()} == {NOT_TOLD}
    assert "Only 2 video(s): the smallest p" in content["notes"][0]
    (row,) = tabulate([runs["good"]])["rows"]  # alone, a run is the best of nothing
    assert row["metrics"]["mae"]["mark"] == ""


def test_the_forms_hold_the_same_numbers(runs, tmp_path):
    table = msajax.table(runs["bad"], runs["good"], metrics=("mae", "acc7"))
    for ending in RUN_TABLE.endings:
        table.save(tmp_path / f"t{ending}")
        table.save(tmp_path / f"t{ending}")  # over the earlier one
    stored = json.loads((tmp_path / "t.json").read_text())
    assert [list(row["metrics"]) for row in stored["rows"]] == [["mae", "acc7"]] * 2
    with open(tmp_path / "t.csv", newline="", encoding="utf-8") as file:
        bad, good = csv.DictReader(file)
    assert (bad["run"], bad["path"], bad["mae_mark"]) == ("bad", runs["bad"], "")
    assert (good["mae_mark"], good["mae_p_holm"]) == (BEST, "")
    values = table["rows"][0]["metrics"]["acc7"]
    assert float(bad["acc7_mean"]) == pytest.approx(values["mean"], rel=1e-8)
    assert float(bad["acc7_sd"]) == pytest.approx(values["sd"], rel=1e-8)
    assert table.rows() == run_table_rows(table)
    text = (tmp_path / "t.tex").read_text()
    assert r" & mae $\downarrow$ & acc7 (\%) $\uparrow$ \\" in text
    shown = rf"{100 * values['mean']:.1f} $\pm$ {100 * values['sd']:.1f}"
    assert re.search(rf"(?m)^bad & [\d.]+ \$\\pm\$ [\d.]+ & {re.escape(shown)} \\\\$", text)
    assert re.search(r"(?m)^good & \\textbf{[\d.]+ \$\\pm\$ [\d.]+} & ", text)
    assert "others. Two runs are told apart if a test that exchanges their predictions" in text
    assert "Bold: the best, told apart from all others." in text and "(bad 4, good 3)" in text
    assert "mae ↓" in str(table) and repr(table).startswith("RunTable('")
    for ending in RUN_TABLE.endings:
        (tmp_path / f"t{ending}").write_text("mine")
        with pytest.raises(UserError, match="is there already and holds no table of runs"):
            table.save(tmp_path / f"t{ending}")
    with pytest.raises(UserError, match=r"must end in \.json, \.csv or \.tex\."):
        table.save(tmp_path / "t.html")


def test_names_are_escaped_and_never_cut(runs, tmp_path):
    long = run_of(tmp_path / f"50%_of_&_{'very_' * 12}long_$x$", GOOD)
    content = tabulate([long, runs["bad"]])
    text = run_table_latex(content)
    assert r"50\%\_of\_\&\_very\_" in text and r"long\_\$x\$ & " in text
    assert text.count("{") == text.count("}")
    for width in (80, 100):
        shown = printed(content, width)
        assert "…" not in shown and max(map(len, shown.splitlines())) <= width
        heads = " ".join(line for line in shown.splitlines() if line.startswith("run "))
        assert [name for name in content["metrics"] if f" {name} " not in f"{heads} "] == []
        first = re.search(r"(?m)^─+\n((?:.*\n)+?)bad ", shown)[1].splitlines()  # the run's lines
        assert "".join(line.split(" ")[0] for line in first) == content["rows"][0]["run"]


def test_other_samples_and_unknown_names_are_refused(runs, tmp_path):
    other = write(tmp_path / "other.csv", BAD, [f"x{i}" for i in range(len(IDS))])
    with pytest.raises(UserError, match="have no id in common"):
        tabulate([runs["good"], other])
    with pytest.raises(UserError, match=r"'maee' is none of those of these runs: mae, corr, "):
        tabulate([runs["good"]], metrics=["maee"])
    with pytest.raises(UserError, match="A table needs runs"):
        tabulate([])
    done = command("table", runs["good"], "--output", f"{runs['good']}/t.csv")
    assert done.returncode == 2 and "lies inside the run" in done.stderr


def test_the_command_writes_what_python_writes(runs, tmp_path):
    output, mine = tmp_path / "t.tex", tmp_path / "mine.tex"
    chosen = [runs["bad"], runs["good"]]
    done = command("table", *chosen, "--metrics=mae_nonzero", "--convention=nonzero_mae",
                   "--output", output)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "False\n"), done.stderr
    content = tabulate(chosen, convention="nonzero_mae", metrics=["mae_nonzero"])
    write_result(str(mine), content, RUN_TABLE)
    assert output.read_bytes() == mine.read_bytes()
    assert done.stdout == printed(content, 100)
