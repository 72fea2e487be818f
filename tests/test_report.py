"""The report of a run: what it says, that it is safe, small and always the same, how it looks."""

import dataclasses
import functools
import hashlib
import html
import html.parser
import json
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import refusals
from browser import CHROMIUM, browser
from made_runs import HOSTILE, KINDS, SCRIPT, add_extras, make_run
from refusals import places
from tiny import tiny_config

from msajax.cli.finished import report as write_report
from msajax.comparison.contenders import short_names
from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.experiment import artefacts
from msajax.report import charts, compared, figures, predicted, write
from msajax.report import page as pages
from msajax.report.content import read_content, read_folds
from msajax.report.page import shortened
from msajax.results.findings import finding
from msajax.runs.folder import RunFolder
from msajax.runs.lock import Lock

HEADINGS = {
    "sentiment": ["What was found", "Results", "Training", "Predicted against true",
                  "Residuals by label", "Confusion", "Modality weights", "Best and worst samples",
                  "Corpus", "Settings", "Repeat it"],
}  # fmt: skip
HEADINGS["outputs"] = [h for h in HEADINGS["sentiment"] if h != "Confusion"]
HEADINGS["classes"] = [h for h in HEADINGS["sentiment"] if h != "Residuals by label"]
HEADINGS["tokens"] = [*HEADINGS["sentiment"][:3], *HEADINGS["sentiment"][-4:]]


class Parsed(html.parser.HTMLParser):
    """What a page holds: its elements with attributes, and its text outside of styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.headings: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts).replace("\u00a0", " ")


def page_of(folder: RunFolder) -> str:
    return write.page(read_content(folder))


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """Leaves out of pages what takes twenty times as long as all the rest of them."""
    monkeypatch.setattr(figures.Chart, "svg", "")


@pytest.fixture(scope="module", params=KINDS)
def run(request, tmp_path_factory) -> tuple[str, RunFolder, str]:
    """A run of a task and its page."""
    folder = make_run(tmp_path_factory.mktemp("runs") / request.param, request.param)
    return request.param, folder, page_of(folder)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The file of the page of a task's run whose names are all of others; made when asked for."""

    @functools.cache
    def made(kind: str) -> pathlib.Path:
        folder = make_run(tmp_path_factory.mktemp("hostile") / kind, kind, hostile=True)
        if kind == "sentiment":
            add_extras(folder, hostile=True)
        write.make(folder)
        return pathlib.Path(folder.file("report.html"))

    return made


def test_the_panels_stand_in_their_order_in_forms_of_every_task(run):
    kind, folder, text = run
    page, results = Parsed(text), folder.read_results()
    assert page.headings == HEADINGS[kind]
    assert finding(results) in " ".join(page.text.split())
    assert [t for t in results["test"] if t not in page.text] == []
    assert text == page_of(folder)  # the same run, the same page
    assert len(text) < 300_000
    assert not re.search(r"20\d\d-\d\d", text)  # no date
    assert "text: 7 value(s) beyond +-10 standard deviations are clipped" in page.text
    assert "5 stored step(s) that are not zero are not read" in page.text
    assert "python -m msajax.main --workdir 'a run'" in page.text
    assert f"model.model_dim48{ModelConfig().model_dim}" in page.text


def test_a_page_needs_nothing_but_itself_and_its_drawings_no_eyes(run):
    page = Parsed(run[2])
    links = [of for _, attributes in page.elements for of in attributes.items()]
    assert {v[0] for k, v in links if k in ("href", "src", "xlink:href")} <= {"#", "d"}  # data:
    drawings = [of for tag, of in page.elements if tag == "svg" and "aria-hidden" not in of]
    assert drawings and all(d["role"] == "img" and len(d["aria-label"]) > 20 for d in drawings)
    colours = [v for k, v in links if k == "style" and re.search("(fill|stroke): *#", v)]
    assert colours == []  # all are names of the style sheet, which has them light and dark
    ids = [v for k, v in links if k == "id"]
    used = {v[1:] for k, v in links if k == "href" and v.startswith("#")}
    assert used <= set(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_text_of_others_stays_text(kind, hostile):
    text = hostile(kind).read_text(encoding="utf-8")
    page = Parsed(text)
    assert "\u202e" not in text
    assert not {"script", "img", "iframe", "object"} & {tag for tag, _ in page.elements}
    names = {key for _, attributes in page.elements for key in attributes}
    assert [name for name in names if name.startswith("on")] == []
    shown = {"id", "text", "path", "command", "setting"}
    shown |= {"name"} if kind in ("outputs", "classes") else set()
    shown |= {"modality"} if kind != "tokens" else set()
    for where in shown:
        start = HOSTILE[where].partition("\"")[0]
        assert start in page.text, where
    assert SCRIPT in page.text and "$x^2_{$" in page.text
    if kind == "classes":  # a dollar in a drawing is a dollar, and begins no formula
        (chart,) = re.findall(r"<svg.*?</svg>", text.split("Modality weights</h2>")[1])[:1]
        assert "name $x^2_{$" in chart


def test_numbers_are_those_of_the_predictions(tmp_path, undrawn):
    folder = make_run(tmp_path / "run", "sentiment")
    test = read_content(folder).test
    labels, scores = test.labels[:, 0], test.scores[:, 0]
    text = re.sub(r"\s+", " ", page_of(folder))
    signs = [(a, b) for a, b in zip(labels > 0, scores > 0, strict=True)]
    kept = [pair for pair, label in zip(signs, labels, strict=True) if label]
    two = text.split("Two classes: labels of 0 left out")[1]
    cells = [int(found) for found in re.findall(r"of the row\">(\d+)</td>", two)[:4]]
    wanted = [(False, False), (False, True), (True, False), (True, True)]
    assert cells == [kept.count(pair) for pair in wanted]
    ranked = np.argsort(np.abs(labels - scores), kind="stable")
    shown = re.findall(r"<code><bdi>(.*?)</bdi></code>", text)
    assert shown == [*test.ids[ranked[:-11:-1]], *test.ids[ranked[:10]]]
    right = np.mean(np.round(np.clip(labels, -3, 3)) == np.round(np.clip(scores, -3, 3)))
    assert f"{100 * right:.1f} % on the diagonal" in text
    worst = ranked[-1]
    assert f"label {labels[worst]:+.2f}".replace("-", "−") in text


def test_what_other_modes_leave_has_its_panels(tmp_path, undrawn):
    folder = make_run(tmp_path / "run", "sentiment")
    add_extras(folder)
    results = json.loads(pathlib.Path(folder.file("results.json")).read_text())
    calibration = {
        **{"kind": "interval", "level": 0.9, "normalised": True, "samples": 24, "by": "video"},
        **{"optimistic": True, "quantile": [1.5], "floor": [0.1]},
        "test": {"coverage": [0.875], "width": [1.25]},
    }
    content = read_content(folder)
    bounds = content.test.scores - 0.5, content.test.scores + 0.5
    test = dataclasses.replace(content.test, low=bounds[0], high=bounds[1])
    content = dataclasses.replace(
        content, results=results | {"calibration": calibration}, test=test,
        explanation_page="explanation.html",
    )  # fmt: skip
    page = Parsed(write.page(content))
    added = ["Calibration and coverage", "Robustness", "Explanation"]
    assert [h for h in page.headings if h not in HEADINGS["sentiment"]] == added
    for said in ("87.5 %", "Optimistic", "1.250", "at 90 %", "raise it", "explanation.html"):
        assert said in page.text, said
    nothing = write.page(dataclasses.replace(content, results=results | {"calibration": None}))
    assert "too few scores for a 90 % interval" in Parsed(nothing).text
    del content.explanation["summary"]
    with pytest.raises(UserError, match=r"^explanation\.json of the run is not of the form"):
        write.page(content)


def test_probabilities_have_a_temperature(tmp_path, undrawn):
    content = read_content(make_run(tmp_path / "run", "classes"))
    bins = [{"confidence": 0.5, "accuracy": 0.25, "count": 4}]
    bins.append({"confidence": None, "accuracy": None, "count": 0})
    found = {"kind": "temperature", "temperature": 1.5, "optimistic": False, "samples": 24}
    found["test"] = {"ece_before": 0.125, "ece_after": 0.0625, "bins": bins}
    content = dataclasses.replace(content, results={**content.results, "calibration": found})
    text = Parsed(write.page(content)).text
    assert "A temperature of 1.500" in text and "was 0.125 and is 0.062" in text


def test_large_corpora_make_pages_of_bounded_size(tmp_path):
    content = read_content(make_run(tmp_path / "run", "sentiment"))
    rng, size = np.random.default_rng(0), 20_000
    labels = np.clip(rng.normal(size=(size, 1)), -3, 3)
    scores = labels + rng.normal(size=(size, 1))
    test = dataclasses.replace(
        content.test,
        ids=np.array([f"i{i}" for i in range(size)]),
        labels=labels,
        scores=scores,
        sd=np.full((size, 1), np.nan),
        low=scores - 1,
        high=scores + 1,
        texts=np.array(["word " * 400] * size),
        weights={m: rng.random(size) for m in content.test.weights},
    )
    lines = [
        {"seed": s, "epoch": e, "train_loss": 1 / e, "valid_mae": 1 / e, "skipped": 0}
        for s in range(30)
        for e in range(1, 1001)
    ]
    failed = [{"seed": seed, "epoch": 1001, "step": 9} for seed in range(30)]
    results = {**content.results, "failed": failed}
    text = write.page(dataclasses.replace(content, results=results, test=test, lines=lines))
    assert len(text) < 1_000_000
    assert "Hexagons hold more samples" in text


def test_many_classes_are_put_together_and_counted_as_themselves(tmp_path):
    names = tuple(f"class {k}" for k in range(200))
    true = np.repeat(np.arange(200), 3)
    true = np.concatenate([true, np.repeat(np.arange(180, 199), 2)])  # these 19 are frequent
    given = np.where(true < 180, (true + 1) % 180, true)  # the rare ones are all wrong …
    given[true == 199] = 0  # … but stay among themselves
    content = read_content(make_run(tmp_path / "run", "classes"))
    many = dataclasses.replace(
        content.test,
        names=names,
        labels=true[:, None].astype(float),
        scores=np.eye(200)[given],
        weights={m: np.full(len(true), 0.5) for m in content.test.weights},
    )
    body = str(predicted.confusion(many, False).body)
    assert f"{100 * 95 / 638:.1f} % of the samples are given their own class" in body  # 19 times 5
    assert "on the diagonal" not in body and body.count('class="right"') == 19
    assert f">{181 * 3}</td>" in body  # all others, taken for each other
    for panel in (predicted.scatter(many), predicted.weights(many, False)):
        shown = re.findall(r"<text[^>]*>(class \d+|all others)</text>", str(panel.body))
        assert shown == [*names[180:199], "all others"]


def test_a_comparison_names_runs_by_what_tells_them_apart():
    def named(*paths):
        return list(short_names(paths, lambda name: shortened(name, 60)).values())

    assert named("This run", "/r/a/run/", "/r/b/run") == ["This run", "a/run", "b/run"]
    assert named("/r/a", "b/") == ["a", "b"]
    assert named("x/test.csv", "y/p/test.csv", "z/p/test.csv") == [
        "x/test.csv", "y/p/test.csv", "z/p/test.csv",
    ]  # fmt: skip
    long = f"{'n' * 70}/run"
    assert named(f"a/{long}", f"b/{long}") == [f"a/{'n' * 57}…", f"b/{'n' * 57}…"]
    assert named(f"{long}1", f"{long}2", "/") == ["run1", "run2", "/"]


def test_a_page_forbids_every_script():
    panel = pages.Panel.of("A panel", "charts.html", charts=[], text="<b>")
    text = pages.render("<i>", [panel])
    assert "script-src 'none'" in html.unescape(text)
    assert "<i>" not in text and "<b>" not in text
    assert pages.render("\ud800", []).encode()
    alike = [pages.Panel(f"This run against a{sign}b", panel.body) for sign in "/-"]
    found = Parsed(pages.render("t", alike)).elements
    ids = [own["id"] for tag, own in found if tag == "section"]
    assert ids == ["this-run-against-a-b", "this-run-against-a-b-1"]


def test_a_report_is_asked_for_by_a_key_and_made_anew_by_the_mode(tmp_path, undrawn):
    folder = make_run(tmp_path / "run", "sentiment")
    for name in ("bundle", "checkpoints"):
        (tmp_path / "run" / name).mkdir()
    for name in ("part", "README.md"):
        (tmp_path / "run" / "bundle" / name).touch()
    asked, silent = (tiny_config(train__report=value) for value in (True, False))
    assert artefacts.missing(folder, asked) == ["report.html"]
    assert artefacts.missing(folder, silent) == []
    assert write_report(folder.path) == folder.file("report.html")
    made = pathlib.Path(folder.file("report.html"))
    assert made.read_text(encoding="utf-8") == page_of(folder)
    assert artefacts.missing(folder, asked) == []
    other = make_run(tmp_path / "other", "sentiment")
    lines = pathlib.Path(folder.file("metrics.jsonl"))
    kept = lines.read_text()
    lines.write_text("{}\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 1"):
        write_report(folder.path, [other.path])
    assert not pathlib.Path(folder.file("comparison.json")).exists()  # without its page
    lines.write_text(kept)
    write_report(folder.path, [other.path])
    compared = made.read_text(encoding="utf-8")
    assert "This run against other" in compared
    write_report(folder.path)  # the comparison stays
    assert made.read_text(encoding="utf-8") == compared
    found = json.loads(pathlib.Path(folder.file("comparison.json")).read_text())
    assert found["runs"] == [folder.path, other.path]
    # Undefined values are null in the file, and shown as such.
    values = found["pairs"][0]["metrics"]["corr"]
    values |= {"difference": None, "p": None, "p_holm": None, "verdict": "undefined"}
    values |= {"ci95_samples": [None, None], "ci95_videos": [None, None]}
    pathlib.Path(folder.file("comparison.json")).write_text(json.dumps(found))
    assert "Undefined: corr." in page_of(folder)
    for wrong in ('{"pairs": [{}]}', '{"runs": ["a"], "pairs": []}'):
        pathlib.Path(folder.file("comparison.json")).write_text(wrong)
        with pytest.raises(UserError, match="comparison.json of the run is not of the form"):
            page_of(folder)
    pathlib.Path(folder.file("comparison.json")).write_text("null")
    with pytest.raises(UserError, match="comparison.json holds nothing but null"):
        page_of(folder)
    pathlib.Path(folder.file("comparison.json")).unlink()
    write_report(folder.path)
    assert "This run against" not in made.read_text(encoding="utf-8")
    with Lock(folder.path), pytest.raises(UserError, match="is in use by process"):
        write_report(folder.path)
    pathlib.Path(folder.file("results.json")).unlink()
    with pytest.raises(UserError, match="holds no run that has ended: it has no results.json"):
        write_report(folder.path)


def test_a_report_that_cannot_be_made_is_a_warning(tmp_path, caplog):
    folder = make_run(tmp_path / "run", "sentiment")
    pathlib.Path(folder.file("predictions", "test.csv")).unlink()
    artefacts.make_missing(folder, tiny_config(train__report=True))
    assert re.search("report.html cannot be made: .*test.csv cannot be read as CSV", caplog.text)


# --- files of figures ---


def test_colours_of_figures_are_those_of_paper():
    style = pathlib.Path(compared.__file__).parent / "templates" / "page.css"
    light = style.read_text(encoding="utf-8").partition("@media")[0]
    assert dict(re.findall(r"--(ink|muted|grid|paper|s[1-6]): (#[0-9a-f]{6});", light)) == {
        name: value for value, name in figures.NAMES.items()
    }


def test_every_chart_of_a_report_is_a_file_of_pdf_and_svg(tmp_path, caplog):
    folder = make_run(tmp_path / "run", "sentiment")
    add_extras(folder)
    other = make_run(tmp_path / "other", "sentiment")
    write_report(folder.path, [other.path], str(tmp_path / "figures"))
    made = {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    drawn = [
        *("what-was-found-test-mae-smaller-is-better", "training-validation-mae"),
        *("training-training-loss", "predicted-against-true", "residuals-by-label"),
        "confusion-seven-classes-clipped-to-3-and-rounded",
        *("confusion-two-classes-labels-of-0-left-out", "modality-weights"),
        *("robustness-a-modality-is-removed", "robustness-two-modalities-are-removed"),
        *("robustness-random-steps-are-removed", "robustness-noise-is-added"),
        "explanation-mean-absolute-contribution-by-modality",
        "this-run-against-other-difference-in-mae-with-its-95-intervals",
    ]
    assert sorted(made) == sorted(f"{name}.{form}" for name in drawn for form in ("pdf", "svg"))
    page = pathlib.Path(folder.file("report.html")).read_text(encoding="utf-8")
    assert page.count('<svg viewBox') == len(drawn) - 3  # tables and bars have figures, too
    for name, content in made.items():
        if name.endswith(".svg"):
            root = ElementTree.fromstring(content)
            colours = set(re.findall("#[0-9a-f]{6}", content.decode()))
            assert root.tag.endswith("svg") and colours <= set(figures.NAMES)
        else:  # its fonts are in it, as TrueType, and no date
            assert content.startswith(b"%PDF") and b"/FontFile2" in content
            assert b"/Type3" not in content and b"Date" not in content
    weights = made["modality-weights.svg"].decode()
    assert ">text</text>" in weights and ">audio</text>" in weights  # the key
    assert caplog.text == ""
    pages.write_figures(str(tmp_path / "figures"), made)  # over those that are there


DRAWN = """
import hashlib, sys
import msajax.experiment.run, msajax.cli.finished
assert not {"matplotlib", "PIL"} & sys.modules.keys()
from msajax.report.charts import contributions
files = contributions([("text", "0.5", 1.0), ("audio", "0.25", 0.5)]).files("name")
print(*sorted(hashlib.sha256(of).hexdigest() for of in files.values()))
"""


def test_figures_are_the_same_in_every_process_and_what_draws_them_is_loaded_for_them_alone():
    hashes = {**os.environ, "PYTHONHASHSEED": "1"}  # by which Python orders sets
    command = [sys.executable, "-c", DRAWN]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=hashes)
    drawn = charts.contributions([("text", "0.5", 1.0), ("audio", "0.25", 0.5)]).files("name")
    assert "name.pdf" in drawn
    assert done.stdout.split() == sorted(hashlib.sha256(of).hexdigest() for of in drawn.values())


def test_figures_go_to_a_folder_that_is_no_run_and_replace_nothing_else(tmp_path, undrawn):
    folder = make_run(tmp_path / "run", "tokens")
    report, mine = pathlib.Path(folder.file("report.html")), tmp_path / "mine"
    mine.mkdir()
    (mine / "training-training-loss.svg").write_text("<svg/>")
    for place, said in (
        (mine / "training-training-loss.svg", "is a file: figures go to a folder"),
        (tmp_path / "run" / "figures", "lies in the folder of a run"),
        (mine, "training-training-loss.svg is there already and is no figure of msajax"),
    ):
        with pytest.raises(UserError, match=said):
            write_report(folder.path, figures=str(place))
        assert not report.exists() and [path.name for path in mine.iterdir()] == [
            "training-training-loss.svg"
        ]


def test_charts_of_one_name_have_files_of_their_own_and_boxes_are_said(caplog):
    drawing = figures.Drawing("nothing", lambda axes: None)
    chart = figures.Chart("模态", drawing, [figures.Key("文本", 0), figures.Key("b", 1, "band")])
    files = pages.draw_figures([pages.Panel("Weights", "", [chart, chart])])
    assert sorted(files) == ["weights-2.pdf", "weights-2.svg", "weights.pdf", "weights.svg"]
    assert "文本".encode() in files["weights.svg"]
    assert "weights.pdf shows boxes for letters that its font lacks (态 文 本 模)" in caplog.text


# --- seen in a browser ---


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
def test_a_browser_shows_pages_at_every_width_without_a_word(hostile):
    paths = [hostile(kind) for kind in KINDS]
    with browser() as page:
        for path in paths:
            papers = set()
            for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
                page.open(path, width, scheme)
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide == width, f"{path.parent.name}: {wide} pixels at {width}"
                style = "getComputedStyle(document.body)"
                papers.add(page.evaluate(f"{style}.backgroundColor + {style}.color"))
                drawn = "[...document.querySelectorAll('figure > svg')].map(e => e.clientWidth)"
                assert min(page.evaluate(drawn)) > 250
            assert len(papers) == 2  # light, and dark
            page.open(path, 1280, "dark", media="print")
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert paper == "rgb(255, 255, 255)"
    assert page.said == []
    assert {address.split("#")[0] for address in page.asked} == {p.as_uri() for p in paths}


# --- files that were cut, lost or changed ---


def test_files_that_are_not_of_one_another_are_refused(tmp_path):
    folder = make_run(tmp_path / "run", "sentiment")
    path = pathlib.Path(folder.file("predictions", "test.csv"))
    rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(rows[:-5]), encoding="utf-8", newline="")
    said = r"test\.csv has 19 samples, not 24 as .*results\.json says\. Delete results\.json: the"
    with pytest.raises(UserError, match=said):
        read_content(folder)


def test_the_training_panel_says_what_is_lost_of_it(tmp_path, undrawn):
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


WRONG = ["x", None, [], {}, -1, 10**400]


def replaced(value, at, new):
    return refusals.replaced(value, at, lambda _: new)


def test_a_wrong_value_in_any_file_is_named_with_its_file(tmp_path, undrawn):
    folder = make_run(tmp_path / "run", "sentiment")
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
        of_file = {"data": value["data"]} if name == "config.json" else value
        for k, at in enumerate([(), *places(of_file)]):
            some = (WRONG[k % len(WRONG)], WRONG[(k + 2) % len(WRONG)])  # of a file of many places
            for wrong in some if name in ("results.json", "run.json") else WRONG:
                path.write_text(f"{json.dumps(replaced(value, at, wrong))}\n{rest}")
                try:
                    page_of(folder)
                except UserError as error:
                    assert name in str(error), (at, wrong)
                    refused[name] += 1
        path.write_text(text)
    assert all(count > 10 for count in refused.values()), refused


def test_the_message_says_where_a_file_is_wrong(tmp_path, undrawn):
    folder = make_run(tmp_path / "run", "sentiment")
    for name, keys, wrong, said in (
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
    ):
        path = pathlib.Path(folder.file(name))
        text = path.read_text()
        value = replaced(json.loads(text), keys.split(".") if keys else (), wrong)
        path.write_text(json.dumps(value))
        with pytest.raises(UserError, match=f"{name} .*{re.escape(said)}"):
            page_of(folder)
        path.write_text(text)


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
