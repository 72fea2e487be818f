"""Trains on RAVDESS: eight emotions of 24 actors, from sound alone.

    python bench/ravdess.py TABLE.csv ravdess.npz
    python -m msajax.main --config configs/ravdess.py --config.data.path=ravdess.npz \
      --config.data.folds=6 --workdir W

Folds are of whole actors: a random split would flatter. Of one fold and one random seed the
unweighted average recall is 0.44 on four actors that the model has not heard; chance is 0.125.
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
