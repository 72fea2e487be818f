"""Gives MulT a reference's parameters."""

import jax
import jax.numpy as jnp
import numpy as np
from check_peers import File, count, linear, nested, norm, with_score

from msajax.models.peers.settings import MultSettings

LETTERS = {"text": "l", "audio": "a", "video": "v"}


def stack(names: list[str], param: dict[str, np.ndarray], to: str) -> dict[str, np.ndarray]:
    """Renames encoders: they and their layers are one array `[encoder, layer, …]` of each kind."""
    layers = sum(f"{names[0]}.layers.{i}.fc1.weight" in param for i in range(len(param)))
    kinds = {
        "attention/kernel": "self_attn.in_proj_weight", "attention/bias": "self_attn.in_proj_bias",
        "out/kernel": "self_attn.out_proj.weight", "out/bias": "self_attn.out_proj.bias",
        "norm_attention/scale": "layer_norms.0.weight", "norm_ffn/scale": "layer_norms.1.weight",
        "norm_attention/bias": "layer_norms.0.bias", "norm_ffn/bias": "layer_norms.1.bias",
        "inner/kernel": "fc1.weight", "inner/bias": "fc1.bias",
        "outer/kernel": "fc2.weight", "outer/bias": "fc2.bias",
    }  # fmt: skip
    flat = {}
    for here, there in kinds.items():
        x = np.stack([[param[f"{n}.layers.{i}.{there}"] for i in range(layers)] for n in names])
        flat[f"{to}/{here}"] = np.swapaxes(x, 2, 3) if here.endswith("kernel") else x
    last = [norm(f"{name}.layer_norm", param, f"{to}/last_norm") for name in names]
    return flat | {path: np.stack([of[path] for of in last]) for path in last[0]}


def rebuild(file: File) -> tuple[int, dict]:
    """Computes the outputs of a file, those of leading padding as the original does."""
    c, param, flat = file.config, file.param, {}
    features, masks = file.batch
    unused = 0
    for m, letter in LETTERS.items():
        kernel = param[f"proj_{letter}.weight"]
        if features[m].shape[2] == c["d_model"]:  # which the reference has, and leaves out
            unused += kernel.size
            continue
        kernel = kernel.transpose(2, 1, 0)  # [step, input, output]
        flat[f"{m}_projection/kernel"] = kernel.reshape(-1, kernel.shape[-1])
    pairs = [(m, other) for m in LETTERS for other in LETTERS if other != m]
    names = [f"trans_{LETTERS[m]}_with_{LETTERS[other]}" for m, other in pairs]
    flat |= stack(names, param, "between")
    flat |= stack([f"trans_{letter}_mem" for letter in LETTERS.values()], param, "memory")
    for name, to in (("proj1", "post_0"), ("proj2", "post_1"), ("out_layer", "regression")):
        flat |= linear(name, param, to)
    params, found = nested(flat), {}
    rates = [name for name in MultSettings.__dataclass_fields__ if name.endswith("dropout")]
    own = dict.fromkeys(rates, 0.0)
    own |= {name: c[name] for name in ("d_model", "num_heads", "num_layers")}
    own |= {f"{m}_kernel": c[f"kernel_{m}"] for m in LETTERS}
    own |= {name: bool(c[name]) for name in ("causal_mask", "positions")}

    def outputs(compat, features, masks):
        module = file.build(name="mult", own=MultSettings(compat=compat, **own))
        return with_score(
            module, params, (features, masks), lambda x: jnp.abs(x - file.input["label"]).mean()
        )

    value, (score, kept), gradient = outputs("reference" if unused else "clean", features, masks)
    found |= {"score": score, "loss": value, "grad_norm": gradient, "fused": kept["fused"][0]}
    found |= {name: kept["found"][0][pair] for name, pair in zip(names, pairs, strict=True)}
    for m, letter in LETTERS.items():
        found |= {f"trans_{letter}_mem": kept["memories"][0][m], f"last_{m}": kept["last"][0][m]}
    if "padded_text" in file.input:
        features = {m: file.input[f"padded_{m}"] for m in features}
        masks = {
            m: np.arange(x.shape[1]) >= x.shape[1] - file.input[f"padded_{m}_length"][:, None]
            for m, x in features.items()
        }
        value, (score, kept), _ = outputs("reference", features, masks)
        found |= {"padded_score": score, "padded_loss": value, "padded_fused": kept["fused"][0]}
    return count(params) + unused, jax.device_get(found)
