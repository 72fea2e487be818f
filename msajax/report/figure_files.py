"""Writes the charts of a page as files of figures, PDF and SVG, which papers can include."""

import itertools
import os
import re
from collections.abc import Mapping, Sequence

from msajax.errors import UserError, writing
from msajax.files import write_bytes
from msajax.report.figures import PROGRAM
from msajax.report.page import Panel

_LONGEST = 80  # characters of a name


def draw_figures(panels: Sequence[Panel]) -> dict[str, bytes]:
    """Draws every chart of a page as PDF and SVG; returns the bytes of the files by their names.

    A name is made of the heading of the panel and the title of the chart. The same page gives the
    same files.
    """
    found: dict[str, bytes] = {}
    for panel in panels:
        for chart in panel.charts:
            words = re.sub("[^a-z0-9]+", "-", f"{panel.heading} {chart.title}".lower())
            plain = name = words[:_LONGEST].strip("-")
            for count in itertools.count(2):
                if f"{name}.pdf" not in found:
                    break
                name = f"{plain}-{count}"
            found |= chart.files(name)
    return found


def write_figures(folder: str, figures: Mapping[str, bytes]) -> None:
    """Writes files of figures into a folder, which is made if needed, each whole or not at all.

    Files of these names that msajax has written before are replaced.

    Raises:
        UserError: before anything is written, if one is there that it has not; or if they cannot
            be written.
    """
    for name in figures:
        path = os.path.join(folder, name)
        if os.path.lexists(path) and not _is_ours(path):
            raise UserError(f"{path} is there already and is no figure of msajax: move it away.")
    with writing(folder):
        os.makedirs(folder, exist_ok=True)
    for name, content in figures.items():
        write_bytes(os.path.join(folder, name), content)


def _is_ours(path: str) -> bool:
    """Says whether a file is a figure that names this program as its maker."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        content = file.read()
    return f"/Creator ({PROGRAM})".encode() in content or f">{PROGRAM}<".encode() in content
