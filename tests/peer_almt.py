"""Gives ALMT a reference's parameters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from check_peers import File, count, linear, nested, norm, with_score

from msajax.config import ModelConfig
from msajax.models.build import build_model
from msajax.models.peers.settings import AlmtSettings


def block(name: str, param: dict[str, np.ndarray], to: str) -> dict[str, np.ndarray]:
    """Renames a layer of attention and feed-forward network."""
    flat = {}
    for part, short in (("query", "q"), ("key", "k"), ("value", "v")):
        flat |= norm(f"{name}.0.norm_{short}", param, f"{to}/norm_{part}")
        flat |= linear(f"{name}.0.fn.to_{short}", param, f"{to}/attention/{part}")
    flat |= out_of(f"{name}.0.fn", param, to) | norm(f"{name}.1.norm", param, f"{to}/norm_ffn")
    flat |= linear(f"{name}.1.fn.net.0", param, f"{to}/inner")
    return flat | linear(f"{name}.1.fn.net.3", param, f"{to}/outer")


def out_of(name: str, param: dict[str, np.ndarray], to: str) -> dict[str, np.ndarray]:
    """Renames attention's last map, which a single head of the model's width has not."""
    there = f"{name}.to_out.0"
    return linear(there, param, f"{to}/attention/out") if f"{there}.weight" in param else {}


def rebuild(file: File) -> tuple[int, dict]:
    """Computes the outputs of a file."""
    c, param, letters = file.config, file.param, {"text": "l", "audio": "a", "video": "v"}
    of_mmsa = {f"embedding_{letter}": f"proj_{letter}" for letter in letters.values()}
    of_mmsa["regression_head"] = "regression_layer.0"
    for old, new in of_mmsa.items():
        param = {k.replace(f"{old}.", f"{new}.", 1) if k.startswith(old) else k: x
                 for k, x in param.items()}  # fmt: skip
    flat = {"hyper": param["h_hyper"][0], "fusion/token": param["fusion_layer.extra_token"][0]}
    for m, letter in letters.items():
        to, there = f"{m}_tokens", f"proj_{letter}"
        flat |= linear(f"{there}.0", param, f"{to}/projection")
        flat[f"{to}/tokens"] = param[f"{there}.1.extra_token"][0]
        flat[f"{to}/positions/embedding"] = param[f"{there}.1.pos_embedding"][0]
        for i in range(c["embed_depth"]):
            flat |= block(f"{there}.1.encoder.layers.{i}", param, f"{to}/blocks_{i}")
    flat["text_positions/embedding"] = param["l_encoder.pos_embedding"][0]
    for i in range(c["hyper_depth"] - 1):
        flat |= block(f"l_encoder.encoder.layers.{i}", param, f"text_{i}")
    for i in range(c["hyper_depth"]):
        there, to = f"h_hyper_layer.layers.{i}.0", f"hyper_{i}"
        for number, name in enumerate(("query", "audio", "video", "hyper")):
            flat |= norm(f"{there}.norm{number + 1}", param, f"{to}/norm_{name}")
        flat |= linear(f"{there}.fn.to_q", param, f"{to}/attention/query")
        for m in ("audio", "video"):
            for part in ("key", "value"):
                name = f"{there}.fn.to_{part[0]}_t{m[0]}"
                flat |= linear(name, param, f"{to}/attention/{part}_{m}")
        flat |= out_of(f"{there}.fn", param, to)
    for name, short in (("hyper", "s"), ("text", "t")):
        flat[f"fusion/{name}_positions/embedding"] = param[f"fusion_layer.pos_embedding_{short}"][0]
    for i in range(c["fusion_depth"]):
        there = f"fusion_layer.CrossTransformerEncoder.layers.{i}"
        flat |= block(there, param, f"fusion/blocks_{i}")
    flat |= linear("regression_layer.0", param, "regression")
    params = nested(flat)
    names = set(AlmtSettings.__dataclass_fields__) & set(c)
    features, masks = file.batch
    lengths = tuple(c[f"{m}_steps"] for m in features)  # tables may be longer than sequences
    config = ModelConfig(name="almt", own=AlmtSettings(**{name: c[name] for name in names}))
    module = build_model(config, dataclasses.replace(file.spec, lengths=lengths))
    value, (score, kept), gradient = with_score(
        module, params, (features, masks), lambda x: jnp.square(x - file.input["label"]).mean()
    )
    found = {"score": score, "loss": value, "grad_norm": gradient, "fused": kept["fused"][0]}
    found |= {f"tokens_{m}": x for m, x in kept["tokens"][0].items()}
    found |= {f"text_scale_{i + 1}": x for i, x in enumerate(kept["scales"][0])}
    found["hyper"] = kept["hyper_modality"][0]
    return count(params), jax.device_get(found)
