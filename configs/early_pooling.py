"""Trains the early-pooling baseline with msa-tf2's heads: every head as wide as the model.

Each modality is encoded and pooled by itself; the pooled vectors attend to each other as a sequence
of length M. 768,004 parameters at MOSEI's widths, 725,380 at MOSI's. msa-tf2 is the public project
ababthedon/msa-tf2, which implements source 002 and this model.

    python -m msajax.main --config configs/early_pooling.py --config.data.path=CORPUS.npz \
        --workdir W
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets width 64, four heads of 64, two encoder blocks, one fusion block, five random seeds."""
    config = default_config()
    config.data.truncate = "uniform"
    config.model.max_len = 20
    config.model.fusion = "pooled"
    config.model.activation = "relu"
    config.model.positions = "none"
    config.model.gate_hidden = False
    config.model.projection_dropout = 0.0
    config.model.ffn_dropout = 0.0
    config.model.model_dim = 64
    config.model.head_dim = 64
    config.train.seeds = 5
    return apply_argument(
        config,
        arg,
        widths={"text": 300, "audio": 74, "video": 713},
        lengths={"text": 20, "audio": 20, "video": 20},
    )
