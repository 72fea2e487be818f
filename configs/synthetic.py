"""Trains on the embedded synthetic corpus: the whole program at work, with nothing to download.

python -m msajax.main --config configs/synthetic.py --workdir runs/synthetic
"""

from msajax.config import SYNTHETIC, apply_argument, default_config


def get_config(arg: str = ""):
    """Sets the sequence-level model, small, on a small corpus with MOSI's shapes."""
    config = default_config()
    config.data.path = SYNTHETIC
    config.data.synthetic.train = 640
    config.data.synthetic.valid = 160
    config.data.synthetic.test = 320
    config.model.model_dim = 64
    config.model.ff_dim = 128
    config.model.n_layers_mod = 1
    config.optim.learning_rate = 5e-4
    config.train.seeds = 3
    config.train.epochs = 10
    return apply_argument(
        config,
        arg,
        widths={"text": 300, "audio": 74, "video": 47},
        lengths={"text": 20, "audio": 20, "video": 20},
    )


def get_space():
    """Says what a sweep tries: a grid of six trials."""
    return {"model.dropout_rate": [0.1, 0.3], "optim.learning_rate": [2e-4, 5e-4, 1e-3]}
