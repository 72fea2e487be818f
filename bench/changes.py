"""How many files a change of a usual kind touches: each is made on a copy, and its check run there.

    python bench/changes.py [NAME …] [--without]

The changes are the patches of tests/changes, NAME.patch each, which brings its own check,
tests/test_change_NAME.py. Each is applied to a copy of the project's files as they are here. Prints
a line for each: how long its check took, whether it passed, the lines that it adds, and the files
that it touches beside tests and pages; the exit code is 1 if one fails or touches more than two.
With --without the copy gets the tests alone: then every check must fail.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATCHES = {path.stem: path for path in sorted((ROOT / "tests" / "changes").glob("*.patch"))}
MOST = 2  # files beside tests and pages
BESIDE = ("tests/", "docs/", "README.md", "WORKSPACE.md")
# A line of context on either side of a hunk must be there; it may have moved.
APPLY = ("git", "apply", "-C1")


class Size(NamedTuple):
    """What a patch touches beside tests and pages, and how many lines it adds there and in them."""

    files: list[str]
    lines: int
    lines_beside: int


def size_of(patch: pathlib.Path) -> Size:
    found = subprocess.run(
        ["git", "apply", "--numstat", patch], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = [line.split("\t") for line in found.stdout.splitlines()]
    added = {file: int(lines) for lines, _, file in rows}
    files = [file for file in added if not file.startswith(BESIDE)]
    lines = sum(added[file] for file in files)
    return Size(files, lines, sum(added.values()) - lines)


def copy_to(folder: pathlib.Path) -> None:
    """Copies the files that git knows, as they are here, and new ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():  # and not deleted
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def run(name: str, without: bool) -> tuple[bool, float, str]:
    """Whether a change's check passes on a copy, the seconds that it took, and what it said."""
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        copy_to(folder)
        command = [*APPLY, *["--include=tests/*"] * without, PATCHES[name]]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        began = time.monotonic()
        if done.returncode == 0:
            check = f"tests/test_change_{name}.py"
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", check]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        return done.returncode == 0, time.monotonic() - began, done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--without", action="store_true")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - PATCHES.keys():
        parser.error(f"no change is called {min(unknown)}: choose of {', '.join(PATCHES)}")
    wrong = 0
    for name in chosen.names or PATCHES:
        size = size_of(PATCHES[name])
        passed, seconds, said = run(name, chosen.without)
        fits = len(size.files) <= MOST
        verdict = "ok" if passed and fits else "failed" if not passed else "too many files"
        added = f"+{size.lines}, tests and pages +{size.lines_beside}"
        print(
            f"{name:10} {seconds:5.1f} s  {verdict:7} {added:28} {', '.join(size.files)}",
            flush=True,
        )
        if not passed and not chosen.without:
            print(said[-3000:], file=sys.stderr)
        wrong += passed if chosen.without else not (passed and fits)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
