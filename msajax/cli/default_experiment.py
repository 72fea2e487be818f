"""The experiment that runs without --config: every setting at its default."""

from msajax.config import default_config


def get_config():
    """The sequence-level model on every modality of `data.path`."""
    return default_config()
