"""Trains on text and audio of CMU-MOSI with batches that lose modalities and steps at random.

    python -m msajax.main --config configs/mosi_robust.py --config.data.path=CORPUS.npz \
      --workdir runs/mosi_robust
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets the recipe of configs/mosi.py on text and audio, and two transforms of batches."""
    config = default_config()
    config.model.modalities = ("text", "audio")
    config.model.model_dim = 256
    config.model.ff_dim = 256
    config.model.n_layers_mod = 1
    config.model.position_init = 0.02
    config.model.ffn_dropout = 0.3
    config.model.input_dropout = 0.5
    config.optim.name = "adamw"
    config.optim.learning_rate = 1e-3
    config.optim.schedule = "cosine"
    config.optim.weight_decay = 0.3
    config.optim.warmup_steps = 100
    config.optim.clip_norm = 1.0
    config.train.transforms = ("modality_dropout:*=0.3", "step_dropout:text=0.3")
    config.train.seeds = 5
    config.train.epochs = 40
    config.train.patience = 0
    return apply_argument(
        config, arg, widths={"text": 300, "audio": 73}, lengths={"text": 20, "audio": 1}
    )
