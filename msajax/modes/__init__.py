"""The modes of the command line: what each reads, and what it runs."""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple


class Mode(NamedTuple):
    """A mode: a file of this package, whose function `run` takes `Options` and a console.

    Attributes:
        flags: that it reads.
        keys: of the configuration that it reads; None for all. Without --config the others are
            those of a run or a bundle.
    """

    flags: tuple[str, ...]
    keys: tuple[str, ...] | None = None

    def load(self, name: str) -> Callable[..., int]:
        """The function of the mode of that name; what it needs is imported now."""
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
    """A mode's module, imported at its first use: most of them take a while."""
    if name in MODES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
