"""The floors of WORKSPACE.md hold, and the files that carry a rule are its only carriers."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

from msajax.data import safe_pickle

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLOORS = [
    {"errors", "version", "checks", "files", "early", "announce"},
    {"pretrained"},
    {
        *("spec", "bootstrap", "calibration", "measures", "metrics", "conventions", "legend"),
        *("config", "tasks"),
    },
    {"data", "models"},
    {"runtime"},
    {"runs"},
    {"inference"},
    {"training"},
    {"evaluation"},
    {"building"},
    {"experiment", "default_experiment"},
    {"family"},
    {"cross_validation", "ablation"},
    {"sweeps"},
    {"modes"},
    {"api", "flags"},
    {"comparing"},
    {"main"},
    {"__main__"},
]
MODULES = sorted((ROOT / "msajax").rglob("*.py"))


def imports(path: pathlib.Path) -> set[str]:
    """Every module that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def floor_of(room: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if room in rooms)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_import_climbs(path):
    room = path.relative_to(ROOT / "msajax").parts[0].removesuffix(".py")
    if room == "__init__":
        return  # the package's own front door
    for name in imports(path):
        if not name.startswith("msajax.") or (other := name.split(".")[1]) == room:
            continue
        known = {r for rooms in FLOORS for r in rooms}
        if other not in known:
            assert path.name == "main.py", f"{path} imports msajax.{other} from the front door"
            continue
        assert floor_of(other) < floor_of(room) or (
            floor_of(other) == floor_of(room) <= 2
        ), f"{path} imports msajax.{other}"


@pytest.mark.parametrize(
    ("library", "only"),
    [
        ("orbax", {"runs/checkpoints.py"}),
        ("ml_collections", {"config/reading.py", "flags.py"}),
        ("etils", {"runs/remote/object_store.py"}),
        ("fsspec", {"runs/remote/object_store.py"}),
        ("safetensors", {"inference/bundle_files.py", "pretrained/weights.py", "runs/frozen.py"}),
        ("tokenizers", {"pretrained/tokens.py"}),
        ("huggingface_hub", {"pretrained/hub.py"}),
        (
            "rich",
            {
                *("main.py", "api.py", "training/progress.py"),
                *(f"evaluation/{name}.py" for name in ("tables", "cost_tables", "sweep_tables")),
                *(f"evaluation/{name}_tables.py" for name in ("ablation", "robustness")),
                *("evaluation/comparison_output.py", "evaluation/explanation/summary.py"),
                *(f"modes/{m}.py" for m in ("train", "evaluate", "predict", "inspect", "convert")),
                *(f"modes/{m}.py" for m in ("embed", "ablate", "robustness", "compare")),
                *(f"modes/{m}.py" for m in ("explain", "export", "report", "sweep", "table")),
                *("modes/generate.py", "evaluation/run_table_output.py"),
                "data/inspection_tables.py",
            },
        ),
        ("matplotlib", {"evaluation/report/figures.py"}),
        ("jinja2", {"evaluation/report/page.py"}),
        ("pickle", set()),
        ("tensorflow", set()),
        ("torch", set()),
    ],
)
def test_a_library_is_imported_only_where_it_belongs(library, only):
    users = {
        str(path.relative_to(ROOT / "msajax"))
        for path in MODULES
        if any(name.split(".")[0] == library for name in imports(path))
    }
    assert users == only


def test_buckets_are_reached_through_the_mirror_and_the_local_copy_alone():
    remote = ROOT / "msajax" / "runs" / "remote"
    inside = {f"msajax.runs.remote.{name}" for name in ("object_store", "uploads")}
    users = {path for path in MODULES if inside & imports(path)}
    assert users == {remote / f"{name}.py" for name in ("local_copy", "mirror", "uploads")}
    outside = {n for p in MODULES if p.parent != remote for n in imports(p) if "runs.remote." in n}
    assert {name.partition("runs.remote.")[2] for name in outside} == {
        *("mirror", "mirror.Mirror", "local_copy", "local_copy.bundle_folder")
    }


def test_the_map_names_every_module():
    text = (ROOT / "WORKSPACE.md").read_text(encoding="utf-8")
    missing = [p.name for p in MODULES if p.name not in ("__init__.py", "version.py")]
    missing = [name for name in missing if name not in text]
    assert missing == []


def test_the_reader_of_pickles_is_one_function_to_everybody_else():
    room = ROOT / "msajax/data/safe_pickle"
    inner = {f"msajax.data.safe_pickle.{path.stem}" for path in room.glob("[!_]*.py")}
    assert len(inner) == 5
    outside = [path for path in MODULES if path.parent != room]
    outside += [path for folder in ("tests", "bench") for path in (ROOT / folder).glob("*.py")]
    assert [str(path) for path in outside if imports(path) & inner] == []
    functions = [n for n in safe_pickle.__all__ if not isinstance(getattr(safe_pickle, n), type)]
    assert functions == ["read_pickle"]


def test_every_requirement_has_a_row():
    text = (ROOT / "WORKSPACE.md").read_text(encoding="utf-8")
    assert [n for n in range(1, 37) if f"| R{n} |" not in text] == []


@pytest.mark.parametrize("mode", ["inspect", "convert", "compare", "table", "evaluate"])
def test_what_needs_no_jax_does_not_wait_for_it(mode):
    script = f"import sys, msajax.modes.{mode}; print('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_parameter_lists_are_short(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 350
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            of = node.args
            names = [a.arg for a in (*of.posonlyargs, *of.args, *of.kwonlyargs)]
            given = [name for name in names if name not in ("self", "cls")]
            assert len(given) <= 7, f"{node.name} takes {', '.join(given)}"


def test_the_files_that_a_change_touches_are_there():
    text = (ROOT / "WORKSPACE.md").read_text(encoding="utf-8")
    _, table = text.split("Twelve changes", 1)
    rows = re.findall(r"(?m)^\| (?!change |---)(.+?) \| (.+) \|$", table.split("\n\nKeys")[0])
    assert len(rows) == 12
    for change, files in rows:
        named = re.findall(r"`([a-z_/]+\.py)`", files)
        assert 1 <= files.count("`") // 2 <= 2, change
        assert [name for name in named if not (ROOT / "msajax" / name).is_file()] == []
