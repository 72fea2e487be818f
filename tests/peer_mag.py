"""Gives MAG-BERT, and its gate alone, a reference's parameters."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from check_peers import File, count, linear, nested, norm, require_same_paths, with_gradient

from msajax.config import ModelConfig
from msajax.encoders.bert import Embeddings
from msajax.encoders.module import parameters_of
from msajax.encoders.table import read_architecture
from msajax.models.build import build_model
from msajax.models.peers.mag import Gate
from msajax.models.peers.settings import MagSettings
from msajax.spec import CorpusSpec

BESIDE = ("audio", "video")


def gate_parameters(prefix: str, param: dict, to: str = "") -> dict[str, np.ndarray]:
    """Renames the gate's parameters."""
    found = norm(f"{prefix}LayerNorm", param, f"{to}norm")
    for m in BESIDE:
        found |= linear(f"{prefix}W_h{m[0]}", param, f"{to}{m}_gate")
        found |= linear(f"{prefix}W_{m[0]}", param, f"{to}{m}_shift")
    return found


def of_gate(inside: dict) -> dict[str, jax.Array]:
    """What the gate keeps, by the names of the files."""
    names = ("gate_audio", "gate_video", "shift", "alpha", "fused")
    return {name: inside[name][0] for name in names}


def rebuild(file: File) -> tuple[int, dict]:
    """Computes the outputs of a file of MAG-BERT or of the gate."""
    return _gate(file) if file.config["model"] == "mag_gate" else _bert(file)


def _gate(file: File) -> tuple[int, dict]:
    module, text = Gate(file.config["beta_shift"], 0.0, masked=False), file.input["text"]
    rows = {m: file.input[m] for m in BESIDE}
    masks = dict.fromkeys(BESIDE, np.ones(text.shape[:2], bool))
    params = nested(gate_parameters("", file.param))

    def loss(params):
        fused, kept = module.apply(
            {"params": params}, text, rows, masks, train=False, mutable="intermediates"
        )
        return (fused * file.input["probe"]).mean(), of_gate(kept["intermediates"])

    value, found, gradient = with_gradient(loss, params)
    found |= {"loss": value, "grad_norm": gradient}
    return count(params), jax.device_get(found)


def _bert(file: File) -> tuple[int, dict]:
    c, given = file.config, file.input
    content = {
        "model_type": "bert", "vocab_size": c["vocab_size"], "hidden_size": c["text_dim"],
        "num_hidden_layers": c["num_layers"], "num_attention_heads": c["num_heads"],
        "intermediate_size": c["ff_dim"], "max_position_embeddings": c["max_positions"],
        "type_vocab_size": len(file.param["bert.embeddings.token_type_embeddings.weight"]),
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    encoder = read_architecture(content, "the file's config")
    names, steps = ("text", *BESIDE), given["input_ids"].shape[1]
    spec = CorpusSpec(
        names, (0, c["audio_dim"], c["video_dim"]), (steps,) * 3, encoders=(encoder, None, None),
        vocabularies=(encoder.vocabulary, 0, 0), groups=(names,),
    )  # fmt: skip
    own = MagSettings(compat="reference", beta_shift=c["beta_shift"], gate_dropout=0.0)
    module = build_model(ModelConfig(name="mag", own=own), spec)

    tensors = {name.removeprefix("bert."): x for name, x in file.param.items()}
    flat = gate_parameters("bert.MAG.", file.param, "gate/")
    flat |= linear("bert.pooler.dense", file.param, "pooler")
    flat |= linear("classifier", file.param, "regression")
    flat |= {
        f"text_pretrained/encoder/{path}": x for path, x in parameters_of(encoder, tensors).items()
    }
    params = nested(flat)
    mask = given["attention_mask"] > 0
    # Which pieces are special no file says: rows of zeros shift in any case.
    place = np.broadcast_to(np.arange(steps, dtype=np.int32), mask.shape)
    pieces = np.stack([given["input_ids"], given["token_type_ids"], place], axis=-1)
    features = {"text": pieces, **{m: given[m] for m in BESIDE}}
    masks = dict.fromkeys(names, mask)
    require_same_paths(params, module, features, masks)

    def kept_of(one: nn.Module, method: str) -> bool:
        return isinstance(one, Embeddings) and method == "__call__"

    def loss(params, power):
        prediction, kept = module.apply(
            {"params": params}, features, masks, mutable="intermediates",
            capture_intermediates=kept_of,
        )  # fmt: skip
        error = jnp.abs(prediction.score - given["label"]) ** power
        return error.mean(), (prediction.score, kept["intermediates"])

    found = {}
    for power, suffix in ((2, ""), (1, "_l1")):
        value, (score, inside), gradient = with_gradient(lambda p, k=power: loss(p, k), params)
        found |= {f"loss{suffix}": value, f"grad_norm{suffix}": gradient, "score": score}
    encoded = inside["text_pretrained"]["encoder"]
    by_step = {
        "embedding": encoded["embeddings"]["__call__"][0],
        "fused": of_gate(inside["gate"])["fused"],
        "hidden": encoded["hidden"][0][-1],
    }
    # Padding is not read here, and what the reference makes of it reaches nothing else.
    for name, x in by_step.items():
        found[name] = np.where(mask[..., None], x, file.output[name])
    found["pooled"] = inside["pooled"][0]
    return count(params), jax.device_get(found)
