"""Trains the sequence-level model of source 002, small: 732,932 parameters at MOSI's widths.

    python -m msajax.main --config configs/sequence_small.py --config.data.path=CORPUS.npz \
        --workdir W
"""

from msajax.config import apply_argument, default_config, space_of_ranges


def get_config(arg: str = ""):
    """Sets one encoder block per modality, one fusion layer, five random seeds."""
    config = default_config()
    config.data.truncate = "uniform"
    config.model.max_len = 20
    config.model.ranges = "002"
    config.model.n_layers_mod = 1
    config.train.seeds = 5
    return apply_argument(
        config,
        arg,
        widths={"text": 300, "audio": 74, "video": 47},
        lengths={"text": 20, "audio": 20, "video": 20},
    )


def get_space():
    """Says what a sweep tries: all that the document's table gives a range."""
    return space_of_ranges()
