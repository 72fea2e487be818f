"""Makes the panels of where results come from: the corpus, the settings, versions, the command."""

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from msajax.config.reading import changed_settings
from msajax.preparation.lost import describe_losses, describe_reading, describe_repairs
from msajax.report.content import Content, reading
from msajax.report.page import Panel, shortened
from msajax.runs import manifest

_VALUE = 300  # characters of a setting
_RESTORE = "restore it from a copy"


def corpus(content: Content) -> Panel:
    """Makes the panel of the corpus, and of what was repaired in it."""
    of_run = content.results["corpus"]
    clip = content.settings["data"]["clip"]
    with reading(manifest.RUN, _RESTORE):
        repaired = _repairs(content.run["repairs"], clip)
    modalities = [
        (name, width or "token ids", "read" if name in of_run["modalities"] else "left out")
        for name, width in of_run["widths"].items()
    ]
    facts = [("path", of_run["path"]), ("format", of_run["format"]), ("SHA-256", of_run["digest"])]
    if embedded := of_run.get("embedding"):
        told = ", ".join(f"{key} {value}" for key, value in embedded.items())
        facts.append(("text embedded by", told))
    sizes = [(name, f"{size:,}") for name, size in of_run["sizes"].items()]
    return Panel.of(
        "Corpus",
        "corpus.html",
        facts=facts,
        sizes=sizes,
        modalities=modalities,
        repaired=repaired,
    )


def _repairs(made: Mapping[str, Any], clip: float) -> list[tuple[str, str]]:
    """Says for each split what was repaired in it, and which of its steps are not read."""
    told = []
    for where, counts in made.items():
        if where == "corpus":
            told.append(("the file", describe_reading(counts)))
        else:
            said = (describe_repairs(counts, clip), describe_losses(counts))
            told.append((where, "; ".join(filter(None, said))))
    return [(where, said) for where, said in told if said]


def settings(content: Content) -> Panel:
    """Makes the panel of settings that differ from the defaults."""
    rows = [
        (key, _shown(value), _shown(default))
        for key, (value, default) in changed_settings(content.settings).items()
    ]
    return Panel.of("Settings", "settings.html", rows=rows)


def _shown(value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return shortened(", ".join(map(str, value)) or "none", _VALUE)
    if isinstance(value, bool):
        return str(value).lower()
    return shortened(str(value), _VALUE) or "none"


def repeat(content: Content) -> Panel:
    """Makes the panel of versions, of the machine, and of the command that repeats the run."""
    run = content.run
    with reading(manifest.RUN, _RESTORE):
        versions = [("msajax", run["msajax"]), ("Python", run["python"]), *run["packages"].items()]
        machine = f"{run['devices']} × {run['device_kind']}"
        machine += f" ({run['backend']})" * (run["backend"] != run["device_kind"])
        machine += f", {run['processes']} processes" if run["processes"] > 1 else ""
        machine += f", {run['cpus']} CPU cores" if run["cpus"] else ""
        versions += [("version of the numerics", run["numerics"]), ("devices", machine)]
        for name, of in (run.get("initial") or {}).items():
            told = ", ".join(f"{key} {value}" for key, value in of.items())
            versions.append((f"began from: {name}", shortened(told, _VALUE)))
        command = command_of(run["command"])
    return Panel.of("Repeat it", "repeat.html", versions=versions, command=command)


def command_of(arguments: Sequence[str]) -> str:
    """Returns the command that started a run; "" for one that a Python program has started."""
    program, *rest = arguments or [""]
    if os.path.basename(program) not in ("main.py", "__main__.py", "msajax"):
        return ""
    return shlex.join(["python", "-m", "msajax.main", *rest])
