"""Runs the command line in a process of its own, that ends when its parent does."""

import os
import signal
import sys
import threading

COMMAND = "from msajax.studies.child import run; run()"


def run() -> None:
    """Runs the command line; the end of standard input asks it to stop, as SIGTERM does."""

    def follow() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    from msajax.main import run as run_command

    sys.exit(run_command())
