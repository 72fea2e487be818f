"""Makes the embedded corpora whose score needs what two modalities say at the same step.

Both modalities are noise but for column 0. The first one's is a valence `v_t ~ N(0, 1)` at every
step. The second one's says which valence counts, and how:

    sign:   a sign s_t = +-1 at every step;     y = 1.2 sum_t v_t s_t / sqrt(T)
    stress: 3 at one random step k, else noise; y = 1.2 v_k

Alone, no modality says anything about a sign score; of a stress score the valences know a little,
the stress nothing.
"""

import numpy as np

from msajax.config import SyntheticConfig
from msajax.corpus.corpus import Split
from msajax.corpus.synthetic_connectome import generator

STRESS = 3.0
_FEATURE_NOISE = 0.3
_LABEL_NOISE = 0.1
_SCALE = 1.2


def make_split(name: str, config: SyntheticConfig) -> tuple[Split, np.ndarray]:
    """Makes a split and its scores without noise `[N]`; the same settings give the same bytes.

    Args:
        name: of the split.
        config: two modalities of `lengths[0]` steps; its task is sign or stress.
    """
    size, steps = getattr(config, name), config.lengths[0]
    rng = generator(config, config.task, name)
    first, second = (
        rng.normal(0, _FEATURE_NOISE, (size, steps, width)) for width in config.widths
    )
    first[..., 0] = valence = rng.normal(size=(size, steps))
    if config.task == "sign":
        second[..., 0] = sign = rng.choice([-1.0, 1.0], (size, steps))
        clean = _SCALE * (valence * sign).sum(axis=1) / np.sqrt(steps)
    else:
        rows, stressed = np.arange(size), rng.integers(0, steps, size)
        second[rows, stressed, 0] = STRESS
        clean = _SCALE * valence[rows, stressed]
    labels = np.clip(clean + rng.normal(0, _LABEL_NOISE, size), -3, 3)
    features = dict(zip(config.modalities, (first, second), strict=True))
    return (
        Split(
            ids=np.array([f"{name}{i:06d}" for i in range(size)]),
            features={m: x.astype(np.float32) for m, x in features.items()},
            masks={m: np.ones((size, steps), bool) for m in config.modalities},
            labels=labels[:, None],
        ),
        np.clip(clean, -3, 3),
    )
