"""The page of an explanation: nothing of a corpus is taken for HTML, and it works offline."""

import html.parser
import json
import re
import shutil
import subprocess

import pytest

from msajax.report.explanation import page

EVIL = "</script><script>document.title='pwned'</script><img src=x onerror=alert(1)>"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def sample(name: str, **more) -> dict:
    return {
        "id": name, "why": "best predicted", "label": 1.2, "output": "sentiment", "score": 1.0,
        "baseline": 0.5, "weights": {"text": 0.7, "audio": 0.3}, "text": f"good {EVIL}",
        "words": ["good", EVIL, ""],
        "contributions": {"text": [0.4, -0.2, 0.0], "audio": [0.25]},
        "attention": [
            {"part": "encoder", "layer": 1, "from": "text", "to": "text", "steps_of_cells": [1, 1],
             "thousandths": [[900, 100, 0], [500, 250, 250], [0, 0, 0]]},
            {"part": "fusion", "layer": 0, "from": "text", "to": "audio", "steps_of_cells": [1, 1],
             "thousandths": [[1000], [1000], [0]], "heads": [[[1000], [999], [0]]] * 2},
            {"part": "pooled", "layer": 0, "from": "", "to": "", "steps_of_cells": [1, 1],
             "thousandths": [[321, 679], [500, 500]]},
        ],
        "completeness_error": 0.05,
    } | more  # fmt: skip


def explanation(*samples, **more) -> dict:
    completeness = {"median": 0.05, "max": 0.05, "relative_median": 0.1, "points": 32}
    sizes = {"text": 0.6, "audio": 0.25}
    return {
        "split": "test", "samples_in_split": 9, "seeds": 2, "task": "regression",
        "outputs": ["sentiment"], "modalities": ["text", "audio"], "with_words": [],
        "samples": list(samples), "attention": {"cells": 64, "heads": True, "heads_of_seed": 3},
        "summary": {"mean_absolute_contribution": sizes, "completeness": completeness},
    } | more  # fmt: skip


FOUND = explanation(
    sample(EVIL, why=f"most moved by {EVIL}"),
    sample("class", predicted=EVIL, label=EVIL, output=EVIL, text="once \u202egnihton",
           words=None),
    sample("pieces", words=["[CLS]", "go", "##od"], word_of_piece=[-1, 0, 0]),
    sample("absent", contributions={"text": [], "audio": []}, words=[], attention=[]),
)


def test_nothing_of_a_corpus_can_end_the_data_or_begin_a_script():
    text = page.render(FOUND | {"modalities": ["text", "\u202eaudio"]})
    assert len(re.findall("<script", text)) == len(re.findall("</script>", text)) == 2
    (data,) = re.findall(r'(?s)<script type="application/json" id="data">(.*?)</script>', text)
    assert not set("<>&") & set(data)
    assert json.loads(data)["samples"][0]["id"] == EVIL
    assert json.loads(data)["samples"][1]["text"] == "once \ufffdgnihton"
    assert json.loads(data)["modalities"] == ["text", "\ufffdaudio"]
    assert "innerHTML" not in text and "outerHTML" not in text and "document.write" not in text
    links = []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            links.extend(v for k, v in attrs if k in ("src", "href"))

    Parser().feed(text)
    assert links == ["data:,"]  # no request at all
    assert "that is not exact" in text.lower()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_every_sample_without_an_error(tmp_path, width):
    text = page.render(FOUND)
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    for k, shown in enumerate(FOUND["samples"], 1):
        done = subprocess.run(
            [
                *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"),
                *("--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}"),
                *(f"--window-size={width},900", f"{path.as_uri()}#sample={k}"),
            ],
            capture_output=True, text=True, timeout=1800, check=True,
        )  # fmt: skip
        assert "CONSOLE" not in done.stderr, done.stderr
        body, _ = done.stdout.split('<script type="application/json"')
        assert "<title>Explanation of scores</title>" in body
        escaped = shown["id"].replace("<", "&lt;").replace(">", "&gt;")
        assert f'<h2 id="id">{escaped}</h2>' in body
        assert ("0.400" in body) == bool(shown["contributions"]["text"])
        hidden = '<section aria-labelledby="attention-title" id="attention-section" hidden'
        assert (hidden in body) == (not shown["attention"])
        if shown["attention"]:
            offered = re.findall(r'<option value="([^"]*)"[^>]*>([^<]*)</option>', body)[4:]
            assert [label for _, label in offered] == [
                *("text to itself, encoder", "text to audio", "modalities to each other"),
                *("1", "mean of all", "1", "2"),
            ]
            assert "for heads of different seeds do not correspond" in body
        if width == 390:
            break
