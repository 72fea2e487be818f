"""Trains the classic encoder (source 004): 15,761,920 parameters in the encoder itself.

    python -m msajax.main --config configs/classic_encoder.py --config.data.path=CORPUS.npz \
        --workdir W

Features that are 512 wide go into it as they are, so that it is exactly the document's, with
dropout inside the layers alone; those of another width are projected. The document's formulas write
no biases of attention (docs/sources.md says why they are here):
`--config.model.qkv_bias=false --config.model.out_bias=false` leaves 15,751,680 parameters.

The document names no positions, and without them the encoder cannot tell the order of steps:
`--config.model.positions=sinusoidal` adds the Transformer's.
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets width 512, eight heads, five blocks of 2048 with ReLU, batches of 30, 200 steps."""
    config = default_config()
    config.model.input_projection = "where_needed"
    config.model.model_dim = 512
    config.model.num_heads = 8
    config.model.n_layers_mod = 5
    config.model.ff_dim = 2048
    config.model.activation = "relu"
    config.model.norm_eps = 1e-5
    config.model.positions = "none"
    config.model.projection_dropout = 0.0
    config.model.dropout_rate = 0.1
    config.model.max_len = 200
    config.model.head = "mean"
    config.train.batch_size = 30
    return apply_argument(config, arg, widths={"features": 512}, lengths={"features": 200})
