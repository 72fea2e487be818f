"""Says what the time of training steps goes into, by kinds of operations of the compiled program.

`jax.profiler` records when each operation of a compiled program ran; the program's own text says
what an operation is. Times of operations that run beside each other are added.
"""

import collections
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

# In this order: an operation that XLA fused of several kinds counts as the first one of them.
KINDS = ("products", "optimiser", "reductions", "element-wise", "transposes and copies")
CONTAINERS = {"while", "call", "conditional", "async-start", "async-done"}  # whose parts are events
MOVES = {
    *("bitcast", "broadcast", "concatenate", "constant", "copy", "copy-start", "copy-done"),
    *("dynamic-slice", "dynamic-update-slice", "get-tuple-element", "pad", "parameter", "reshape"),
    *("slice", "transpose", "tuple"),
}
LIBRARY_PRODUCT = re.compile(r'custom_call_target="[^"]*(gemm|matmul|onednn|cublas)', re.IGNORECASE)
INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = .*?([a-z][\w\-]*)\(")


class Instruction(NamedTuple):
    """Holds a line of a compiled program.

    Attributes:
        opcode: what it computes, such as dot or fusion.
        line: its text.
    """

    opcode: str
    line: str


class Program:
    """Reads the text of a compiled program (HLO)."""

    def __init__(self, text: str) -> None:
        """Finds its instructions, those that each fusion holds, and those of the optimiser."""
        self.instructions: dict[str, Instruction] = {}
        self._bodies: dict[str, list[Instruction]] = {}
        body: list[Instruction] = []
        for line in text.splitlines():
            if line.endswith("{") and "->" in line:
                name = re.match(r"(?:ENTRY )?%?([\w.\-]+)", line)[1]
                body = self._bodies[name] = []
            elif found := INSTRUCTION.match(line):
                instruction = Instruction(found[2], line)
                body.append(instruction)
                self.instructions[found[1]] = instruction
        self._of_optimiser = _optimiser_frames(text)

    def kind(self, name: str) -> str | None:
        """Returns the kind of an instruction; None for one whose parts are instructions again."""
        instruction = self.instructions[name]
        if instruction.opcode in CONTAINERS:
            return None
        parts = list(self._parts(instruction))
        opcodes = {part.opcode for part in parts}
        if opcodes & {"dot", "convolution"} or LIBRARY_PRODUCT.search(instruction.line):
            return "products"
        if any(_frame(part.line) in self._of_optimiser for part in parts):
            return "optimiser"
        if opcodes & {"reduce", "reduce-window"}:
            return "reductions"
        return "transposes and copies" if opcodes <= MOVES | {"fusion"} else "element-wise"

    def _parts(self, instruction: Instruction) -> Iterator[Instruction]:
        yield instruction
        called = re.search(r"calls=%?([\w.\-]+)", instruction.line)
        if instruction.opcode == "fusion" and called:
            for part in self._bodies[called[1]]:
                yield from self._parts(part)


def _frame(line: str) -> int:
    found = re.search(r"stack_frame_id=(\d+)", line)
    return int(found[1]) if found else 0


def _optimiser_frames(text: str) -> set[int]:
    """Finds the stack frames, by number, that were called from the optimiser's code."""

    def table(name: str, fields: str) -> dict[int, tuple[str, ...]]:
        if f"\n{name}\n" not in text:
            return {}
        rows = text.split(f"\n{name}\n", 1)[1].split("\n\n", 1)[0]
        found = re.finditer(rf"(?m)^(\d+) {fields}", rows)
        return {int(row[1]): row.groups()[1:] for row in found}

    files = table("FileNames", r'"(.*)"')
    locations = table("FileLocations", r"\{file_name_id=(\d+)")
    of_optimiser: set[int] = set()
    frames = table("StackFrames", r"\{file_location_id=(\d+) parent_frame_id=(\d+)\}")
    for number, (location, parent) in sorted(frames.items()):  # a caller comes before its callees
        (file,) = files[int(locations[int(location)][0])]
        # The number of the calling frame is written with 1 added.
        if re.search(r"/optimizers\.py$|/optax/", file) or int(parent) - 1 in of_optimiser:
            of_optimiser.add(number)
    return of_optimiser


def shares_of_time(work: Callable[[], object], program: str) -> tuple[float, dict[str, float]]:
    """Traces a compiled program at work.

    Args:
        work: runs it; everything has been compiled before.
        program: a part of the program's name.

    Returns:
        The seconds of all its operations together, and each kind's share of them.

    Raises:
        RuntimeError: if the trace holds no operation of it.
    """
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            work()
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        times = _times(jax.profiler.ProfileData.from_file(str(file)), program)
    if not times:
        raise RuntimeError(f"the profile holds no operation of a program named {program}")
    texts = (
        module.to_string()
        for executable in jax.devices()[0].client.live_executables()
        for module in executable.hlo_modules()
        if program in module.name
    )
    # One for each length quarter may be alive: the one that ran has the names of all operations.
    ran = max(map(Program, texts), key=lambda one: len(times.keys() & one.instructions.keys()))
    of_kinds: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    for name, seconds in times.items():
        kind = ran.kind(name) if name in ran.instructions else "element-wise"
        if kind is not None:
            of_kinds[kind] += seconds
    total = sum(of_kinds.values())
    return total, {kind: seconds / total for kind, seconds in of_kinds.items()}


def _times(profile: jax.profiler.ProfileData, program: str) -> dict[str, float]:
    """Adds the seconds of every operation of a program, by its name in the compiled text."""
    found = {True: collections.Counter(), False: collections.Counter()}
    for plane in profile.planes:
        on_device = plane.name.startswith("/device:")
        for line in plane.lines:
            if on_device and not line.name.startswith("Stream"):
                continue  # summaries of what the streams did
            for event in line.events:
                stats = dict(event.stats)
                if program in str(stats.get("hlo_module", "")) and "hlo_op" in stats:
                    found[on_device][str(stats["hlo_op"])] += event.duration_ns / 1e9
    # With an accelerator the host's events only say when its work was begun.
    return found[True] or found[False]
