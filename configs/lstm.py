"""Trains LSTM encoders (source 001): each modality is read step by step, pooled and weighed.

    python -m msajax.main --config configs/lstm.py --config.data.path=CORPUS.npz \
        --workdir W

`--config.model.both_directions=true` reads backwards as well, with half of the units each way.
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets two layers of width 128, no attention between modalities, five random seeds."""
    config = default_config()
    config.model.mixer = "lstm"
    config.model.positions = "none"
    config.model.n_layers_fuse = 0
    config.train.seeds = 5
    return apply_argument(
        config,
        arg,
        widths={"text": 300, "audio": 74, "video": 47},
        lengths={"text": 20, "audio": 20, "video": 20},
    )
