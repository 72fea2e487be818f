"""Trains the Adaptive Language-guided Multimodal Transformer on CMU-MOSI: text asks the others.

    python -m msajax.main --config configs/almt.py --config.data.path=CORPUS.npz --workdir runs/almt

The sizes and rates are the authors' for CMU-MOSI: twenty epochs of warm-up, a cosine over the other
180, no dropout. The text is features, where theirs is a BERT that is fine-tuned
(`--config.model.text_encoder=bert-base-uncased`). They report the best epoch on the test split;
here, as in the toolkit, training stops after 32 epochs without progress on validation.

On all of CMU-MOSI (text and one vector of audio, 20 words of GloVe), three seeds: validation MAE
1.073 +- 0.024, test MAE 1.134 +- 0.008, where the constant 0 has 1.417; 25 minutes on a core that
others used. Biases and learned tokens did not decay then, which moves them by 2e-5 of their size.
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets the authors' sizes, AdamW with decay of all parameters, 200 epochs; five seeds."""
    config = default_config()
    config.model.name = "almt"
    config.optim.name = "adamw"
    config.optim.learning_rate = 1e-4
    config.optim.groups = ("*:weight_decay=0.0001",)
    config.optim.schedule = "cosine"
    config.optim.min_learning_rate = 0.0
    config.optim.warmup_steps = 420  # 21 batches of CMU-MOSI's training split an epoch
    config.train.loss = "mse"
    config.train.batch_size = 64
    config.train.seeds = 5
    config.train.epochs = 200
    config.train.patience = 32
    return apply_argument(
        config,
        arg,
        widths={"text": 300, "audio": 74, "video": 35},
        lengths={"text": 20, "audio": 20, "video": 20},
    )
