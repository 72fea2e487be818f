"""Trains on the words of transcripts, as token ids instead of word vectors, and the voice.

The text encoder has the shape of `configs/decoder.py`, whose bundle it can begin from:

    python -m msajax.main --config configs/decoder.py --config.data.path=CORPUS.npz \
        --workdir W1
    python -m msajax.main --config configs/words.py --config.data.path=CORPUS.npz \
        --config.model.init_from=W1/bundle --workdir W2
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets the decoder's blocks for each modality, attention to the voice, five random seeds."""
    config = default_config()
    config.data.text = "words"
    config.data.truncate = "first"
    config.model.modalities = ("text", "audio")
    config.model.n_layers_mod = 4
    config.model.ff_dim = 512
    config.model.activation = "relu"
    config.model.norm_position = "pre"
    config.model.positions = "sinusoidal"
    config.model.embedding_scale = "sqrt_dim"
    config.model.qkv_bias = False
    config.model.overrides = ("audio.n_layers_mod=1",)
    config.model.max_len = 64
    config.train.seeds = 5
    return apply_argument(
        config,
        arg,
        widths={"text": 300, "audio": 74},
        lengths={"text": 20, "audio": 20},
    )
