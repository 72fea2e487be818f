"""Trains on all of CMU-MOSI (1284/229/686), text as GloVe vectors: the quotable run.

    python -m msajax.main --config configs/mosi.py --config.data.path=CORPUS.npz --workdir runs/mosi

CORPUS.npz is a native archive with text (N, 20, 300), and audio or video if there is any: the
recipe reads text alone. Expected: test MAE 0.994 +- 0.007, correlation 0.631 +- 0.009,
validation MAE 0.909 +- 0.006 over five random seeds that no trial had, by
--config.train.first_seed=1000, in a minute and a half on 2 CPU cores; over seeds 0 to 4, 1.008 +-
0.017 on test and 0.922 +- 0.018 on validation.

The recipe was chosen by trials on validation; the test split was not read. Two rounds of
three random seeds a trial led to width 128, input dropout 0.3, batch 16 (their tables stand below);
twenty fresh seeds then showed that choosing among so many by three seeds had found luck: 0.933
against 0.931 for the recipe before it. The third round therefore took ten or twenty fresh seeds a
trial (100 and up), from that recipe with these changes:

    valid MAE sd    seeds  changes
    0.913 0.013  10  D 256, ff 256, input 0.5, FFN dropout 0.3, weight decay 0.3, batch 32
    0.914 0.023  10  weight decay 0.3, batch 32
    0.918 0.017  10  weight decay 0.3, input 0.4, FFN dropout 0.3, batch 32
    0.919 0.016  10  weight decay 0.3, input 0.5, FFN dropout 0.3, batch 32, epochs 60
    0.919 0.018  10  input 0.5, batch 32, epochs 60
    0.919 0.010  10  no block, attention pooling, rate 0.002, batch 32
    0.921 0.020  10  D 256, ff 256, input 0.4, batch 32
    0.921 0.026  10  FFN dropout 0.3, batch 32
    0.924 0.022  10  input 0.4, rate 0.002, batch 32
    0.926 0.016  10  weight decay 1, batch 32
    0.927 0.018  10  weight decay 1, input 0.4, rate 0.002, batch 32
    0.930 0.020  10  dropout 0.2, input 0.2, batch 32
    0.931 0.025  20  input 0.2, batch 32
    0.933 0.024  20  none
    0.937 0.026  10  attention pooling, input 0.4, batch 32
    0.939 0.020  10  2 heads, attention dropout 0.3, batch 32
    0.940 0.011  10  no block, attention pooling, D 256, input 0.5, rate 0.002, decay 0.5, batch 32
    0.940 0.022  10  no positions
    0.944 0.026  10  sinusoidal positions
    0.959 0.020  10  1 head, batch 32
    0.960 0.025  10  pre-norm with a final norm
    0.974 0.019  10  LSTM in both directions, no positions
    0.996 0.028  10  GRU in both directions, no positions

The best of them and the recipe in place were tried once more on seeds 200 to 209, which no choice
had seen: 0.922 +- 0.020 against 0.942 +- 0.021. It took its place.

All trials: AdamW, cosine over 40 epochs after 100 steps of warm-up, clip 1, L1, mean pooling, 4
heads, ff_dim twice model_dim, unless a row says otherwise. The second round, with training in
length quarters, three seeds a trial:

    valid MAE sd   D layers rate dropout input batch  modalities (text if none), other changes
    0.905 0.007  128 1  0.001  0.1  0.3  16
    0.910 0.022  128 1  0.001  0.1  0.3  32
    0.912 0.004  128 1  0.001  0.1  0.4  16
    0.916 0.012  128 1  0.001  0.15 0.3  16
    0.917 0.029  128 1  0.001  0.1  0.3  16             loss huber
    0.920 0.020  128 1  0.001  0.1  0.2  32
    0.921 0.025  128 1  0.0007 0.1  0.3  8
    0.924 0.034  128 1  0.001  0.15 0.3  32
    0.925 0.018  128 1  0.0015 0.1  0.2  32
    0.925 0.025  128 1  0.001  0.1  0.3  16             epochs 30
    0.927 0.035  128 1  0.0007 0.1  0.3  16
    0.929 0.026  128 1  0.001  0.1  0.3  16             pooling_method attention
    0.929 0.012  192 1  0.001  0.1  0.3  16
    0.931 0.014  128 1  0.002  0.1  0.3  32             pooling_method attention
    0.933 0.020  128 1  0.001  0.1  0.3  24
    0.937 0.020  128 1  0.001  0.1  0.2  32             ff_dim 512
    0.938 0.020  128 1  0.001  0.05 0.3  32
    0.939 0.023  128 1  0.001  0.1  0.2  32             num_heads 8
    0.940 0.010  128 2  0.001  0.1  0.3  32
    0.941 0.040  128 1  0.0007 0.1  0.2  32
    0.941 0.013  128 1  0.001  0.1  0.2  16
    0.941 0.024  128 1  0.001  0.1  0.2  32             epochs 60
    0.942 0.024  128 1  0.001  0.1  0.2  32             weight_decay 0.1
    0.943 0.021  128 2  0.001  0.1  0.3  16
    0.947 0.014  128 1  0.001  0.1  0.2  32             pooling_method attention
    0.948 0.020  256 1  0.001  0.1  0.3  32
    0.951 0.035  128 1  0.001  0.1  0.2  32  text+audio
    0.953 0.029  128 1  0.001  0.1  0.3  32  text+audio n_layers_fuse 0
    0.956 0.049  256 1  0.001  0.1  0.2  32

The first round, before there were length quarters, with batch 32, three seeds a trial:

    valid MAE sd   D layers rate dropout input  modalities (text if none), other changes
    0.911 0.006  128 1  0.001  0.1  0.2
    0.912 0.046  128 1  0.001  0.1  0.3
    0.917 0.020   64 1  0.002  0.2  0.2             pooling_method attention
    0.923 0.017  128 1  0.001  0.1  0.4
    0.924 0.026   64 1  0.001  0.1  0.2
    0.928 0.045  128 1  0.002  0.1  0.3
    0.929 0.024  128 1  0.001  0.1  0.3  text+audio n_layers_fuse 0
    0.931 0.020   64 1  0.002  0.1  0.3
    0.931 0.026  128 1  0.001  0.1  0.3             pooling_method attention
    0.931 0.031   64 1  0.001  0.1  0.4
    0.934 0.021   64 1  0.001  0.1  0.3             epochs 60
    0.937 0.026   64 2  0.002  0.3  0               clip_norm 0.5
    0.938 0.018   64 2  0.002  0.2  0.2
    0.939 0.018   64 1  0.002  0.2  0.2
    0.939 0.040   64 1  0.001  0.2  0.1             pooling_method attention
    0.941 0.022   64 1  0.001  0.1  0.3
    0.941 0.028   64 2  0.002  0.2  0
    0.942 0.026   64 1  0.001  0    0.3
    0.945 0.002  128 2  0.002  0.3  0
    0.947 0.018   64 1  0.001  0.2  0.1
    0.948 0.024   64 1  0.001  0.2  0.2
    0.950 0.025   64 1  0.002  0.2  0.2             batch_size 64
    0.951 0.023   64 1  0.002  0.1  0.1
    0.953 0.042   64 1  0.001  0.1  0.2             pooling_method attention
    0.953 0.024   64 2  0.002  0.3  0
    0.953 0.023   64 1  0.002  0.2  0.2             loss huber
    0.954 0.012   64 1  0.001  0.1  0
    0.955 0.031   64 2  0.002  0.3  0               ff_dim 256
    0.956 0.044  128 1  0.001  0.2  0.1
    0.957 0.031  128 2  0.001  0.3  0
    0.958 0.008  128 1  0.001  0.2  0
    0.960 0.037   64 1  0.001  0.2  0               loss huber
    0.962 0.031   64 3  0.002  0.3  0
    0.962 0.024   64 1  0.002  0.2  0
    0.967 0.044   64 1  0.0005 0.2  0               batch_size 16
    0.968 0.034   64 1  0.0005 0.2  0
    0.968 0.031   64 1  0.001  0.2  0               schedule constant
    0.970 0.036   64 2  0.002  0.3  0               pooling_method attention
    0.970 0.015   64 2  0.001  0.2  0
    0.970 0.052   64 1  0.001  0.2  0               weight_decay 0.1
    0.972 0.029   64 2  0.002  0.3  0               batch_size 64
    0.973 0.032   64 2  0.002  0.3  0    text+audio n_layers_fuse 0
    0.974 0.024   64 2  0.001  0.1  0.2
    0.975 0.014   64 3  0.001  0.3  0
    0.975 0.023   64 2  0.002  0.3  0               epochs 25
    0.977 0.042   64 2  0.002  0.4  0
    0.977 0.050   64 1  0.0005 0.2  0               pooling_method attention
    0.978 0.047   64 1  0.001  0.2  0               num_heads 8
    0.978 0.020   64 1  0.001  0.2  0               loss mse
    0.978 0.022  128 2  0.0005 0.2  0
    0.981 0.026   64 1  0.001  0.2  0               standardize text
    0.982 0.040   64 1  0.001  0.2  0
    0.982 0.014   64 2  0.004  0.3  0
    0.984 0.037   64 2  0.0005 0.2  0
    0.985 0.038   32 1  0.001  0.2  0
    0.990 0.053   64 1  0.001  0.2  0               epochs 20
    0.992 0.027   64 2  0.0005 0.2  0               pooling_method attention
    0.996 0.009   64 1  0.001  0.2  0.1  text+audio n_layers_fuse 0
    0.997 0.034   64 2  0.001  0.3  0               pooling_method attention
    0.997 0.056   64 1  0.001  0.3  0
    0.999 0.029   64 2  0.001  0.3  0
    1.000 0.069   64 2  0.001  0.3  0               weight_decay 0.05
    1.007 0.020   64 2  0.001  0.3  0               num_heads 8
    1.026 0.021   64 2  0.0005 0.2  0    text+audio n_layers_fuse 0
    1.028 0.019  128 2  0.0005 0.3  0
    1.034 0.008  128 2  0.0001 0.1  0
    1.034 0.062   64 1  0.0005 0.2  0    text+audio n_layers_fuse 0
    1.048 0.042   64 2  0.0005 0.2  0    text+audio
    1.049 0.017   64 2  0.0002 0.2  0               pooling_method attention
    1.054 0.009   64 2  0.0002 0.2  0
    1.065 0.026   64 1  0.0002 0.2  0
    1.083 0.018   64 2  0.0002 0.2  0.3
    1.109 0.007   64 0  0.001  0.2  0
    1.153 0.041   64 2  0.0002 0.3  0.3

Differences under about 0.03 between rows are within the spread over seeds. Audio, here 73 utterance
statistics in one step, did not help: text alone is chosen.
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets one self-attention block of width 256 over text, five random seeds."""
    config = default_config()
    config.model.modalities = ("text",)
    config.model.model_dim = 256
    config.model.ff_dim = 256
    config.model.n_layers_mod = 1
    config.model.position_init = 0.02
    config.model.ffn_dropout = 0.3
    config.model.input_dropout = 0.5
    config.optim.name = "adamw"
    config.optim.learning_rate = 1e-3
    config.optim.schedule = "cosine"
    config.optim.weight_decay = 0.3
    config.optim.warmup_steps = 100
    config.optim.clip_norm = 1.0
    config.train.seeds = 5
    config.train.epochs = 40
    config.train.patience = 0
    return apply_argument(config, arg, widths={"text": 300}, lengths={"text": 20})


def get_space():
    """Says what a sweep tries: the size, and what keeps the model from learning by heart."""
    return {
        "model.model_dim": [64, 128, 256],
        "model.input_dropout": (0.2, 0.6, "linear"),
        "optim.learning_rate": (3e-4, 3e-3, "log"),
        "optim.weight_decay": (0.03, 1.0, "log"),
    }
