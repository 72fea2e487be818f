"""Holds what a command line asks of a mode."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msajax.config import Config
from msajax.encoders.folder import fetch
from msajax.errors import UserError
from msajax.files import (
    has_keys,
    refuse_inside,
    require_file_place,
    require_replaceable,
    write_json,
)
from msajax.runs.manifest import refuse_in_run


@dataclasses.dataclass(frozen=True)
class Options:
    """Holds the flags of a command line, and the configuration that it makes."""

    mode: str  # one of `modes.MODES`
    config: Config
    overrides: Mapping[str, Any]  # settings of `data` that the command line sets, by name
    given: Mapping[str, Any]  # the other flags by name; None for those that are not given
    paths: tuple[str, ...]  # the words that are no flags, of a mode that takes paths
    join: Callable[[], None]  # meets the other processes of a run, if flags say that there are any
    complain: Callable[[str], None]  # prints one line on a mistake
    experiment: str = ""  # path of the experiment file; "" if none is given
    # Settings of models' own, by the name of the model, also of those that are not chosen
    own: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def __getitem__(self, flag: str) -> Any:
        """Returns the value of a flag; None if it is not given."""
        return self.given[flag]

    def required(self, *names: str) -> tuple[Any, ...]:
        """Returns the values of flags; raises `UserError` for one that is not given."""
        for name in names:
            if not self.given[name]:
                raise UserError(f"--mode={self.mode} needs --{name}.")
        return tuple(self.given[name] for name in names)

    def with_fetched_encoder(self) -> "Options":
        """Replaces the names of encoders, if --download asks for it, by their folders.

        Raises `UserError` if none is given, or one cannot be fetched.
        """
        if not self.given.get("download"):
            return self
        model = self.config.model
        if not model.encoder_folders:
            raise UserError(
                "--download fetches --config.model.encoders or --config.model.text_encoder, and "
                "neither is given."
            )
        folders = {m: fetch(name) for m, name in model.encoder_folders.items()}
        model = model.with_encoders(folders)
        return dataclasses.replace(self, config=dataclasses.replace(self.config, model=model))

    def check_output(self, *kinds: Collection[str]) -> None:
        """Refuses an output that would replace its own input, a run's file or what others wrote.

        A mode writes reports of one or more kinds, each known by its keys. Raises `UserError`.
        """
        output = self["output"]
        if not output:
            return
        require_file_place(output)
        if self["input"]:
            refuse_inside(output, self["input"], "input")
        refuse_in_run(output)
        require_replaceable(
            output,
            f"report of --mode={self.mode}",
            lambda path: any(has_keys(path, keys) for keys in kinds),
        )

    def write_output(self, report: Mapping[str, Any]) -> None:
        """Writes a report as JSON to --output, if that is given; `check_output` comes before it.

        Raises `UserError` if it cannot be written.
        """
        if output := self["output"]:
            write_json(output, report)


def named_columns(given: Sequence[str] | None) -> dict[str, str]:
    """Reads --columns: what a table of recordings calls its columns, `name=column` each."""
    columns = dict(pair.partition("=")[::2] for pair in given or ())
    if not all(columns.values()):
        raise UserError("--columns must be pairs of a name and a column, as in group=actor.")
    return columns
