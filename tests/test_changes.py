"""The patches of `bench/changes.py` still apply, and each is a change of few files with a check."""

import re
import shutil
import subprocess

import pytest
from launching import ROOT, load_file

needs_git = pytest.mark.skipif(
    not shutil.which("git") or not (ROOT / ".git").exists(), reason="this is no checkout of git"
)


@needs_git
def test_every_patch_applies_and_touches_two_files_at_most_beside_tests_and_pages():
    changes = load_file(ROOT / "bench" / "changes.py")
    assert len(changes.PATCHES) == 12
    for name, patch in changes.PATCHES.items():
        command = [*changes.APPLY, "--check", patch]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{patch.name} no longer applies: {done.stderr}"
        size = changes.size_of(patch)
        assert 1 <= len(size.files) <= changes.MOST, f"{name}: {size.files}"
        assert f"+++ b/tests/test_change_{name}.py\n" in patch.read_text(encoding="utf-8")


@needs_git
def test_the_table_of_changes_names_what_each_patch_touches():
    changes = load_file(ROOT / "bench" / "changes.py")
    text = (ROOT / "WORKSPACE.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| .+? \| (.+?) \| `(\w+)` \|$", text)
    told = {name: sorted(re.findall(r"`([\w/]+\.\w+)`", cell)) for cell, name in rows}
    found = {
        name: sorted(file.removeprefix("msajax/") for file in changes.size_of(patch).files)
        for name, patch in changes.PATCHES.items()
    }
    assert told == found
