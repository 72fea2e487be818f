"""Promises about a run's folder: one table says what it holds."""

import os
import pathlib
import shutil

import pytest
from tiny import tiny_config

from msajax.checks import differences
from msajax.errors import UserError
from msajax.files import replacing_folder, write_text
from msajax.runs import manifest
from msajax.runs.folder import RunFolder


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    """That of a run which has begun."""
    made = RunFolder(str(tmp_path))
    made.describe(tiny_config(), {"digest": "digest"}, {}, {})
    return made


def fill(folder: RunFolder) -> None:
    """Puts something into every place of the table."""
    for entry in manifest.ENTRIES:
        path = pathlib.Path(folder.file(entry.name))
        if entry.is_folder:
            path.mkdir(exist_ok=True)
            (path / "part").write_text("content")
        elif not path.exists():
            path.write_text("content")


def names(folder: RunFolder) -> set[str]:
    return {path.name for path in pathlib.Path(folder.path).iterdir()}


def test_the_table_names_everything_once_and_results_json_after_all_results():
    table = [entry.name for entry in manifest.ENTRIES]
    assert len(set(table)) == len(table)
    results = [entry for entry in manifest.ENTRIES if entry.is_result]
    assert results[-1].name == manifest.RESULTS and manifest.derived()[0] is results[-1]
    assert set(manifest.derived()) <= set(results)


def test_manifest_row_makes_an_artefact_the_runs_own(folder, added):
    pathlib.Path(folder.file("explanations")).write_text("")
    with pytest.raises(UserError, match=r"/explanations is a file; a run keeps a folder there: m"):
        folder.claim(tiny_config(), {"corpus digest": "digest"})
    pathlib.Path(folder.file("explanations")).unlink()
    pathlib.Path(folder.file("notes.html")).mkdir()
    with pytest.raises(UserError, match=r"/notes.html is a folder; a run keeps a file there: m"):
        folder.claim(tiny_config(), {"corpus digest": "digest"})
    pathlib.Path(folder.file("notes.html")).rmdir()
    folder.claim(tiny_config(), {"corpus digest": "digest"})


def test_an_ended_run_lacks_what_was_added_later_until_it_is_whole(folder, added):
    fill(folder)
    assert folder.missing_artefacts() == []
    report, explanations = folder.file("notes.html"), folder.file("explanations")
    pathlib.Path(report).unlink()
    shutil.rmtree(folder.file("predictions"))
    for path in pathlib.Path(explanations).iterdir():
        path.unlink()
    assert folder.missing_artefacts() == ["predictions", "notes.html", "explanations"]
    before = names(folder)
    with pytest.raises(ArithmeticError), replacing_folder(explanations) as path:
        pathlib.Path(path, "part.csv").touch()
        raise ArithmeticError
    assert names(folder) == before and "explanations" in folder.missing_artefacts()
    for text in ("first", "second"):  # into the empty folder, and into one that holds something
        with replacing_folder(explanations) as path:
            pathlib.Path(path, f"{text}.csv").write_text(text)
        assert os.listdir(explanations) == [f"{text}.csv"]
    write_text(report, "report")
    assert folder.missing_artefacts() == ["predictions"]
    assert names(folder) == before | {"notes.html"}


@pytest.mark.parametrize("moment", [1, 2])
def test_a_folder_that_cannot_take_its_place_leaves_the_former_one(moment, tmp_path, monkeypatch):
    rename, calls = os.rename, []

    def fail(*paths: str) -> None:
        calls.append(paths)
        if len(calls) == moment:
            raise OSError(28, "No space left on device")
        rename(*paths)

    (tmp_path / "explanations").mkdir()
    (tmp_path / "explanations" / "former").touch()
    monkeypatch.setattr(os, "rename", fail)
    said = f"^{tmp_path}/explanations cannot be written: No space left on device.$"
    with pytest.raises(UserError, match=said), replacing_folder(f"{tmp_path}/explanations"):
        pass
    assert [str(p.relative_to(tmp_path)) for p in sorted(tmp_path.rglob("*"))] == [
        *("explanations", "explanations/former")
    ]


def test_every_difference_between_two_mappings_is_said_with_both_sides():
    form = "{key}: {there} there, {here} here"
    here, there = {"a": 1, "b": "x", "c": None}, {"d": 2, "c": None, "b": "y", "a": 1.0}
    assert differences(here, there, form) == [
        "b: 'y' there, 'x' here", "d: 2 there, nothing here",
    ]
    assert differences({"c": None}, {}, form) == ["c: nothing there, None here"]
    assert differences(here, dict(reversed(here.items())), form) == []


def test_derived_artefacts_are_removed_before_results_are_replaced(folder, added):
    fill(folder)
    before = names(folder)
    folder.begin_results()
    gone = {entry.name for entry in manifest.derived()}
    at_the_top = {name for name in gone if "/" not in name}
    assert before - names(folder) == at_the_top >= {"results.json", "notes.html", "explanations"}
    assert not any(os.path.exists(folder.file(name)) for name in gone)
    folder.begin_results()  # there is nothing left to take away
