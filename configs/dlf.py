"""Trains DLF on CMU-MOSI: each modality in two parts, its own and what all share.

    python -m msajax.main --config configs/dlf.py --config.data.path=CORPUS.npz --workdir runs/dlf

CORPUS.npz holds text, audio and video of any width. The sizes and rates are the authors' for
CMU-MOSI, whose text is read by BERT with the same learning rate. They add up the gradients of ten
batches of 16 before a step; here a batch has 160 samples. They clip every number of the gradient at
0.6; here its norm is clipped at 1.

On all of CMU-MOSI (text and one vector of audio, 20 words of GloVe), three seeds: validation MAE
1.179 +- 0.007, test MAE 1.239 +- 0.020, where the constant 0 has 1.417; 11 minutes on a core that
others used.
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets Adam at 0.0001, batches of 160, stopping after ten epochs; five random seeds."""
    config = default_config()
    config.data.truncate = "first"
    config.model.name = "dlf"
    config.optim.learning_rate = 1e-4
    config.optim.clip_norm = 1.0
    config.optim.plateau_factor = 0.5
    config.optim.plateau_patience = 5
    config.train.batch_size = 160
    config.train.seeds = 5
    config.train.epochs = 100
    config.train.patience = 10
    return apply_argument(
        config,
        arg,
        widths={"text": 300, "audio": 5, "video": 20},
        lengths={"text": 50, "audio": 50, "video": 50},
    )
