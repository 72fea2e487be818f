"""What a person sees of a run: a bar on a terminal, one line an epoch in a log."""

import contextlib
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

logger = logging.getLogger(__name__)


class EpochProgress(contextlib.AbstractContextManager):
    """Shows the epochs of a run on standard error."""

    def __init__(self, epochs: int, done: int, selection: str) -> None:
        """Starts at `done` of at most `epochs`; validation minimises the metric `selection`."""
        self._epochs, self._selection = epochs, selection
        self._bar = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("epoch"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("compiling", total=epochs, completed=done)
            self._bar.start()

    def __exit__(self, *exc_info) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.stop()

    def epoch_done(self, lines: Sequence[Mapping[str, Any]], best: np.ndarray) -> None:
        """Shows one epoch; of seeds whose numbers are not finite it shows none.

        Args:
            lines: of metrics.jsonl, one per random seed that ran.
            best: `[S]`, every seed's smallest validation score so far.
        """
        valid = f"valid_{self._selection}"
        keys = ("train_loss", valid)
        known = {key: [x[key] for x in lines if x[key] is not None] for key in keys}
        mean = {key: _finite_mean(values) for key, values in known.items()}
        text = (
            f"train loss {mean['train_loss']:.4f}  valid {self._selection} {mean[valid]:.4f}  "
            f"best {_finite_mean(best):.4f}  seeds {len(lines)}/{len(best)}"
        )
        epoch = lines[0]["epoch"]
        if self._bar is not None:
            self._bar.update(self._task, completed=epoch, description=text)
        else:
            logger.info("epoch %d/%d  %s  %.1f s", epoch, self._epochs, text, lines[0]["seconds"])


def _finite_mean(values: Sequence[float]) -> float:
    values = np.asarray(values)
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan
