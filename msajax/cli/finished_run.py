"""Opens the folder of a run that has ended, for a mode that adds files to it."""

import contextlib
from collections.abc import Iterator

from msajax.experiment.artefacts import make_anew
from msajax.runs.claim import refuse_folds
from msajax.runs.folder import RunFolder
from msajax.runs.lock import Lock
from msajax.runs.manifest import REPORT
from msajax.runs.mirror import Mirror
from msajax.runtime import devices


@contextlib.contextmanager
def adding(mode: str, workdir: str, *names: str) -> Iterator[RunFolder]:
    """Locks the folder of a run, also in a bucket, while a mode adds the files of these names.

    A report that is there is made anew. Raises `UserError` if the folder holds folds or no run that
    has ended, or another process uses it.
    """
    refuse_folds(workdir, f"--mode={mode}")
    devices.require_devices()
    with Mirror(workdir) as mirror:
        folder = RunFolder(mirror.path)
        folder.require_ended()
        with Lock(folder.path):
            yield folder
            make_anew(folder, REPORT)
        for name in (*names, REPORT):
            mirror.replace(name)
