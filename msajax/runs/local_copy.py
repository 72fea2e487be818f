"""Lends folders on this machine for what lies in a bucket; messages name the bucket, not them."""

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator

from msajax.checks import is_url
from msajax.errors import UserError
from msajax.files import scratch_folder


@contextlib.contextmanager
def bundle_folder(path: str | os.PathLike) -> Iterator[str]:
    """Lends a bundle's folder on this machine; one in a bucket is brought, and goes at the end.

    Raises:
        UserError: if it cannot be brought.
    """
    path = os.fspath(path)
    if not is_url(path):
        yield path
        return
    # Only what lies in a bucket needs fsspec, whose import takes longer than to load a bundle.
    from msajax.runs.bucket import Bucket

    with scratch_folder() as folder, named_by_url(path, folder):
        bucket = Bucket(path)
        for name in bucket.names():
            if "/" not in name:
                bucket.get(name, os.path.join(folder, name))
        yield folder


@contextlib.contextmanager
def named_by_url(url: str, path: str) -> Iterator[None]:
    """Names the URL wherever an error or a line of the log would name the folder."""
    before = logging.getLogRecordFactory()

    def make(*args, **kwargs) -> logging.LogRecord:
        record = before(*args, **kwargs)
        if record.name.startswith("msajax"):
            record.msg, record.args = record.getMessage().replace(path, url), ()
        return record

    logging.setLogRecordFactory(make)
    try:
        yield
    except (UserError, OSError) as error:
        if path not in str(error):
            raise
        text = str(error).replace(path, url)
        if isinstance(error, OSError):
            text = f"{text}, in its copy on this machine."
        elif "cannot be written" in text:  # for want of room here, and not there
            text = f"{error} It is the copy of {url} on this machine."
        raise UserError(text) from error
    finally:
        logging.setLogRecordFactory(before)


def folder_beside(path: str) -> tempfile.TemporaryDirectory:
    """Makes a temporary folder on the same file system, where files can have second names."""
    return tempfile.TemporaryDirectory(dir=os.path.dirname(path), ignore_cleanup_errors=True)


def files_in(folder: str, top: str = "") -> list[str]:
    """Lists every file at or below `top` in a folder, by its path from the folder."""
    start = os.path.join(folder, top)
    if os.path.isfile(start):
        return [top]
    found = [os.path.join(where, name) for where, _, names in os.walk(start) for name in names]
    return sorted(os.path.relpath(path, folder) for path in found)
