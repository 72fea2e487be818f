"""Decompresses files that may be compressed with gzip, in bounded space."""

import gzip
import os
import tempfile
import zlib
from typing import BinaryIO

from msajax.errors import UserError

MOST_TIMES = 64  # how many times its own size a file may hold
MOST_BYTES = 8 << 30
_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20
_DAMAGED = (gzip.BadGzipFile, EOFError, zlib.error)


def is_gzip(file: BinaryIO) -> bool:
    """Says whether a file begins as gzip does; leaves it at its beginning."""
    magic = file.read(len(_MAGIC))
    file.seek(0)
    return magic == _MAGIC


def read_head(path: str, file: BinaryIO, size: int) -> bytes:
    """Reads the first bytes that a gzip file holds: `size`, or all if there are fewer.

    Raises:
        UserError: if the file is damaged.
    """
    try:
        with gzip.GzipFile(fileobj=file) as content:
            return content.read(size)
    except _DAMAGED as error:
        raise _damaged(path) from error


def decompress(path: str, file: BinaryIO) -> BinaryIO:
    """Decompresses a gzip file into a temporary one without a name, which is gone once closed.

    Raises:
        UserError: if it is damaged, holds more than a file of its size may, or there is no room.
    """
    # A file's own word on what it holds may be wrong, so bytes are counted as they come: a bomb
    # is refused before it fills the disk.
    most = most_bytes(os.fstat(file.fileno()).st_size)
    content = tempfile.TemporaryFile()
    try:
        with gzip.GzipFile(fileobj=file) as compressed:
            while block := compressed.read(_CHUNK):
                if content.tell() + len(block) > most:
                    raise UserError(
                        f"{path} holds more than {most} bytes, which a gzip file of its size may "
                        "not: if it is meant to, decompress it and give that file."
                    )
                content.write(block)
        content.seek(0)
        return content
    except BaseException as error:
        content.close()
        if isinstance(error, _DAMAGED):
            raise _damaged(path) from error
        if isinstance(error, OSError):
            reason = f"{path} cannot be decompressed in {tempfile.gettempdir()}: {error.strerror}."
            raise UserError(reason) from error
        raise


def most_bytes(size: int) -> int:
    """Returns how many bytes a gzip file of `size` bytes may hold."""
    return min(MOST_TIMES * size, MOST_BYTES)


def _damaged(path: str) -> UserError:
    return UserError(f"{path} is a damaged gzip file, or was not copied to its end.")
