"""Gives MISA a reference's parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from check_peers import File, count, linear, lstm, nested, norm, require_same_paths

from msajax.config import TrainConfig
from msajax.models.peers.misa import terms
from msajax.models.peers.settings import MisaSettings
from msajax.preparation.batches import Batch
from msajax.training.objective import loss_of

MODALITIES = ("text", "audio", "video")
THEIRS = ("text", "video", "audio")  # the order in which the reference puts vectors side by side


def both_ways(name: str, param: dict, to: str) -> dict[str, np.ndarray]:
    """Renames an LSTM of two directions."""
    found = [lstm(name, param, f"{to}/lstm", f"l0{way}") for way in ("", "_reverse")]
    return {path: np.stack([one[path] for one in found]) for path in found[0]}


def attention(name: str, param: dict, to: str, heads: int) -> dict[str, np.ndarray]:
    """Renames attention whose projections of queries, keys and values are joined."""
    kernels = np.split(param[f"{name}.in_proj_weight"], 3)
    biases = np.split(param[f"{name}.in_proj_bias"], 3)
    width, found = len(kernels[0]), {}
    for ours, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
        found[f"{to}/{ours}/kernel"] = kernel.T.reshape(width, heads, -1)
        found[f"{to}/{ours}/bias"] = bias.reshape(heads, -1)
    out = linear(f"{name}.out_proj", param, f"{to}/out")
    return found | out | {f"{to}/out/kernel": out[f"{to}/out/kernel"].reshape(heads, -1, width)}


def parameters(param: dict, heads: int) -> tuple[dict, int]:
    """Makes our parameters, by path, and counts those of the file that nothing depends on."""
    flat = linear("shared.shared_1", param, "shared")
    for m in MODALITIES:
        k = m[0]
        flat |= linear(f"project_{k}.project_{k}", param, f"{m}_projection")
        flat |= norm(f"project_{k}.project_{k}_layer_norm", param, f"{m}_norm")
        flat |= linear(f"private_{k}.private_{k}_{3 if k == 'a' else 1}", param, f"{m}_private")
        flat |= linear(f"recon_{k}.recon_{k}_1", param, f"{m}_recon")
        if m != "text":
            flat |= both_ways(f"{k}rnn1", param, f"{m}_recurrent/first")
            flat |= norm(f"{k}layer_norm", param, f"{m}_recurrent/norm")
            flat |= both_ways(f"{k}rnn2", param, f"{m}_recurrent/second")
    layer = "transformer_encoder.layers.0"
    flat |= attention(f"{layer}.self_attn", param, "fusion/attention", heads)
    flat |= norm(f"{layer}.norm1", param, "fusion/norm_attention")
    flat |= norm(f"{layer}.norm2", param, "fusion/norm_ffn")
    flat |= linear(f"{layer}.linear1", param, "fusion/ffn/inner")
    flat |= linear(f"{layer}.linear2", param, "fusion/ffn/outer")
    # Their head reads text, video, audio, private before shared.
    flat |= linear("fusion.fusion_layer_1", param, "head")
    blocks = flat["head/kernel"].reshape(2, 3, -1, flat["head/kernel"].shape[1])
    blocks = blocks[:, [THEIRS.index(m) for m in MODALITIES]]
    flat["head/kernel"] = blocks.reshape(flat["head/kernel"].shape)
    flat |= linear("fusion.fusion_layer_3", param, "regression")
    dead = sum(x.size for name, x in param.items() if name.startswith(("sp_disc", "tlayer_norm")))
    return nested(flat), dead


def rebuild(file: File) -> tuple[int, dict]:
    """Computes the outputs of a file of MISA."""
    c = file.config
    own = MisaSettings(  # a term of weight 1 is there, whatever the file gives it
        hidden=c["hidden_size"], num_heads=c["num_heads"], ff_dim=c["ff_dim"], fusion_dropout=0.0,
        head_dropout=0.0, diff_weight=1.0, sim_weight=1.0, recon_weight=1.0,
    )  # fmt: skip
    module = file.build(name="misa", own=own)
    params, dead = parameters(file.param, c["num_heads"])
    features, masks = file.batch
    require_same_paths(params, module, features, masks)
    rows = len(file.input["label"])
    batch = Batch(features, masks, file.input["label"], jnp.ones(rows), jnp.arange(rows))
    objective = terms(module.config, "task", loss_of("regression", "mse", TrainConfig()))

    def losses(params):
        prediction, kept = module.apply(
            {"params": params}, features, masks, train=True, mutable="intermediates"
        )
        measured = {name: term.measure(prediction, batch) for name, term in objective.items()}
        found = {name: total / weight for name, (total, weight) in measured.items()}
        return found, (found, prediction, kept["intermediates"])

    gradients, (values, prediction, inside) = jax.jit(jax.jacrev(losses, has_aux=True))(params)
    weights = {name: 1.0 if name == "task" else c[f"{name}_weight"] for name in objective}
    whole = jax.tree.map(
        lambda *each: sum(w * g for w, g in zip(weights.values(), each, strict=True)),
        *(gradients[name] for name in weights),
    )
    found = {
        "score": prediction.score,
        "loss": sum(weights[name] * value for name, value in values.items()),
        "grad_norm": optax.tree.norm(whole),
        **{f"loss_{name}": value for name, value in values.items()},
        **{f"grad_norm_{name}": optax.tree.norm(of_one) for name, of_one in gradients.items()},
    }
    kept = {"projected": "projected", "private": "private", "shared": "shared", "recon": "rebuilt"}
    for i, m in enumerate(MODALITIES):
        found[f"utterance_{m}"] = inside[f"utterance_{m}"][0]
        found |= {f"{name}_{m}": prediction.aux[ours][:, i] for name, ours in kept.items()}
    theirs = [3 * kind + MODALITIES.index(m) for kind in (0, 1) for m in THEIRS]
    found["fusion_tokens"] = inside["fused"][0].reshape(rows, 6, -1)[:, jnp.array(theirs)]
    found["fused"] = found["fusion_tokens"].reshape(rows, -1)
    return count(params) + dead, jax.device_get(found)
