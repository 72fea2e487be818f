"""Fine-tunes BERT-base on CMU-MOSI: transcripts in the encoder, voice and face beside them.

    python -m msajax.main --config configs/mosi_bert.py --config.data.path=CORPUS.npz \
      --config.model.text_encoder=bert-base-uncased --workdir runs/mosi_bert

The settings are those usual for a BERT of 110 million parameters; they have not been tuned here.
One random seed is trained at a time, in 2.5 GiB beside activations. A corpus that knows its words
step by step keeps voice and face aligned with them.
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets rates and warm-up of a BERT-base, five random seeds one after another."""
    config = default_config()
    config.data.truncate = "first"
    config.model.text_encoder = "bert-base-uncased"
    config.model.max_len = 64
    config.model.model_dim = 128
    config.model.ff_dim = 256
    config.model.n_layers_mod = 1
    config.model.dropout_rate = 0.1
    config.model.overrides = ("text.n_layers_mod=0", "text.positions=none")
    config.optim.name = "adamw"
    config.optim.learning_rate = 1e-3
    config.optim.weight_decay = 0.01
    config.optim.groups = (
        "text_pretrained/*:learning_rate=3e-5",
        "text_pretrained/*:layer_decay=0.9",
    )
    config.optim.schedule = "linear"
    config.optim.min_learning_rate = 0.0
    config.optim.warmup_steps = 40
    config.optim.clip_norm = 1.0
    config.train.seeds = 5
    config.train.seeds_at_once = 1
    config.train.epochs = 8
    config.train.patience = 0
    widths, lengths = {"text": 8, "audio": 74, "video": 47}, {"text": 20, "audio": 20, "video": 20}
    return apply_argument(config, arg, widths=widths, lengths=lengths)
