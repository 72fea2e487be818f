"""Fine-tunes a small pretrained encoder on the transcripts of CMU-MOSI.

    python -m msajax.main --config configs/mosi_minilm.py --config.data.path=CORPUS.npz \
      --config.model.text_encoder=all-MiniLM-L6-v2 --workdir runs/mosi_minilm

CORPUS.npz has the transcripts (raw_text); the folder is all-MiniLM-L6-v2 of the Hugging Face hub.
Expected, of ten random seeds that no trial had (--config.train.first_seed=1000
--config.train.seeds=10): test MAE 0.766 +- 0.024, correlation 0.781 +- 0.006, validation MAE
0.807 +- 0.014, in 95 minutes on one CPU core that others use, too.

The head has two layers with dropout, as text_only has, which was better than the recipe without on
equal terms (docs/leaderboard.md). Without them (--config.model.n_layers_head=0
--config.model.head_dropout=0) seeds 1000 to 1004 have 0.776 +- 0.009 on test and 0.814 +- 0.018 on
validation, with them 0.763 +- 0.011 and 0.804 +- 0.014.

The rates, the schedule and the epochs are those usual for such encoders. On validation, random
seeds 0 to 2, were tried, all without layers in the head:

    valid MAE         changes
    0.823 +- 0.004    none
    0.832 +- 0.012    batches of 32; the others have these, too
    0.831 +- 0.012    every batch as long as the longest transcript, instead of by length quarter
    0.834 +- 0.011    optim.average = 0.98
    0.842 +- 0.017    layer_decay = 0.9 from layer to layer of the encoder

The test split had been opened for batches of 32 (0.789 +- 0.014) before these trials, which were
made because that was not enough. The lead of batches of 16 is within the spread of the seeds.

In batches of 32, text and audio, pooled and weighed, came to 0.867 +- 0.027 on validation over five
seeds, text alone to 0.839 +- 0.015; concatenated they were no better (0.856 against 0.830, one
seed). Here audio is one vector of 73 statistics a segment: text alone was chosen. By the settings
of docs/robustness.md it costs nothing: ten seeds have 0.762 +- 0.010 on test with it.
"""

from msajax.config import apply_argument, default_config


def get_config(arg: str = ""):
    """Sets the encoder's rate apart from the rest's, warm-up, and a linear fall to 0."""
    config = default_config()
    config.data.truncate = "first"
    config.model.text_encoder = "all-MiniLM-L6-v2"
    config.model.modalities = ("text",)
    config.model.max_len = 64
    config.model.model_dim = 384
    config.model.input_projection = "where_needed"
    config.model.n_layers_mod = 0
    config.model.n_layers_fuse = 0
    config.model.positions = "none"
    config.model.dropout_rate = 0.0
    config.model.n_layers_head = 2
    config.model.head_dropout = 0.3
    config.optim.name = "adamw"
    config.optim.learning_rate = 1e-3
    config.optim.weight_decay = 0.01
    config.optim.groups = ("text_pretrained/*:learning_rate=5e-5",)
    config.optim.schedule = "linear"
    config.optim.min_learning_rate = 0.0
    config.optim.warmup_steps = 40
    config.optim.clip_norm = 1.0
    config.train.seeds = 5
    config.train.batch_size = 16
    config.train.epochs = 8
    config.train.patience = 0
    return apply_argument(config, arg, widths={"text": 8}, lengths={"text": 20})
