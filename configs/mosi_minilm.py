"""Fine-tunes a small pretrained encoder on the transcripts of CMU-MOSI, with the voice beside them.

    python -m msajax.main --config configs/mosi_minilm.py --config.data.path=CORPUS.npz \
      --config.model.text_encoder=all-MiniLM-L6-v2 --workdir runs/mosi_minilm
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets the encoder's rate apart from the rest's, warm-up, and a linear fall to 0."""
    config = default_config()
    config.data.truncate = "first"
    config.model.text_encoder = "all-MiniLM-L6-v2"
    config.model.modalities = ("text",)
    config.model.max_len = 64
    config.model.model_dim = 384
    config.model.input_projection = "where_needed"
    config.model.n_layers_mod = 0
    config.model.n_layers_fuse = 0
    config.model.positions = "none"
    config.model.dropout_rate = 0.0
    config.optim.name = "adamw"
    config.optim.learning_rate = 1e-3
    config.optim.weight_decay = 0.01
    config.optim.groups = ("text_pretrained/*:learning_rate=5e-5",)
    config.optim.schedule = "linear"
    config.optim.min_learning_rate = 0.0
    config.optim.warmup_steps = 40
    config.optim.clip_norm = 1.0
    config.train.seeds = 5
    config.train.epochs = 8
    config.train.patience = 0
    return apply_argument(config, arg, widths={"text": 8}, lengths={"text": 20})
