"""Trains the vanilla encoder over connectome tokens (source 003): 793,344 parameters in its layers.

    python -m msajax.main --config configs/connectome.py --config.data.path=CORPUS.npz \
        --workdir W

Features that are 128 wide are the tokens themselves, so that the encoder is exactly the document's;
those of another width are projected.
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets width 128, four post-norm blocks with LayerNorm, and a final one."""
    config = default_config()
    config.model.input_projection = "where_needed"
    config.model.num_heads = 4
    config.model.n_layers_mod = 4
    config.model.ff_dim = 512
    config.model.norm_eps = 1e-5
    config.model.final_norm = True
    config.model.projection_dropout = 0.0  # the document's tokens go into the layers as they are
    config.model.positions = "none"
    config.model.head = "mean"
    return apply_argument(config, arg, widths={"connectome": 128}, lengths={"connectome": 9})
