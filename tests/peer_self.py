"""Gives Self-MM a reference's parameters, and its labels a reference's features."""

import jax
import jax.numpy as jnp
import numpy as np
from check_peers import File, count, linear, lstm, nested, require_same_paths, with_gradient

from msajax.config import ModelConfig, TrainConfig
from msajax.models.build import declared
from msajax.models.contract import Prediction
from msajax.models.peers.self_mm import ALL, centres, unimodal_errors
from msajax.models.peers.settings import SelfMmSettings
from msajax.preparation.batches import Batch
from msajax.spec import CorpusSpec
from msajax.training.objective import loss_of

NAMES = ("text", "audio", "video")
NO_DROPOUT = dict.fromkeys(
    (f"{m}_dropout" for m in ("fusion", *NAMES, "audio_lstm", "video_lstm")), 0.0
)


def rebuild(file: File) -> tuple[int, dict]:
    """Computes the outputs of a file: of the model, or of what becomes of its labels."""
    return (of_labels if file.config["model"].endswith("update") else of_model)(file)


def losses(config: ModelConfig, prediction: Prediction, batch: Batch) -> dict[str, jax.Array]:
    """The objective, and the part of it that each score has."""
    loss = loss_of("regression", "l1", TrainConfig())
    terms = declared(config).terms(config, "l1", loss)
    measured = {name: term.measure(prediction, batch) for name, term in terms.items()}
    found = {f"loss_{m}": x.mean() for m, x in unimodal_errors(prediction, batch).items()}
    found["loss_fusion"] = measured["l1"][0] / measured["l1"][1]
    found["loss"] = sum(terms[name].weight * x / weight for name, (x, weight) in measured.items())
    return found


def of_model(file: File) -> tuple[int, dict]:
    """Computes scores, features, losses and the gradient."""
    c, flat = file.config, {}
    for m in ("audio", "video"):
        flat |= lstm(f"{m}_model.rnn", file.param, f"{m}_subnet/lstm")
        flat |= linear(f"{m}_model.linear_1", file.param, f"{m}_subnet/linear")
    for m in ("fusion", *NAMES):
        to = m if m == "fusion" else f"{m}_head"
        for number, name in enumerate(("feature", "hidden", "score"), 1):
            flat |= linear(f"post_{m}_layer_{number}", file.param, f"{to}/{name}")
    settings = {f"post_{m}": c[f"post_{m}_dim"] for m in ("fusion", *NAMES)}
    settings |= {k: c[k] for k in ("audio_lstm", "video_lstm", "audio_out", "video_out")}
    own = SelfMmSettings(compat="reference", **settings, **NO_DROPOUT)
    module = file.build(name="self_mm", own=own)
    params, (features, masks) = nested(flat), file.batch
    require_same_paths(params, module, features, masks)
    label, rows = file.input["label"], len(file.input["label"])
    memory = {f"label_{m}": file.input[f"label_{m}"][:, 0] for m in NAMES}
    batch = Batch(features, masks, label, jnp.ones(rows), jnp.arange(rows), memory)

    def loss(params):
        prediction, kept = module.apply(
            {"params": params}, features, masks, train=True, mutable="intermediates"
        )
        found = losses(module.config, prediction, batch)
        return found["loss"], (prediction, kept["intermediates"], found)

    _, (prediction, inside, found), gradient = with_gradient(loss, params)
    found |= {"score": prediction.score, "grad_norm": gradient, **prediction.aux}
    found["feature_fusion"] = found.pop("feature")
    found |= {f"{m}_vector": inside[f"{m}_vector"][0] for m in ("audio", "video")}
    return count(params), jax.device_get(found)


def of_labels(file: File) -> tuple[int, dict]:
    """Computes labels, centres and losses of steps whose features and scores are given."""
    c, given = file.config, file.input
    settings = {f"post_{m}": c[f"post_{m}_dim"] for m in ("fusion", *NAMES)}
    compat = "reference" if c["exclude_zero"] else "original"
    own = SelfMmSettings(compat=compat, label_range=c["label_range"], **settings)
    config = ModelConfig(name="self_mm", own=own)
    memory, size = declared(config).memory, c["batch_size"]
    spec = CorpusSpec(NAMES, (1, 1, 1), (1, 1, 1))
    masks = dict.fromkeys(NAMES, jnp.ones((size, 1), bool))

    labels = jnp.asarray(given["label"])[:, None]

    @jax.jit
    def step(epoch, kept, row, features, scores):
        label = labels[row]
        mine = {name: x[row] for name, x in kept.items()}
        batch = Batch({}, masks, label, jnp.ones(size), row, mine)
        aux = {f"feature_{m}": features[m] for m in NAMES} | {"feature": features["fusion"]}
        aux |= {f"score_{m}": scores[m][:, None] for m in NAMES}
        prediction = Prediction(scores["fusion"][:, None], None, aux)
        found = losses(config, prediction, batch)
        rows = memory.update(kept, prediction, batch, epoch)
        kept = {name: x.at[row].set(rows[name]) for name, x in kept.items()}
        pairs = {m: centres(own, kept, m)[0] for m in NAMES}
        pairs["fusion"] = centres(own, kept, ALL)[0]
        return kept, found, pairs

    kept = {name: jnp.asarray(x) for name, x in memory.begin(labels, spec).items()}
    log = []
    for epoch, order in enumerate(given["order"]):
        for number, row in enumerate(order):
            of_step = (
                {m: given[f"{what}_{m}"][epoch, number] for m in ("fusion", *NAMES)}
                for what in ("feature", "score")
            )
            kept, found, pairs = step(epoch, kept, row, *of_step)
            seen = {"loss": found["loss"]} | {f"label_{m}": kept[f"label_{m}"] for m in NAMES}
            seen["loss_heads"] = jnp.stack([found[f"loss_{m}"] for m in ("fusion", *NAMES)])
            for m, pair in pairs.items():
                seen |= {f"center_{m}_pos": pair[0], f"center_{m}_neg": pair[1]}
            log.append(jax.device_get(seen))
    steps = given["order"].shape[:2]
    found = {k: np.stack([one[k] for one in log]) for k in log[0]}
    found = {k: x.reshape(*steps, *x.shape[1:]) for k, x in found.items()}
    found |= {f"bank_{m}": kept[f"bank_{m}"] for m in NAMES} | {"bank_fusion": kept["bank"]}
    return 0, jax.device_get(found)
