"""Runs compared, and tables of them: who is paired with whom, what is refused and written."""

import csv
import io
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

import msajax
from msajax.comparison import compare as comparison
from msajax.comparison.compare import ALIKE as NOT_TOLD
from msajax.comparison.compare import BEST, compare, in_words, tabulate
from msajax.comparison.output import (
    BETTER,
    COMPARISON,
    RUN_TABLE,
    comparison_latex,
    comparison_rows,
    csv_text,
    latex,
    print_comparison,
    print_run_table,
    run_table_latex,
    run_table_rows,
)
from msajax.comparison.output import write as write_result
from msajax.comparison.statistics import holm
from msajax.errors import UserError
from msajax.report.compared import comparison_page, write_comparison

ROOT = pathlib.Path(__file__).resolve().parent.parent
RNG = np.random.default_rng(0)
IDS = [f"{video}[{i}]" for video in "abcdefghij" for i in range(4)]
LABELS = np.round(RNG.uniform(-3, 3, len(IDS)), 1)
GOOD = LABELS + RNG.normal(0, 0.2, (3, len(IDS)))
ALIKE = GOOD + RNG.normal(0, 0.02, GOOD.shape)
BAD = LABELS + RNG.normal(0, 1.5, (4, len(IDS)))


def write(path, scores, ids=IDS, labels=LABELS, separator=",", names=("id", "label", "score")):
    """A table with a column of scores for each seed; without one of ids where these are None."""
    id_, label, score = names
    seeds = [score] if len(scores) == 1 else [f"score_seed{k}" for k in range(len(scores))]
    rows = [[*([id_] if ids is not None else []), label, *seeds]]
    for i, y in enumerate(labels):
        rows.append([*([ids[i]] if ids is not None else []), y, *scores[:, i]])
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=separator).writerows(rows)
    return str(path)


@pytest.fixture
def files(tmp_path):
    """Good and bad predictions of the same samples, and some that are hardly others."""
    runs = {"good": GOOD, "bad": BAD, "alike": ALIKE}
    return {name: write(tmp_path / f"{name}.csv", scores) for name, scores in runs.items()}


def only(report, metric="mae") -> dict:
    (pair,) = report["pairs"]
    return pair["metrics"][metric]


def printed(report) -> str:
    console = Console(file=io.StringIO(), width=100)
    print_comparison(report, console)
    return console.file.getvalue()


# --- what is found ---


def test_a_clear_difference_has_a_winner_and_a_small_one_is_called_noise(files, tmp_path):
    values = only(compare([files["good"], write(tmp_path / "again.csv", GOOD)]))
    assert (values["difference"], values["p"], values["verdict"]) == (0, 1, "equal")
    report = compare([files["bad"], files["good"]])
    values = only(report)
    errors = [np.abs(run - LABELS).mean(axis=1) for run in (BAD, GOOD)]
    assert values["first"] == pytest.approx(errors[0].mean())
    assert values["second"] == pytest.approx(errors[1].mean())
    assert values["difference"] == pytest.approx(errors[0].mean() - errors[1].mean())
    assert values["p"] == values["p_holm"] < 0.01 and values["verdict"] == "second is better"
    assert only(report, "corr")["verdict"] == "second is better"
    assert report["samples"] == 40 and (report["unit"], report["groups"]) == ("video", 10)
    for low, high in (values[f"ci95_{over}"] for over in ("samples", "videos", "seeds")):
        assert 0 < low < values["difference"] < high
    said = " ".join(in_words(report))
    shown = f"{values['difference']:.3f}"
    assert f"mae: {files['good']} is better by {shown}, which is more than the noise" in said

    report = compare([files["good"], files["alike"]])
    values = only(report)
    assert values["verdict"] == "under the noise" and values["p"] > 0.05
    said = " ".join(in_words(report))
    assert "is under the noise (p = " in said and "includes 0" in said or "include 0" in said
    assert set(BETTER) == {
        getattr(comparison, name) for name in ("FIRST", "SECOND", "NOISE", "EQUAL", "UNDEFINED")
    }
    widest = max(
        (high - low) / 2
        for low, high in (values[f"ci95_{over}"] for over in ("samples", "videos", "seeds"))
    )
    assert f"a difference under about {widest:.3f} cannot be told from chance" in said
    assert re.search(r"mae ↓ .* noise", printed(report))


def test_what_training_again_would_change_may_make_noise_of_a_small_p(tmp_path):
    # Every sample of the first run is better, but by less than its seeds differ.
    spread = np.array([[0.1], [0.9]])
    first = write(tmp_path / "a.csv", LABELS + spread)
    second = write(tmp_path / "b.csv", LABELS + spread + 0.1)
    values = only(compare([first, second]))
    assert values["p"] < 0.01 and values["ci95_videos"][1] < 0 < values["ci95_seeds"][1]
    assert values["verdict"] == "under the noise"
    (sentence, *_) = in_words(compare([first, second]))
    assert "(the 95 % interval over random seeds includes 0)" in sentence


def test_several_runs_are_compared_with_the_first_and_p_is_adjusted(files):
    runs = [files["good"], files["bad"], files["alike"]]
    report = compare(runs)
    assert [(p["first"], p["second"]) for p in report["pairs"]] == [
        (runs[0], runs[1]), (runs[0], runs[2])
    ]
    small, large = sorted(pair["metrics"]["mae"]["p"] for pair in report["pairs"])
    adjusted = sorted(pair["metrics"]["mae"]["p_holm"] for pair in report["pairs"])
    assert adjusted == [2 * small, max(2 * small, large)]
    said = " ".join(in_words(report))
    assert f"All were compared with the first, {runs[0]}; p is adjusted for 2" in said
    text = printed(report)
    assert text.count("p Holm") == 3 and max(map(len, text.splitlines())) <= 100
    every = compare(runs, every_pair=True)
    assert len(every["pairs"]) == 3
    assert "Each was compared with each; p is adjusted for 3" in " ".join(in_words(every))


def test_comparison_says_what_is_undefined_or_unknown(tmp_path):
    ids = [f"{'ab'[i % 2]}[{i}]" for i in range(40)]
    one = write(tmp_path / "one.csv", GOOD[:1], ids)
    two = write(tmp_path / "two.csv", BAD, ids)
    report = compare([one, two])
    said = " ".join(in_words(report))
    assert "Only 2 video(s): the smallest p that can come out is about 0.5" in said
    assert f"Of one random seed ({one})" in said and only(report)["ci95_seeds"] is None
    assert f"{two} is the mean over its random seeds, each measured alone. If the scores" in said
    assert np.isnan(only(report)["ci95_videos"]).all()  # two videos show nothing of others
    assert re.search(r"mae ↓ .*\d +- +[\d.]+ +noise", printed(report))
    single = compare([write(tmp_path / "a.csv", BAD[:1]), write(tmp_path / "b.csv", GOOD[:1])])
    assert re.search(r"b.csv is better by [\d.]+ on these samples \(p = ", in_words(single)[0])
    # Ids that count within a split, as those of the README's corpus, are of no video.
    bare = [f"test_{i}" for i in range(40)]
    bare = [write(tmp_path / "c.csv", GOOD, bare), write(tmp_path / "d.csv", BAD, bare)]
    assert compare(bare)["unit"] == "sample"
    names = [str(i) for i in range(40)]
    report = compare(
        [write(tmp_path / "n.csv", GOOD, names), write(tmp_path / "m.csv", BAD, names)]
    )
    assert report["unit"] == "sample" and only(report)["ci95_videos"] is None
    assert "The ids name no videos: samples were exchanged one by one." in in_words(report)
    flat = write(tmp_path / "flat.csv", np.ones((1, 40)))
    report = compare([flat, write(tmp_path / "good.csv", GOOD)])
    values = only(report, "corr")
    assert values["verdict"] == "undefined" and np.isnan(values["p"])
    assert "Undefined: corr, spearman." in in_words(report)
    assert re.search(r"corr ↑ +- +0\.\d+ +- +- +- +-\n", printed(report))


# --- who is paired with whom ---


def test_rows_are_paired_by_ids_in_whatever_order_and_form(files, tmp_path):
    order = RNG.permutation(len(IDS))
    ids = [IDS[i] for i in order]
    labels = LABELS[order].astype(np.float32)  # printed with other digits
    path = tmp_path / "other.txt"
    names = ("Segment ID", "Ground Truth", "Prediction")
    write(path, BAD[:1, order], ids, labels, ";", names)
    report = compare([files["good"], str(path)])
    same = compare([files["good"], write(tmp_path / "plain.csv", BAD[:1])])
    assert only(report) == only(same) and report["notes"] == []
    native = [f"v_{i // 4}_{i}" for i in range(len(IDS))]
    theirs = [f"v_{i // 4}$_${i}" for i in range(len(IDS))]
    spelled = [write(tmp_path / "n.csv", GOOD, native)]
    spelled += [write(path, BAD[:1, order], [theirs[i] for i in order], LABELS[order])]
    assert only(compare(spelled)) == only(same)


def test_files_without_ids_are_paired_by_order_if_labels_agree(files, tmp_path):
    path = write(tmp_path / "p.txt", BAD[:1], None, LABELS, "\t",
                 ("", "Ground Truth", "Prediction"))  # fmt: skip
    named = write(tmp_path / "named.csv", BAD[:1])
    for runs in ([path, files["good"]], [files["good"], path]):
        report = compare(runs)
        swapped = [named if run == path else run for run in runs]
        assert only(report) == only(compare(swapped)) and report["unit"] == "video"
        (note,) = report["notes"]
        assert note == (
            f"{path} has no ids: its rows were paired with those of {files['good']} by their "
            "order, in which all labels agree."
        )
        assert note in " ".join(printed(report).split())
    bare = write(tmp_path / "bare.csv", GOOD, None)
    report = compare([path, bare])
    assert report["notes"] == [
        "No file has ids: rows were paired by their order, in which all labels agree."
    ]
    with pytest.raises(UserError, match=r"differ in the labels of 2 sample\(s\): 'a\[0\]'"):
        swapped = LABELS[[1, 0, *range(2, 40)]]
        compare([files["good"], write(tmp_path / "q.csv", GOOD, None, swapped)])
    with pytest.raises(UserError, match="short.csv has no ids, and cannot be paired by order"):
        compare([files["good"], write(tmp_path / "short.csv", GOOD[:, 1:], None, LABELS[1:])])


def run_of(folder, scores, split="test", ended=True):
    """A run's folder, as far as comparing reads it."""
    write(folder / "predictions" / f"{split}.csv", scores)
    (folder / "config.json").write_text("{}")
    if ended:
        (folder / "results.json").write_text("{}")
    return str(folder)


def test_runs_are_folders_or_their_files_and_must_have_ended(files, tmp_path):
    run = run_of(tmp_path / "run", BAD)
    expected = only(compare([files["good"], files["bad"]]))
    assert only(compare([files["good"], run])) == expected
    assert only(compare([files["good"], f"{run}/predictions/test.csv"])) == expected
    write(tmp_path / "run" / "predictions" / "valid.csv", ALIKE)
    valid = compare([run, files["good"]], split="valid")
    assert only(valid)["first"] == pytest.approx(np.abs(ALIKE - LABELS).mean())
    with pytest.raises(UserError, match="half holds no run that has ended: it has no results"):
        compare([files["good"], run_of(tmp_path / "half", BAD, ended=False)])
    with pytest.raises(UserError, match="There is no run and no file .*/absent"):
        compare([files["good"], str(tmp_path / "absent")])
    (tmp_path / "folds").mkdir()
    (tmp_path / "folds" / "folds.json").write_text("{}")
    write(tmp_path / "folds" / "predictions.csv", BAD)
    assert only(compare([files["good"], str(tmp_path / "folds")])) == expected
    with pytest.raises(UserError, match="whose predictions are those of test"):
        compare([files["good"], str(tmp_path / "folds")], split="valid")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"ids": [*IDS[:-2], "x[0]", "x[1]"]},
            r"do not hold the same samples: 2 in .*good.csv alone \('j\[2\]', 'j\[3\]'\) and 2 in "
            r".*other.csv alone \('x\[0\]', 'x\[1\]'\)",
        ),
        (
            {"ids": [f"x{i}" for i in range(40)]},
            r"no id in common, as 'a\[0\]' and 'x0' show: compare runs on the same split",
        ),
        (
            {"labels": LABELS + (np.arange(40) < 5)},
            r"differ in the labels of 5 sample\(s\): 'a\[0\]' .* against .*, 'a\[2\]' .*, …",
        ),
        ({"ids": [*IDS[:-1], IDS[0]]}, r"has the id 'a\[0\]' more than once"),
        ({"ids": [*IDS[:-1], ""]}, "row 40: the id is empty, though others are not"),
        ({"ids": [*IDS[:-1], "\x1b[31m\nred"]}, r"alone \('\\\\x1b\[31m\\\\nred'\)"),
    ],
)
def test_other_samples_and_labels_are_refused_by_name(change, message, files, tmp_path):
    other = write(tmp_path / "other.csv", BAD, **change)
    with pytest.raises(UserError, match=message) as caught:
        compare([files["good"], other])
    assert str(caught.value).isprintable()


def test_other_outputs_are_refused_and_classes_may_stand_in_another_order(files, tmp_path):
    def of_classes(name, classes, shares, labels) -> str:
        header = ["id", "label", "predicted", *(f"score_{c}" for c in classes)]
        rows = [[i, y, "?", *p] for i, y, p in zip("uvwxyz", labels, shares, strict=True)]
        with open(tmp_path / name, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
        return str(tmp_path / name)

    labels = ["no", "yes", "no", "yes", "no", "yes"]
    shares = RNG.dirichlet(np.ones(2), 6)
    one = of_classes("one.csv", ["no", "yes"], shares, labels)
    other = of_classes("other.csv", ["yes", "no"], shares[:, ::-1], labels)
    report = compare([one, other])
    assert report["metric"] == "cross_entropy"
    assert {v["difference"] for v in report["pairs"][0]["metrics"].values()} == {0}
    wrong = of_classes("wrong.csv", ["yes", "no"], shares, [*labels[:-1], "no"])
    with pytest.raises(UserError, match=r"1 sample\(s\): 'z' 'yes' against 'no'"):
        compare([one, wrong])
    third = of_classes("third.csv", ["no", "maybe"], shares, ["no"] * 6)
    with pytest.raises(UserError, match="do not predict the same: 'maybe', 'yes' in one alone"):
        compare([one, third])
    with pytest.raises(UserError, match="good.csv holds predictions of regression, and .*one"):
        compare([files["good"], one])


def test_conventions_can_be_compared(files):
    report = compare([files["good"], files["bad"]], convention="nonzero_mae")
    assert list(report["pairs"][0]["metrics"]) == ["mae_nonzero", "corr_nonzero"]
    assert report["metric"] == "mae_nonzero"


# --- what is written ---


def test_comparison_forms_hold_the_same_numbers(files, tmp_path):
    result = msajax.compare(files["bad"], pathlib.Path(files["good"]))
    assert "is better by" in str(result) and "mae ↓" in str(result) and "<pre" in (
        result._repr_html_()
    )
    assert repr(result).startswith("Comparison('")
    for ending in ("json", "csv", "tex", "html"):
        result.save(tmp_path / f"c.{ending}")
    stored = json.loads((tmp_path / "c.json").read_text())
    values = only(stored)
    assert values["verdict"] == "second is better" and stored["unit"] == "video"
    assert values["p"] == result["pairs"][0]["metrics"]["mae"]["p"]
    with open(tmp_path / "c.csv", newline="", encoding="utf-8") as file:
        (row, *rest) = csv.DictReader(file)
    assert len(rest) == 13 and row["metric"] == "mae"
    assert float(row["difference"]) == pytest.approx(values["difference"], rel=1e-8)
    assert float(row["ci95_videos_low"]) == pytest.approx(values["ci95_videos"][0], rel=1e-8)
    assert [r["metric"] for r in result.rows()] == [row["metric"], *(r["metric"] for r in rest)]
    text = (tmp_path / "c.tex").read_text()
    assert rf"mae & {values['first']:.3f} & \textbf{{{values['second']:.3f}}} & +" in text
    page = (tmp_path / "c.html").read_text()
    assert "bad.csv against good.csv" in page and page.count("<svg") == 1
    assert f"<td><bdi>{values['second']:.3f}</bdi></td>" in page and "is better by" in page
    with pytest.raises(UserError, match=r"c\.xls must end in \.json, \.csv, \.tex or \.html"):
        result.save(tmp_path / "c.xls")
    with pytest.raises(UserError, match="two runs or more"):
        msajax.compare(files["good"])
    (tmp_path / "link.csv").symlink_to(files["good"])
    with pytest.raises(UserError, match="link.csv is named twice"):
        msajax.compare(files["good"], str(tmp_path / "link.csv"))
    with pytest.raises(UserError, match="valid and test, not of 'train'"):
        msajax.compare(files["good"], files["bad"], split="train")


def test_comparison_escapes_names_in_every_form(tmp_path):
    nasty = r"50%_\input{x}&$#^~<b>[red]" + "\x1b[31m"
    names = (nasty, "calm")
    header = ["id", *(f"{k}_{n}" for k in ("label", "score") for n in names)]
    for name, shift in (("a_&_1.csv", 0.1), ("b%.csv", 0.2)):
        rows = [[f"v[{i}]", i, i * i, i + shift, i * i - shift] for i in range(5)]
        with open(tmp_path / name, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
    report = compare([str(tmp_path / "a_&_1.csv"), str(tmp_path / "b%.csv")])
    text = comparison_latex(report)
    table = text.partition("\\begin{tabular}")[2]
    assert r"50\%\_\textbackslash{}input\{x\}\&\$\#\textasciicircum{}" in table
    assert r"a\_\&\_1.csv against" in table and "\x1b" not in text
    rows = [line for line in table.splitlines() if line.startswith("mae")]
    assert len(rows) == 3 and all(len(re.findall(r"(?<!\\)&", row)) == 5 for row in rows)
    shown = printed(report)
    assert "\x1b" not in shown and "[red]" in shown and r"\x1b[31m" in shown.replace("\n", "")
    assert "\x1b" in csv_text(comparison_rows(report))  # data, in the quotes of CSV
    page = comparison_page(report)
    assert "<b>" not in page and "&lt;b&gt;" in page and "\x1b" not in page
    assert latex("a\nb") == r"a\textbackslash{}nb"


@pytest.mark.parametrize("ending", COMPARISON.endings)
def test_a_comparison_replaces_an_earlier_one_and_nothing_else(ending, files, tmp_path):
    report, path = compare([files["good"], files["bad"]]), tmp_path / f"out{ending}"
    path.touch()  # an empty file is nobody's
    write_comparison(str(path), report)
    written = path.read_bytes()
    write_comparison(str(path), report)
    assert path.read_bytes() == written
    mine = ('{"runs": []}', "id,label,score\n", "\\begin{tabular}{l}", "<p>mine</p>", "\xff")
    for content in mine:
        path.write_text(content, encoding="latin-1")
        said = f"^--output={path} is there already and holds no comparison: choose another name.$"
        with pytest.raises(UserError, match=said):
            write_comparison(str(path), report)
        assert path.read_text(encoding="latin-1") == content


def command(*arguments) -> subprocess.CompletedProcess:
    script = "import sys, msajax.main as m\ntry: m.run()\n"
    script += "finally: print('jax' in sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script, "--mode", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    # A busy machine has time to say what it waits for.
    done.stderr = re.sub(r"^.* \.\.\.\n", "", done.stderr, flags=re.MULTILINE)
    return done


def test_the_command_takes_runs_and_flags_in_any_order_and_needs_no_jax(files, tmp_path):
    output = tmp_path / "out.json"
    done = command("compare", files["bad"], "--output", output, files["good"])
    assert (done.returncode, done.stderr) == (0, "False\n"), done.stderr
    assert "is better by" in done.stdout and only(json.loads(output.read_text()))["p"] < 0.01
    done = command("evaluate", "--input", files["bad"], "--convention=nonzero_mae")
    assert (done.returncode, done.stderr) == (0, "False\n"), done.stderr
    assert "mae_nonzero ↓" in done.stdout and "acc7" not in done.stdout


def test_compare_command_mistake_is_one_line_and_nothing_is_written(files, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    good, bad = files["good"], files["bad"]
    for arguments, message in (
        ([good], "Comparing needs two runs or more"),
        ([good, bad, "--output", tmp_path / "c.txt"], "must end in .json, .csv, .tex or .html."),
        ([good, bad, "--output", bad], "is the run itself"),
        ([good, bad, "--split=train"], "predictions of valid and test"),
        ([good, bad, "--convention=simms"], "'simms' is none of"),
        ([good, bad, "--workdir=x"], "--mode=compare does not read --workdir"),
    ):
        done = command("compare", *arguments)
        assert done.returncode == 2 and done.stdout == "", arguments
        assert re.fullmatch(r"error: [^\n]+\nFalse\n", done.stderr) and message in done.stderr
        assert sorted(tmp_path.rglob("*")) == before
    done = command("inspect", good)
    assert done.returncode == 2 and "is not a flag; see --help" in done.stderr


# --- tables of many runs ---


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


def printed_table(content, width=80) -> str:
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
    shown = printed_table(tabulate([runs["alike"], runs["bad"], runs["good"]], metrics=["mae"]))
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


def test_table_forms_hold_the_same_numbers(runs, tmp_path):
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


def test_table_escapes_names_and_cuts_none(runs, tmp_path):
    long = run_of(tmp_path / f"50%_of_&_{'very_' * 12}long_$x$", GOOD)
    content = tabulate([long, runs["bad"]])
    text = run_table_latex(content)
    assert r"50\%\_of\_\&\_very\_" in text and r"long\_\$x\$ & " in text
    assert text.count("{") == text.count("}")
    for width in (80, 100):
        shown = printed_table(content, width)
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
    assert done.stdout == printed_table(content, 100)
