"""Pickles put together opcode by opcode, as no Python would write them."""

import struct

P4 = b"\x80\x04"


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value.encode())]) + value.encode()


def name(module: str, attribute: str) -> bytes:
    return text(module) + text(attribute) + b"\x93"


def integer(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def shape(*sizes: int) -> bytes:
    return b"(" + b"".join(map(integer, sizes)) + b"t"


def data(content: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(content)) + content


def dtype_state(order: str = "<", parts: bytes = b"NNN", size: int = -1, flags: int = 0) -> bytes:
    return b"(K\x03" + text(order) + parts + integer(size) + integer(-1) + integer(flags) + b"t"


def dtype(kind: str, state: bytes | None = None) -> bytes:
    size = {"U": 4, "S": 1}.get(kind[0], 0) * int(kind[1:]) or -1
    made = name("numpy", "dtype") + text(kind) + b"\x89\x88\x87R"
    return made + (dtype_state(size=size) if state is None else state) + b"b"


RECONSTRUCT = name("numpy.core.multiarray", "_reconstruct")
ANNOUNCED = RECONSTRUCT + name("numpy", "ndarray") + b"K\x00\x85C\x01b\x87R"
FROMBUFFER = name("numpy.core.numeric", "_frombuffer")
SCALAR = name("numpy.core.multiarray", "scalar")


def array(sizes: bytes, kind: bytes, content: bytes, fortran: bytes = b"\x89") -> bytes:
    """An array as protocols 0 to 4 write it."""
    return ANNOUNCED + b"(K\x01" + sizes + kind + fortran + content + b"tb"


def buffer(sizes: bytes, kind: bytes, content: bytes, order: str = "C") -> bytes:
    """An array as protocol 5 writes it."""
    return FROMBUFFER + b"(" + content + kind + sizes + text(order) + b"tR"
