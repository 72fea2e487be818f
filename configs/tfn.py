"""Trains the Tensor Fusion Network on CMU-MOSI: all products of what modalities say.

    python -m msajax.main --config configs/tfn.py --config.data.path=CORPUS.npz --workdir W

The rates and sizes are the toolkit's for CMU-MOSI; it stops after 8 epochs without progress on
validation.
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets the toolkit's sizes, Adam at 0.001, batches of 32; five random seeds."""
    config = default_config()
    config.model.name = "tfn"
    config.optim.learning_rate = 1e-3
    config.train.batch_size = 32
    config.train.seeds = 5
    config.train.epochs = 100
    config.train.patience = 8
    config.optim.schedule = "constant"
    return apply_argument(
        config,
        arg,
        widths={"text": 300, "audio": 74, "video": 35},
        lengths={"text": 20, "audio": 20, "video": 20},
    )


def get_space():
    """Says what a sweep tries: the sizes, and what keeps the model from learning by heart."""
    return {
        "model.tfn.text_hidden": [64, 128],
        "model.tfn.audio_hidden": [8, 16, 32],
        "model.tfn.post_dropout": (0.2, 0.6, "linear"),
        "optim.learning_rate": (3e-4, 3e-3, "log"),
    }
