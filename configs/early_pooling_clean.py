"""Trains the early-pooling baseline with heads that share the width.

It has 809,428 parameters at MOSI's widths.

    python -m msajax.main --config configs/early_pooling_clean.py --config.data.path=CORPUS.npz \
        --workdir W
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets width 112, four heads of 28, two encoder blocks, one fusion block, five random seeds."""
    config = default_config()
    config.data.truncate = "uniform"
    config.model.max_len = 20
    config.model.fusion = "pooled"
    config.model.activation = "relu"
    config.model.positions = "none"
    config.model.gate_hidden = False
    config.model.projection_dropout = 0.0
    config.model.ffn_dropout = 0.0
    config.model.model_dim = 112
    config.train.seeds = 5
    return apply_argument(
        config,
        arg,
        widths={"text": 300, "audio": 74, "video": 47},
        lengths={"text": 20, "audio": 20, "video": 20},
    )
