"""Trains the encoder of source 003 with dRoFE and guidance by attribution, on an embedded corpus.

The document names both; their formulas are those of XAIguiFormer, the model that it is a part of
(Guo et al., ICLR 2025). docs/sources.md says what of them is ours.

Each step is a frequency band of a person of known age and gender; three groups are to be told
apart. A first pass is explained, and the explanation guides a second one.

    python -m msajax.main --config configs/connectome_guided.py --workdir W

Accuracy on the 320 test people, of whom 0.375 are of the majority class, five random seeds, three
to ten minutes on a CPU core:

    0.654 +- 0.053  as it stands
    0.628 +- 0.056  without guidance: --config.model.guidance=none
    0.631 +- 0.098  without dRoFE, the four numbers being features like the others:
                    --config.model.positions=none --config.data.standardize=auto

All know far more than the majority class. Neither guidance nor dRoFE is more than noise here: by
the paired test of accuracy p = 0.042 and p = 0.083, of cross-entropy 0.53 and 0.053.
"""

from msajax.config import SYNTHETIC, apply_argument, default_config


def get_config(arg: str = ""):
    """Sets width 128, four heads, four layers with RMSNorm, gradient x input, five random seeds."""
    config = default_config()
    config.data.path = SYNTHETIC
    config.data.standardize = ()
    config.data.synthetic.task = "connectome"
    config.data.synthetic.train = 640
    config.data.synthetic.valid = 160
    config.data.synthetic.test = 320
    config.data.synthetic.modalities = ("connectome",)
    config.data.synthetic.widths = (36,)
    config.data.synthetic.lengths = (9,)
    config.model.input_projection = "where_needed"
    config.model.num_heads = 4
    config.model.n_layers_mod = 4
    config.model.ff_dim = 512
    config.model.norm = "rmsnorm"
    config.model.norm_eps = 1e-5
    config.model.final_norm = True
    config.model.projection_dropout = 0.0
    config.model.positions = "drofe"
    config.model.guidance = "gradient_x_input"
    config.model.head = "mean"
    config.optim.learning_rate = 1e-3
    config.train.seeds = 5
    config.train.epochs = 30
    return apply_argument(config, arg, widths={"connectome": 36}, lengths={"connectome": 9})
