"""Fine-tunes MAG-BERT on CMU-MOSI: voice and face shift the words inside BERT.

    python -m msajax.main --config configs/mag.py --config.data.path=CORPUS.npz \
      --config.model.text_encoder=bert-base-uncased --workdir runs/mag

CORPUS.npz knows its words step by step (train/words), with audio and video at the same steps. The
recipe is that of the toolkit MMSA: Adam at 2e-5 for everything, without a schedule, the mean
absolute error, batches of 32, at most 50 pieces, and a run that stops after 8 epochs without a
better validation score. With model.modalities=text the same command fine-tunes BERT alone, which
every result should stand beside.

The embedded corpus of `:smoke` does not know its words step by step: there it is BERT alone.
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets the published rate and stopping, five random seeds one after another."""
    config = default_config()
    config.data.truncate = "first"
    config.model.name = "mag"
    config.model.text_encoder = "bert-base-uncased"
    config.model.max_len = 50
    config.model.mag.beta_shift = 1.0
    config.model.mag.gate_dropout = 0.3
    config.optim.name = "adam"
    config.optim.learning_rate = 2e-5
    config.optim.min_learning_rate = 0.0
    config.optim.schedule = "constant"
    config.train.seeds = 5
    config.train.seeds_at_once = 1
    config.train.batch_size = 32
    config.train.epochs = 40
    config.train.patience = 8
    if arg == "smoke":
        config.model.modalities = ("text",)
    widths = {"text": 8, "audio": 5, "video": 20}
    return apply_argument(config, arg, widths=widths, lengths=dict.fromkeys(widths, 20))
