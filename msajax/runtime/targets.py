"""Knows accelerators that a run can be planned or compiled for though they are not there."""

import math
import re
from typing import NamedTuple

from msajax.errors import UserError

# Bytes of one device, as its maker states them.
_MEMORY = {"tpu:v5e": 16 * 2**30, "tpu:v6e": 32 * 2**30, "gpu:h100": 80 * 10**9}


class Target(NamedTuple):
    """Describes devices of one kind.

    Attributes:
        platform: tpu or gpu.
        kind: v5e, v6e or h100.
        size: chips of a TPU along each axis, such as 2x4; or how many GPUs.
    """

    platform: str
    kind: str
    size: str

    @property
    def devices(self) -> int:
        """Counts the devices."""
        return math.prod(map(int, re.findall(r"\d+", self.size)))

    @property
    def memory(self) -> int:
        """Returns the bytes of one device."""
        return _MEMORY[f"{self.platform}:{self.kind}"]


def parse_target(text: str) -> Target:
    """Reads a target such as tpu:v5e:2x4 or gpu:h100:8; raises `UserError` for another text."""
    found = re.fullmatch(r"(tpu):(v5e|v6e):([1-9]\d?x[1-9]\d?)|(gpu):(h100):([1-9]\d{0,3})", text)
    if not found:
        raise UserError(
            f"--target={text} is no target: write tpu:v5e:2x4 or tpu:v6e:2x4 (chips along each "
            "axis), or gpu:h100:8 (how many)."
        )
    return Target(*(part for part in found.groups() if part))
