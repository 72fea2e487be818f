"""Runs the command `msajax`, and `python -m msajax`, as `python -m msajax.main` does."""

import signal


def run() -> None:
    """Runs the command line; SIGINT leaves no traceback while the program is being loaded."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from msajax.main import run

    run()


if __name__ == "__main__":
    run()
