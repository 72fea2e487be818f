"""Deals random seeds out to the devices that train them one after another."""

import dataclasses
from typing import Any

import jax
import numpy as np

from msajax.runtime.devices import Layout


@dataclasses.dataclass(frozen=True)
class Deal:
    """Says which of S random seeds is in each of the P slots of the devices, for one epoch.

    Every device has as many slots as every other one. A slot too many holds a seed once more, which
    counts as stopped there, and so takes no step.

    Attributes:
        layout: says on which devices the slots are.
        seeds: `[P]`, the seed that is in each slot.
        stopped: `[P]` bool, slots whose seed takes no step.
        slots: `[S]`, the slot of each seed.
    """

    layout: Layout
    seeds: np.ndarray
    stopped: np.ndarray
    slots: np.ndarray

    def spread(self, state: Any) -> Any:
        """Puts arrays `[S, …]`, in the order of the seeds, into their slots: `[P, …]`."""
        return self._taken(state, self.seeds)

    def collect(self, state: Any) -> Any:
        """Puts arrays `[P, …]` in the order of the seeds again: `[S, …]`."""
        return self._taken(state, self.slots)

    def get(self, state: Any) -> Any:
        """Copies arrays `[P, …]` to the host, in the order of the seeds: `[S, …]`."""
        host = self.layout.get(state)
        return host if self.in_order else jax.tree.map(lambda x: x[self.slots], host)

    @property
    def in_order(self) -> bool:
        """Whether slot k holds seed k, and there is none beside these."""
        return np.array_equal(self.seeds, np.arange(len(self.slots)))

    def _taken(self, state: Any, which: np.ndarray) -> Any:
        if self.in_order:
            return state
        # By way of the host, whose memory that of virtual CPU devices is: no program to compile.
        return self.layout.put_state(jax.tree.map(lambda x: x[which], self.layout.get(state)))


def deal(stopped: np.ndarray, layout: Layout) -> Deal:
    """Deals seeds out so that no device has two more of those that still train than another.

    They stay in their order while that is so, because moving them takes time.

    Args:
        stopped: `[S]` bool, seeds that train no more.
        layout: of the run.
    """
    devices, count = layout.seed_devices if layout.maps_seeds else 1, len(stopped)
    places = -(-count // devices) * devices
    order = np.arange(places)  # from `count` on: slots too many
    idle = np.append(stopped, np.ones(places - count, bool))
    running = (~idle).reshape(devices, -1).sum(axis=1)
    if running.max() - running.min() > 1:
        one_each = np.argsort(idle, kind="stable")  # those that train are dealt out first
        order = one_each.reshape(-1, devices).T.ravel()
    return Deal(
        layout=layout,
        seeds=np.minimum(order, count - 1),
        stopped=idle[order],
        slots=np.argsort(order)[:count],
    )
