"""Runs the command `msajax`, and `python -m msajax`, as `python -m msajax.main` does."""

from msajax.cli.early import end_at_signals


def run() -> None:
    """Runs the command line; SIGTERM and SIGINT are one line while the program is being loaded."""
    end_at_signals()
    from msajax.main import run

    run()


if __name__ == "__main__":
    run()
