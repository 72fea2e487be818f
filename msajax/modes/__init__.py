"""Lists the modes of the command line: what each reads, and what it runs.

A mode takes plain options, which `flags.py` makes of the command line, so that a notebook can call
the same functions.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple


class Mode(NamedTuple):
    """Describes a mode: a file of this package, whose function `run` takes `Options` and a console.

    Attributes:
        flags: those that the mode reads.
        keys: of the configuration, those that the mode reads from the command line; None for all.
            The others are those of a run or a bundle.
    """

    flags: tuple[str, ...]
    keys: tuple[str, ...] | None = None

    def load(self, name: str) -> Callable[..., int]:
        """Imports the mode of that name and what it needs, and returns its function `run`."""
        return importlib.import_module(f"{__name__}.{name}").run


MODES = {
    "train": Mode(
        (
            *("workdir", "stop_after_epochs", "profile", "distributed", "join_seconds"),
            *("coordinator_address", "num_processes", "process_id"),
        )
    ),
    "evaluate": Mode(("workdir", "input", "output", "split", "models"), ()),
    "predict": Mode(
        ("bundle", "input", "output", "split", "models"),
        ("data.glove_path", "data.truncate", "data.allow_loss"),
    ),
    "inspect": Mode(("input", "output")),
    "convert": Mode(("input", "output")),
}


def __getattr__(name: str) -> Any:
    """Imports a mode's module at its first use: --help and some modes need not wait for JAX."""
    if name in MODES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
