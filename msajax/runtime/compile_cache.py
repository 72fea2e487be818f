"""Keeps compiled programs between runs, in a folder of the user's own."""

import contextlib
import logging
import os
import pathlib
import stat

import jax

logger = logging.getLogger(__name__)

LARGEST = 2 << 30  # bytes that the folder may take when a run begins


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
            logger.warning("No compilation cache: others can write to %s, and so run code.", folder)
            return
        prune(folder, LARGEST)
    except OSError as error:
        logger.warning("No compilation cache: %s: %s.", folder, error.strerror)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


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
