"""The floors of WORKSPACE.md hold, and the files that carry a rule are its only carriers."""

import ast
import functools
import pathlib

from msajax.corpus import pickles

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Each room imports only rooms that stand before it. What the configuration reads of the models lies
# beside them, and below it.
TABLE = "table and settings of models"
FLOORS = (
    *("errors", "checks", "files", "announce", "metrics", "tasks", TABLE, "config", "layers"),
    *("encoders", "spec", "corpus", "recordings", "preparation", "models", "runtime", "runs"),
    *("inference", "training", "results", "comparison", "robustness", "report", "experiment"),
    *("studies", "api", "cli", "main", "__main__"),
)
MODULES = sorted((ROOT / "msajax").rglob("*.py"))


@functools.cache
def imports(path: pathlib.Path) -> set[str]:
    """Every module that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def rooms_of(path: pathlib.Path) -> str:
    return room_of(*path.relative_to(ROOT / "msajax").with_suffix("").parts)


def room_of(room: str, *modules: str) -> str:
    is_table = room == "models" and modules[:1] == ("table",)
    is_table |= room == "models" and modules[:2] == ("peers", "settings")
    return TABLE if is_table else room


def test_the_package_is_nine_modules_and_rooms_of_the_field():
    names = {rooms_of(path) for path in MODULES}
    assert names == {"__init__", *FLOORS}
    assert len([path for path in MODULES if path.parent == ROOT / "msajax"]) <= 9


def test_no_import_climbs():
    climbing = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in MODULES
        if (room := rooms_of(path)) != "__init__"  # the front door, whose names load what has them
        for name in sorted(imports(path))
        if name.startswith("msajax.") and (other := room_of(*name.split(".")[1:])) in FLOORS
        if FLOORS.index(other) > FLOORS.index(room)
    ]
    assert climbing == []


def test_no_import_goes_in_a_circle():
    dotted = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES)
    names = dict(zip((name.removesuffix(".__init__") for name in dotted), MODULES, strict=True))
    left = {
        name: {other for other in imports(path) & names.keys() if not name.startswith(other)}
        for name, path in names.items()
    }
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert left == {}


LIBRARIES = {
    "orbax": {"runs/checkpoints.py"},
    "ml_collections": {"config/reading.py", "cli/flags.py"},
    "etils": {"runs/bucket.py"},
    "fsspec": {"runs/bucket.py"},
    "safetensors": {"inference/bundle.py", "encoders/folder.py", "runs/folder.py"},
    "tokenizers": {"encoders/tokens.py"},
    "huggingface_hub": {"encoders/folder.py"},
    "matplotlib": {"report/figures.py"},
    "av": {"recordings/media.py"},
    "pocketsphinx": {"recordings/words.py"},
    "faster_whisper": {"recordings/row.py"},
    "jinja2": {"report/page.py"},
    **dict.fromkeys(("pickle", "tensorflow", "torch"), set()),
}


def test_a_library_is_imported_only_where_it_belongs():
    users = {library: set() for library in LIBRARIES}
    for path in MODULES:
        for library in users.keys() & {name.split(".")[0] for name in imports(path)}:
            users[library].add(str(path.relative_to(ROOT / "msajax")))
    assert users == LIBRARIES


def test_buckets_are_reached_through_the_mirror_and_the_local_copy_alone():
    runs = ROOT / "msajax" / "runs"
    users = {path for path in MODULES if "msajax.runs.bucket" in imports(path)}
    assert users == {runs / "local_copy.py", runs / "mirror.py"}
    outside = {n for path in MODULES if path.parent != runs for n in imports(path)}
    ways = {n for n in outside if n.startswith(("msajax.runs.mirror.", "msajax.runs.local_copy."))}
    assert ways == {"msajax.runs.mirror.Mirror", "msajax.runs.local_copy.bundle_folder"}


def test_the_map_names_every_module_and_every_requirement():
    text = (ROOT / "WORKSPACE.md").read_text(encoding="utf-8")
    assert [p.name for p in MODULES if p.name != "__init__.py" and p.name not in text] == []
    assert [n for n in range(1, 37) if f"| R{n} |" not in text] == []


def test_the_reader_of_pickles_is_one_function_to_everybody_else():
    room = ROOT / "msajax/corpus/pickles"
    inner = {f"msajax.corpus.pickles.{path.stem}" for path in room.glob("[!_]*.py")}
    assert len(inner) == 3
    outside = [path for path in MODULES if path.parent != room]
    outside += [path for folder in ("tests", "bench") for path in (ROOT / folder).glob("*.py")]
    assert [str(path) for path in outside if imports(path) & inner] == []
    functions = [n for n in pickles.__all__ if not isinstance(getattr(pickles, n), type)]
    assert functions == ["read_pickle"]
