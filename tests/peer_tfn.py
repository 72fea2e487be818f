"""Gives the models of tensor fusion, TFN and LMF, a reference's parameters."""

import jax
import jax.numpy as jnp
import numpy as np
from check_peers import File, count, linear, lstm, nested, norm, require_same_paths, with_gradient

from msajax.models.peers.common import STATISTICS


def rebuild_with(file: File, head: dict[str, np.ndarray], **settings) -> tuple[int, dict]:
    """Computes the outputs of a file, in evaluation and in training without dropout."""
    param, module = file.param, file.build(**settings)
    flat, statistics = dict(head), {}
    flat |= lstm("text_subnet.rnn", param, "vectors/text_lstm")
    flat |= linear("text_subnet.linear_1", param, "vectors/text_linear")
    for m in ("audio", "video"):
        here, there = f"vectors/{m}_subnet", f"{m}_subnet"
        flat |= norm(f"{there}.norm", param, f"{here}/norm")
        for number in range(3):
            flat |= linear(f"{there}.linear_{number + 1}", param, f"{here}/linear_{number}")
        statistics |= {
            f"{here}/norm/mean": param[f"{there}.norm.running_mean"],
            f"{here}/norm/variance": param[f"{there}.norm.running_var"],
        }
    params, statistics = nested(flat), nested(statistics)
    features, masks = file.batch
    require_same_paths(params, module, features, masks)
    found = {}
    for train, prefix in ((False, ""), (True, "train_")):
        if not any(name.startswith("train_") for name in file.output) and train:
            continue

        def loss(params, train=train):
            variables = {"params": params, STATISTICS: statistics}
            prediction, kept = module.apply(
                variables, features, masks, train=train, mutable=["intermediates", STATISTICS]
            )
            score = prediction.score
            return jnp.abs(score - file.input["label"]).mean(), (score, kept)

        value, (score, kept), gradient = with_gradient(loss, params)
        found |= {f"{prefix}score": score, f"{prefix}loss": value, f"{prefix}grad_norm": gradient}
        if train:
            for m in ("audio", "video"):
                moved = kept[STATISTICS]["vectors"][f"{m}_subnet"]["norm"]
                found |= {
                    f"train_{m}_running_mean": moved["mean"],
                    f"train_{m}_running_var": moved["variance"],
                }
            continue
        inside = kept["intermediates"]
        found["fused"] = jnp.squeeze(inside["fused"][0])
        for m in features:
            found[f"{m}_hidden"] = inside["vectors"][f"{m}_hidden"][0]
    return count(params), jax.device_get(found)


def rebuild(file: File) -> tuple[int, dict]:
    """Computes the outputs of a file of TFN."""
    from msajax.models.peers.settings import TfnSettings

    c, head = file.config, {}
    for number, name in enumerate(("post_0", "post_1", "regression")):
        head |= linear(f"post_fusion_layer_{number + 1}", file.param, name)
    own = TfnSettings(
        text_hidden=c["text_hidden"], text_out=c["text_out"], audio_hidden=c["audio_hidden"],
        video_hidden=c["video_hidden"], post_fusion=c["post_fusion_dim"], text_dropout=0.0,
        audio_dropout=0.0, video_dropout=0.0, post_dropout=0.0, lowest=c["score_shift"],
        highest=c["score_shift"] + c["score_scale"],
    )  # fmt: skip
    return rebuild_with(file, head, name="tfn", own=own)
