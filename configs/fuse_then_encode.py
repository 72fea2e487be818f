"""Trains a model that fuses first, and then encodes each modality (source 000).

Projected modalities attend to each other as they are; each is then encoded by two blocks with a
feed-forward width of 1024, pooled, and all are concatenated for the regression. A block's only bias
is that of its second feed-forward layer.

    python -m msajax.main --config configs/fuse_then_encode.py --config.data.path=CORPUS.npz \
        --workdir W
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets both directions at once, two post-norm blocks after them, five random seeds."""
    config = default_config()
    config.model.n_layers_mod = 0
    config.model.fusion = "parallel"
    config.model.bidirectional_fusion = True
    config.model.n_layers_post_fuse = 2
    config.model.ff_dim = 1024
    config.model.qkv_bias = False
    config.model.out_bias = False
    config.model.ffn_inner_bias = False
    config.model.attention_dropout = 0.0  # the document drops after attention and after the FFN
    config.model.ffn_dropout = 0.0
    config.model.head = "concat"
    config.train.seeds = 5
    return apply_argument(
        config,
        arg,
        widths={"text": 300, "audio": 74, "video": 47},
        lengths={"text": 20, "audio": 20, "video": 20},
    )
