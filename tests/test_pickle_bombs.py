"""Pickles of a few bytes that ask for hours or terabytes: refused, in seconds and in little memory.

Run as a program, this file reads the files that it is given and prints what that took.
"""

import json
import pathlib
import re
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

if __name__ == "__main__":
    sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]

import pytest
from pickle_files import (
    ANNOUNCED,
    FROMBUFFER,
    P4,
    RECONSTRUCT,
    SCALAR,
    array,
    data,
    dtype,
    integer,
    name,
    shape,
    text,
)

from msajax.corpus.pickles import read_pickle
from msajax.errors import UserError

SIZE = 300_000
MERSENNE = (1 << 61) - 1  # integers hash modulo this
MUCH = r"would take far more memory or time than a file of its size may ask for"
DEEP = r"nests its values more than 100 deep"
ENDLESS = r"repeats its values so often that reading them would have no end"


def often(code: bytes, size: int = SIZE) -> bytes:
    return code * (size // len(code))


def again(once: bytes, code: bytes, size: int = SIZE // 2) -> bytes:
    """A list of what `code` makes, many times, of what `once` put into the memo at 0 and 1."""
    return P4 + once + b"](" + often(code, size) + b"e."


def memo(*values: bytes) -> bytes:
    return b"".join(value + b"q" + bytes([i]) + b"0" for i, value in enumerate(values))


def keys(values) -> bytes:
    return b"(" + b"".join(integer(value) + b"N" for value in values) + b"u"


def chain(length: int) -> Iterator[int]:
    """Integers of which each lies where a dict goes on searching after the one before."""
    value = 0
    for _ in range(length):
        yield value
        value = (5 * value + 1) % (1 << 15)


CALL = b"h\x00h\x01R"


def calls(*values: bytes, then: bytes = b"") -> bytes:
    """A list of what a function makes of its arguments, many times."""
    return again(memo(*values), CALL + then)


ARRAY_CALL = (RECONSTRUCT, name("numpy", "ndarray") + b"K\x00\x85C\x01b\x87")
HALF = SIZE // 2 // 8 * 8
TYPE_O = dtype("O8")
# What a pickle asks for, by the reason for which it is refused; where there is none it is read.
BY_REASON = {
    ENDLESS: {
        "doubling tuples": P4 + memo(b"]") + b"h\x00h\x00\x86q\x000" * 90 + b"h\x00.",
        "doubling lists": P4 + memo(b"]") + b"](h\x00h\x00eq\x000" * 90 + b"h\x00.",
        "doubling dicts": P4 + memo(b"]") + b"}(K\x00h\x00K\x01h\x00uq\x000" * 90 + b"h\x00.",
        "doubling text": P4 + memo(b"X\xff\xff\x00\x00" + bytes(65535))
            + b"h\x00h\x00\x86q\x000" * 14 + b"h\x00.",
        "doubling arrays of objects": P4 + memo(b"N", *ARRAY_CALL, TYPE_O)
            + b"h\x01h\x02R(K\x01K\x02\x85h\x03\x89](h\x00h\x00etbq\x000" * 90 + b"h\x00.",
        "a long list in many places": again(memo(b"](" + b"N" * HALF + b"e"), b"h\x00"),
    },
    MUCH: {
        "text encoded again": calls(
            name("_codecs", "encode"),
            b"X" + struct.pack("<I", HALF) + bytes(HALF) + text("latin1") + b"\x86",
        ),
        "sets of one list":
            calls(name("builtins", "set"), b"](" + often(b"K\x01", HALF) + b"e\x85"),
        "ordered dicts of one list":
            calls(name("collections", "OrderedDict"), b"](" + often(b"NN\x86", HALF) + b"e\x85"),
        "truth values of one buffer": calls(
            FROMBUFFER, b"(" + data(bytes(HALF)) + dtype("b1") + shape(HALF) + text("C") + b"t"
        ),
        "characters of one buffer":
            calls(SCALAR, dtype(f"U{HALF // 4}") + data(bytes(HALF)) + b"\x86"),
        "arrays of one list": calls(
            *ARRAY_CALL, b"(K\x01" + shape(HALF) + TYPE_O + b"\x89](" + b"N" * HALF + b"et",
            then=b"h\x02b",
        ),
        "integers that collide": P4 + b"}" + keys(i * MERSENNE for i in range(1, 24000)) + b".",
        "members that collide": P4 + b"\x8f("
            + b"".join(integer(i * MERSENNE) for i in range(1, 24000)) + b"\x90.",
        "floats that collide": P4 + b"}("
            + b"".join(b"G" + struct.pack(">d", (i // 16 + 1) * 2.0 ** (61 * (i % 16))) + b"N"
                       for i in range(30000)) + b"u.",
        "the last of keys that collide, again": P4 + memo(integer(1999 * MERSENNE)) + b"}"
            + keys(i * MERSENNE for i in range(1, 2000)) + often(b"h\x00Ns") + b".",
        "a chain of small integers, again": P4 + memo(integer(1 << 40)) + b"}" + keys(chain(9000))
            + often(b"h\x00Ns") + b".",
        "empty sets": P4 + b"](" + often(b"\x8f", 3_000_000) + b"e.",
        "pairs of empty lists": P4 + b"](" + often(b"]]\x86", 2_400_000) + b"e.",
        "marks": P4 + often(b"(", 5_000_000) + b".",
        "columns without rows": P4 + array(shape(0, 1 << 50), dtype("f8"), data(b"")) + b".",
        "text without characters": P4 + array(shape(1 << 50), dtype("U0"), data(b"")) + b".",
    },
    r"": {
        "many small dicts that collide": P4 + b"]("
            + (b"}" + keys(i * MERSENNE for i in range(1, 2000))) * 12 + b"e.",
        "long numbers": b"(" + often(b"I" + b"9" * 640 + b"\n") + b"t.",
    },
    r"has a tuple as a key that is no string, number or short tuple": {
        "a long tuple as a key, again": P4 + memo(b"(" + often(b"N", HALF) + b"t") + b"}"
            + often(b"h\x00Ns", HALF) + b".",
        "a nested tuple as a key": P4 + memo(b"N") + b"h\x00h\x00\x86q\x000" * 60 + b"}h\x00Ns.",
    },
    DEEP: {
        "nested lists": P4 + b"]" * HALF + b"a" * (HALF - 1) + b".",
        "nested tuples": P4 + b"N" + often(b"\x85") + b".",
        "nested dicts": P4 + b"}N" * 75000 + b"}" + b"s" * 75000 + b".",
        "nested marks": P4 + b"(" * HALF + b"t" * HALF + b".",
        "nested ordered dicts": P4 + memo(name("collections", "OrderedDict")) + b"h\x00)RN" * 50000
            + b"N" + b"s" * 50000 + b".",
        "nested arrays of objects": P4 + memo(*ARRAY_CALL, TYPE_O, b"K\x01\x85")
            + (CALL + b"(K\x01h\x03h\x02\x89]") * 20000 + b"N" + b"atb" * 20000 + b".",
    },
    r"has an array of float64 of shape \(1125899906842624,\), which takes \d+ bytes, but .*": {
        "sizes that are not there": P4 + array(shape(1 << 50), dtype("f8"), data(b"")) + b"."},
    r"has an array without a valid type or shape": {
        "sizes without number": P4 + ANNOUNCED + b"(K\x01(" + often(integer((1 << 62) + 1)) + b"t"
            + dtype("f8") + b"\x89Ntb."},
    r"is damaged or no pickle: it makes no sense near byte 8": {
        "an index far away": P4 + b"Nr\xff\xff\xff\x7f."},
    r"holds a number of 300000 digits": {"a longer number": P4 + b"I" + b"9" * SIZE + b"\n."},
}
BOMBS = {case: (made, why) for why, cases in BY_REASON.items() for case, made in cases.items()}


def _peak() -> int:
    """The most memory of this program, in bytes; getrusage would count that of its parent too."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))


def read_all(paths: list[str]) -> None:
    """Reads files, one after the other; prints the seconds, the peak of memory, the refusal."""
    for path in paths:
        start, refusal = time.process_time(), ""
        try:
            read_pickle(path)
        except UserError as error:
            refusal = str(error)
        print(json.dumps([time.process_time() - start, _peak(), refusal]), flush=True)


@pytest.fixture(scope="module")
def readings(tmp_path_factory) -> dict[str, tuple[float, int, str]]:
    """What reading each bomb took, in one process that may not take more than its share."""
    folder = tmp_path_factory.mktemp("bombs")
    paths = [folder / f"{i}.pkl" for i in range(len(BOMBS))]
    for path, (content, _) in zip(paths, BOMBS.values(), strict=True):
        path.write_bytes(content)
    found = subprocess.run(
        [sys.executable, __file__, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (120, 120)),
    )
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert (found.returncode, len(lines)) == (0, len(BOMBS)), (
        f"died at {list(BOMBS)[len(lines):][:1]}: {found.stderr[-2000:]}"
    )
    return {
        case: (seconds, peak, refusal.removeprefix(f"{path} "))
        for case, path, (seconds, peak, refusal) in zip(BOMBS, paths, lines, strict=True)
    }


@pytest.mark.parametrize("case", BOMBS)
def test_a_bomb_is_refused_in_seconds_and_in_little_memory(readings, case):
    seconds, peak, refusal = readings[case]
    reason = BOMBS[case][1]
    assert re.fullmatch(f"{reason}\\." if reason else "", refusal), refusal
    assert seconds < 10
    assert peak < 1 << 30


if __name__ == "__main__":
    read_all(sys.argv[1:])
