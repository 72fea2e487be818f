"""Trains the decoder of source 001, which predicts each word of a transcript from those before.

Its first use is what it learns of words: `configs/words.py` begins from it. With a vocabulary of 47
tokens it has 797,568 parameters, and 797,056 with `--config.model.out_bias=false`. The corpus needs
transcripts (`raw_text`).

The document is silent on a scale of the embeddings: they are multiplied by the square root of their
width, which CMU-MOSI's validation chose (one random seed, at most 60 epochs, patience 8: a
cross-entropy of 4.637, and of 4.779 without).

    python -m msajax.main --config configs/decoder.py --config.data.path=CORPUS.npz \
        --workdir W
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets width 128, four causal pre-norm blocks, of attention's biases b_O alone."""
    config = default_config()
    config.data.text = "words"
    config.data.truncate = "first"
    config.model.name = "next_token"
    config.model.modalities = ("text",)
    config.model.causal = True
    config.model.n_layers_mod = 4
    config.model.ff_dim = 512
    config.model.activation = "relu"
    config.model.norm_position = "pre"
    config.model.positions = "sinusoidal"
    config.model.embedding_scale = "sqrt_dim"
    config.model.qkv_bias = False
    config.model.max_len = 64
    config.optim.learning_rate = 3e-4
    config.train.seeds = 3
    return apply_argument(config, arg, widths={"text": 300}, lengths={"text": 20})
