"""Trains the sequence-level model without fusion: what cross-modal attention is worth.

Modalities are pooled straight after their encoders and meet in the gate alone: 865,412 parameters
at MOSI's widths.

    python -m msajax.main --config configs/pooled_ablation.py --config.data.path=CORPUS.npz \
        --workdir W
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets the sizes of `configs/sequence_base.py`, n_layers_fuse = 0, five random seeds."""
    config = default_config()
    config.data.truncate = "uniform"
    config.model.max_len = 20
    config.model.n_layers_fuse = 0
    config.train.seeds = 5
    return apply_argument(
        config,
        arg,
        widths={"text": 300, "audio": 74, "video": 47},
        lengths={"text": 20, "audio": 20, "video": 20},
    )
