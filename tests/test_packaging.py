"""What the repository promises as a whole: it installs, launches, has no lint and one version."""

import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from survivors import ROOT, python

from msajax import __version__

REQUIREMENT_FILES = ("requirements.txt", "requirements-test.txt")

# Stands for Python both as the base interpreter and, copied by `-m venv`, as that of .venv. It
# writes down the folder and arguments of every `-m` run, and fails when FAIL names the module.
FAKE_PYTHON = """#!/usr/bin/env bash
if [[ $1 == -c ]]; then echo "{version} $0"; exit; fi
{{ printf '%s|' "$PWD" "${{@:2}}"; echo; }} >>"$LOG"
if [[ $2 == venv ]]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi
if [[ $2 == "${{FAIL:-}}" ]]; then exit 7; fi
"""


def read_requirements(name: str) -> list[Requirement]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


class Checkout:
    """The launch scripts and requirement files in a folder with a space, run with FAKE_PYTHON."""

    def __init__(self, parent: pathlib.Path):
        self.parent = parent
        self.root = parent / "a checkout"
        shutil.copytree(ROOT / "launch", self.root / "launch")
        for name in ("pyproject.toml", *REQUIREMENT_FILES):
            shutil.copy(ROOT / name, self.root)

    def fake_python(self, version: str) -> str:
        path = self.parent / f"python {version}"
        path.write_text(FAKE_PYTHON.format(version=version), encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    def launch(self, script: str, *arguments: str, **environment: str):
        """Returns the finished process and, for every `-m` run, [folder, module, argument, ...]."""
        log = self.parent / "log"
        log.write_text("", encoding="utf-8")
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHON"}
        process = subprocess.run(
            ["bash", str(self.root / "launch" / script), *arguments],
            cwd=self.parent,
            env={**inherited, "LOG": str(log), **environment},
            capture_output=True,
            text=True,
            timeout=1800,
        )
        runs = [line.split("|")[:-1] for line in log.read_text(encoding="utf-8").splitlines()]
        return process, runs

    def modules(self, script: str, **environment: str) -> list[str]:
        process, runs = self.launch(script, **environment)
        assert process.returncode == 0, process.stderr
        return [run[1] for run in runs]


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> Checkout:
    return Checkout(tmp_path)


def test_ruff_finds_nothing():
    done = python("-m", "ruff", "check", "--no-cache", "--output-format=concise", ".")
    assert done.returncode == 0, done.stdout + done.stderr


def test_whatever_the_package_reads_of_itself_is_shipped():
    with (ROOT / "pyproject.toml").open("rb") as file:
        shipped = tomllib.load(file)["tool"]["setuptools"]["package-data"]
    others = [p for p in (ROOT / "msajax").rglob("*") if p.is_file() and p.suffix != ".py"]
    others = [path for path in others if "__pycache__" not in path.parts]
    patterns = [
        f"{package.replace('.', '/')}/{pattern}"
        for package, found in shipped.items()
        for pattern in found
    ]
    assert len(others) > 10  # the templates of the report
    for path in others:
        assert any(path.relative_to(ROOT).match(pattern) for pattern in patterns), path


def test_citation_names_this_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [__version__]


@pytest.mark.parametrize("name", REQUIREMENT_FILES)
def test_installed_versions_satisfy(name: str):
    for requirement in read_requirements(name):
        assert requirement.specifier, f"{requirement} has no minimum"
        installed = importlib.metadata.version(requirement.name)
        assert requirement.specifier.contains(installed, prereleases=True), (
            f"{name} asks for {requirement}, {installed} is installed"
        )


def test_requirements_bring_neither_tensorflow_nor_torch():
    waiting = read_requirements("requirements.txt")
    seen: dict[str, set[str]] = {}  # name -> extras followed
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        extras = {"", *requirement.extras} - seen.setdefault(name, set())
        seen[name] |= extras
        for needed in map(Requirement, importlib.metadata.requires(name) or ()) if extras else ():
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(needed)
    assert {"jaxlib", "tensorstore"} <= seen.keys()  # the walk did go past requirements.txt
    unwanted = re.compile(r"(tensorflow|tf-nightly|keras|torch)(-|$)")
    assert [name for name in seen if unwanted.match(name)] == []


@pytest.mark.parametrize("script", ["local.sh", "test.sh"])
def test_an_old_python_or_none_is_refused_in_one_sentence(checkout: Checkout, script: str):
    tools = checkout.parent / "bin"
    tools.mkdir()
    for name in ("bash", "dirname"):
        (tools / name).symlink_to(shutil.which(name))
    for environment, why in (
        ({"PYTHON": checkout.fake_python("3.10.4")}, r"3\.10\.4 is not\."),
        ({"PATH": str(tools)}, "on PATH is: .*"),
    ):
        process, runs = checkout.launch(script, **environment)
        assert process.returncode == 2
        said = rf"msajax needs Python 3\.11 or newer .*{why}\n"
        assert re.fullmatch(said, process.stderr)
        assert (process.stdout, runs) == ("", [])


def test_local_trains_the_synthetic_configuration_and_arguments_of_test_go_to_pytest(
    checkout: Checkout,
):
    python = {"PYTHON": checkout.fake_python("3.12.1")}
    flag = "--config.train.epochs=3"
    process, runs = checkout.launch("local.sh", flag, "two words", **python, FAIL="msajax.main")
    assert process.returncode == 7  # the trainer's own
    root = str(checkout.root)
    assert [run[1] for run in runs] == ["venv", "pip", "msajax.main"]
    assert runs[1][-4:] == ["--editable", root, "--requirement", f"{root}/requirements.txt"]
    trainer = "msajax.main --config configs/synthetic.py --workdir runs/synthetic".split()
    assert runs[2] == [root, *trainer, flag, "two words"]
    process, runs = checkout.launch("test.sh", "-k", "metrics", **python)
    assert process.returncode == 0
    wanted = [x for n in REQUIREMENT_FILES for x in ("--requirement", f"{root}/{n}")]
    assert runs[0][-6:] == ["--editable", root, *wanted]
    assert runs[1][:2] == [root, "pytest"] and runs[1][-2:] == ["-k", "metrics"]


def test_pip_is_called_only_when_something_changed(checkout: Checkout):
    python = checkout.fake_python("3.12.1")
    assert checkout.modules("local.sh", PYTHON=python) == ["venv", "pip", "msajax.main"]
    assert checkout.modules("local.sh") == ["msajax.main"]
    assert checkout.modules("test.sh") == ["pip", "pytest"]
    assert checkout.modules("test.sh") == ["pytest"]
    assert checkout.modules("local.sh") == ["msajax.main"]
    with (checkout.root / "requirements.txt").open("a", encoding="utf-8") as file:
        file.write("another>=1\n")
    assert checkout.modules("local.sh") == ["pip", "msajax.main"]
    assert checkout.modules("test.sh") == ["pytest"]
    with (checkout.root / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("# another command\n")
    process, runs = checkout.launch("local.sh", PYTHON=python, FAIL="pip")  # made anew later
    assert (process.returncode, [run[1] for run in runs]) == (2, ["pip"])
    assert "requirements.txt" in process.stderr
    assert checkout.modules("local.sh", PYTHON=python)[-2:] == ["pip", "msajax.main"]


def test_an_environment_of_another_python_is_rebuilt(checkout: Checkout):
    first, second = checkout.fake_python("3.11.7"), checkout.fake_python("3.12.1")
    venv_python = checkout.root / ".venv" / "bin" / "python"
    rebuilt = ["venv", "pip", "msajax.main"]
    assert checkout.modules("local.sh", PYTHON=first) == rebuilt
    assert checkout.modules("local.sh", PYTHON=second) == rebuilt
    assert checkout.modules("local.sh", PYTHON=second) == ["msajax.main"]

    shutil.copy(checkout.fake_python("3.10.4"), venv_python)
    assert checkout.modules("local.sh", PYTHON=second) == rebuilt
    venv_python.unlink()
    venv_python.symlink_to(checkout.parent / "gone")
    assert checkout.modules("local.sh", PYTHON=second) == rebuilt
