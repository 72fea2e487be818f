"""Keeps compiled programs between runs, in a folder of the user's own."""

import contextlib
import functools
import logging
import os
import pathlib
import stat
import zlib

import jax

logger = logging.getLogger(__name__)

LARGEST = 2 << 30  # bytes that the folder may take when a run begins
CHECKED = "checked"  # a file whose time says when programs were last looked at
_ZSTANDARD = b"\x28\xb5\x2f\xfd"  # what it packs begins with this


def use_compile_cache(setting: str) -> None:
    """Keeps compiled programs between runs, in at most `LARGEST` bytes.

    A folder that JAX has been told of otherwise (JAX_COMPILATION_CACHE_DIR) stays as it is.

    Args:
        setting: `train.compile_cache`: off, auto (msajax/compiled in $XDG_CACHE_HOME or ~/.cache)
            or a folder.
    """
    if setting == "off" or jax.config.jax_compilation_cache_dir:
        return
    folder = pathlib.Path(setting)
    if setting == "auto":
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        folder = pathlib.Path(cache) / "msajax" / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            _say_once(f"No compilation cache: others can write to {folder}, and so run code.")
            return
        prune(folder, LARGEST)
        drop_damaged(folder)
    except OSError as error:
        _say_once(f"No compilation cache: {folder}: {error.strerror}.")
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@functools.cache
def _say_once(warning: str) -> None:
    """Logs a warning, the first time in a process."""
    logger.warning("%s", warning)


def drop_damaged(folder: pathlib.Path) -> None:
    """Deletes programs that were not written to their end, as a kill or a full disk leaves them.

    JAX would warn of such a file, compile anew, and leave it there for every later run. Only those
    written since the last check are looked at.
    """
    mark = folder / CHECKED
    checked = mark.stat().st_mtime_ns if mark.exists() else 0
    mark.touch()
    for path in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime_ns < checked:
                continue
            content = path.read_bytes()
            if not _is_whole(content):
                path.unlink(missing_ok=True)


def _is_whole(content: bytes) -> bool:
    """Says whether a packed program ends where it should, as far as can be told."""
    if content.startswith(_ZSTANDARD):  # JAX's choice where it is installed
        return True
    stream = zlib.decompressobj()
    try:
        stream.decompress(content)
    except zlib.error:
        return False
    return stream.eof


def prune(folder: pathlib.Path, largest: int) -> None:
    """Deletes the programs that were used longest ago until the rest takes `largest` bytes.

    Files that are not JAX's stay. Another run that wants a deleted program compiles it anew.
    """
    programs = []  # (last used, bytes, path)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith("-cache"):
                with contextlib.suppress(FileNotFoundError):  # another run deletes them too
                    found = entry.stat(follow_symlinks=False)
                    used = max(found.st_atime, found.st_mtime)
                    programs.append((used, found.st_size, pathlib.Path(entry.path)))
    size = sum(entry[1] for entry in programs)
    for _, freed, path in sorted(programs):
        if size <= largest:
            break
        path.unlink(missing_ok=True)
        size -= freed
