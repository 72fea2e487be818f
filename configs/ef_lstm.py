"""Trains an LSTM over joined features on CMU-MOSI: early fusion of aligned modalities, a floor.

    python -m msajax.main --config configs/ef_lstm.py --config.data.path=CORPUS.npz --workdir W

It needs modalities that share their steps.

On all of CMU-MOSI (text alone, whose steps audio does not share, 20 words of GloVe), five seeds:
validation MAE 1.017 +- 0.018, test MAE 1.108 +- 0.023, where the constant 0 has 1.417; three
minutes on 2 CPU cores that were busy otherwise.
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets 128 units, Adam at 0.001, batches of 32; five random seeds."""
    config = default_config()
    config.model.name = "ef_lstm"
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
