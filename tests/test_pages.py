"""The README and docs/: commands are known, links lead somewhere, nothing is left out."""

import importlib.util
import json
import os
import pathlib
import re
import textwrap

from launching import MANIFESTS, SCRIPTS, example
from pages import PAGES, ROOT, blocks, commands, fences, joined, prose, spans, words_of
from survivors import python

from msajax.config import known_keys
from msajax.corpus.formats import FORMATS
from msajax.metrics.table import TABLE, reported_by
from msajax.tasks import Task
from msajax.tasks.conventions import CONVENTIONS

README = PAGES["README.md"]

# --- commands that are parsed ---

# Forks for every command line, so that flags are defined anew and JAX is loaded once.
PARSER = """
import argparse, json, os, runpy, sys, traceback
import absl.app, msajax.experiment.run

NEEDED = {"train": ["workdir"], "sweep": ["workdir"], "convert": ["input", "output"]}
NEEDED["predict"] = ["bundle", "input", "output"]
NEEDED["generate"] = ["bundle", "input"]
NEEDED["export"] = ["bundle", "output"]

def of_flags(words):
    from absl.flags import FLAGS
    from msajax.cli import flags
    if len(words) == 1 and "=" not in words[0] and words[0] != "--help":
        name = words[0].removeprefix("--")
        config = name.removeprefix("config.")
        flags.configuration.check_key(config) if config != name else FLAGS[name]
        return
    flags.parse_flags(["msajax", *words])
    flags.refuse_strangers()
    flags.refuse_remote_paths()

def of_command(words):
    of_flags(words)
    from msajax.cli import flags
    options = flags.options()
    options.required(*NEEDED.get(options.mode, ()))

def of_script(words):
    def parse(self, *given):
        parse_args(self, *given)
        raise Parsed
    def run(main):
        absl.flags.FLAGS(sys.argv)
        raise Parsed
    parse_args, argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_args, parse
    absl.app.run = run
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except Parsed:
        return
    raise ValueError("no flag was parsed")

class Parsed(Exception):
    pass

wrong = {}
for line, kind, words in json.load(sys.stdin):
    read, write = os.pipe()
    if not os.fork():
        os.dup2(write, 1)
        os.dup2(write, 2)
        try:
            {"command": of_command, "flags": of_flags, "script": of_script}[kind](words)
            code = 0
        except BaseException as error:
            traceback.print_exc()
            code = int(not isinstance(error, SystemExit) or error.code != 0)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    os.close(write)
    with os.fdopen(read) as said:
        problem = said.read()
    if os.wait()[1]:
        wrong[line] = problem
json.dump(wrong, sys.stdout)
"""


def how_to_parse(line: str) -> tuple[str, list[str]] | None:
    """Which parser reads a command, and its arguments; None if it starts no Python of ours."""
    words = words_of(line)
    if words[:3] == ["python", "-m", "msajax.main"]:
        return "command" if words[3:] else "flags", words[3:]
    if words[0].startswith("--"):
        return "flags", words  # whose values may need others beside them
    if words[0] == "python" and words[1].startswith("bench/"):
        return "script", words[1:]
    return None


def test_every_command_is_known_to_its_parser():
    # The launch files' own examples are run by test_launch.py, on stand-ins for a cluster; the two
    # scripts by test_packaging.py; the picture is drawn below; a sweep writes winner.py.
    elsewhere = {"bash launch/local.sh", "bash launch/test.sh", "python bench/picture.py"}
    for name in [*SCRIPTS, *MANIFESTS]:
        elsewhere.add(joined(textwrap.dedent(example(name))))
    asked = []
    for page in PAGES:
        lines = commands(page)
        lines += [s for s in spans(page) if re.match(r"--[a-z]|python (-m|bench/)", s)]
        for line in lines:
            if line.partition("  #")[0].rstrip() in elsewhere or "winner.py" in line:
                continue
            if "my_model.py" in line or "my_loss.py" in line:
                continue  # blocks of the page, which test_own_model.py runs with their commands
            assert (parsed := how_to_parse(line)), f"{page}: no test runs {line!r}"
            asked.append((line, *parsed))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = python("-c", PARSER, env=environment, input=json.dumps(asked))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}
    assert len(asked) > 60  # they were found


def test_every_block_is_of_a_language_whose_blocks_are_tested():
    for page in PAGES:
        for language, code in fences(page):
            assert language in ("bash", "python", "text"), f"{page}: ```{language}"
            if language == "text":
                assert not re.search(r"(?m)^\s*(python|bash|msajax|--)", code), page
        if page not in ("README.md", "docs/python.md", "docs/recipes.md", "docs/sweep.md"):
            assert blocks(page, "python") == [], f"{page}: no test runs its Python"


def test_every_setting_that_is_named_exists():
    keys = set(known_keys())
    for page in PAGES:
        for span in spans(page):
            named = re.fullmatch(r"((?:data|model|optim|train|mesh)\.[a-z_.]+)( ?=.*)?", span)
            if named and not span.endswith(".pkl") and "late_fusion" not in span:
                assert named[1] in keys, f"{page}: {span}"


def test_every_metric_floor_format_and_experiment_has_its_row():
    def first_cells(page: str) -> set[str]:
        cells = re.findall(r"(?m)^\| (.*?) \|", PAGES[page])
        return {name.strip("`") for cell in cells for name in cell.split(", ")}

    of_samples = {m for what in ("classes", "labels", "tokens") for m in reported_by(what)}
    listed = [*(TABLE.keys() - of_samples), *CONVENTIONS]
    listed += [f"({floor.mark})" for floor in Task.floor_words.values()]
    assert set(listed) <= first_cells("docs/metrics.md")
    assert of_samples <= set(spans("docs/metrics.md"))
    assert set(FORMATS) <= first_cells("docs/files.md")
    files = {name for name in first_cells("docs/models.md") if name.endswith(".py")}
    assert files == {path.name for path in ROOT.glob("configs/*.py")}


# --- what else a page must keep ---


def anchors(path: pathlib.Path) -> set[str]:
    """What the headings of a file are called in links."""
    headings = re.findall(r"(?m)^#+ (.*)$", path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_to_a_file_and_a_heading():
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, heading = target.partition("#")
            found = (ROOT / page).parent / path if path else ROOT / page
            assert found.exists(), f"{page}: {target}"
            if heading:
                assert heading in anchors(found), f"{page}: {target}"


def test_the_readme_is_short_and_leads_to_every_page():
    assert len(README.splitlines()) <= 150
    for page in PAGES:
        assert page == "README.md" or f"({page})" in README, page


def test_pages_begin_with_what_they_are_for_and_repeat_nothing():
    seen = {}
    for page in PAGES:
        for line in prose(page).splitlines():
            if len(line) > 60:
                assert seen.setdefault(line, page) == page, f"{page} repeats {seen[line]}: {line}"
    for page, text in PAGES.items():
        assert page == "README.md" or re.match(r"# .+\n\nThis page ", text), page


def test_the_picture_is_drawn_from_the_tables():
    spec = importlib.util.spec_from_file_location("picture", ROOT / "bench" / "picture.py")
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    assert picture.draw(picture.panels()) == picture.PICTURE.read_text(encoding="utf-8")
    # The recipe's result stands in three places.
    mae = picture.cells("README.md", "msajax", "MAE")
    assert mae == picture.cells("docs/results.md", "all of CMU-MOSI", "MAE")
    recipe = (ROOT / "configs" / "mosi.py").read_text(encoding="utf-8")
    assert f"test MAE {mae.replace('±', '+-')}" in recipe
