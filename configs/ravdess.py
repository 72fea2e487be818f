"""Trains on RAVDESS: eight emotions of 24 actors, from sound alone.

    python bench/ravdess.py TABLE.csv ravdess.npz --audio=columns
    python -m msajax.main --config configs/ravdess.py --config.data.path=ravdess.npz \
      --config.data.folds=6 --workdir W

Folds are of whole actors: a random split would flatter. Over six folds and three random seeds the
unweighted average recall is 0.528 +- 0.049 on actors that the model has not heard, and 0.548 of the
seeds' mean scores; chance is 0.125.
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets two blocks of width 128 over columns of 100 ms, their mean, three random seeds."""
    config = default_config()
    config.data.truncate = "first"
    config.model.modalities = ("audio",)
    config.model.model_dim = 128
    config.model.ff_dim = 256
    config.model.n_layers_mod = 2
    config.model.n_layers_fuse = 0
    config.model.position_init = 0.02
    config.model.dropout_rate = 0.3
    config.model.input_dropout = 0.3
    config.optim.name = "adamw"
    config.optim.learning_rate = 1e-3
    config.optim.schedule = "cosine"
    config.optim.weight_decay = 0.1
    config.optim.warmup_steps = 100
    config.optim.clip_norm = 1.0
    config.train.seeds = 3
    config.train.epochs = 40
    config.train.patience = 0
    config.train.select_by = "uar"
    return apply_argument(config, arg, widths={"audio": 56}, lengths={"audio": 40})
