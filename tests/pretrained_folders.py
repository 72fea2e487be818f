"""Small folders of pretrained text encoders with random weights, and the encoders in numpy."""

import json
import math
import pathlib
from typing import Any

import numpy as np
import safetensors.numpy
import scipy.special

from msajax.encoders.architecture import Architecture
from msajax.encoders.module import _KINDS

Tensors = dict[str, np.ndarray]

SIZES = {
    "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 12, "max_position_embeddings": 12,
}
BERT = {**SIZES, "model_type": "bert", "layer_norm_eps": 1e-3}
ROBERTA = {**BERT, "model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1}
MODERN = {
    **SIZES, "model_type": "modernbert", "num_hidden_layers": 3, "norm_eps": 1e-3,
    "global_attn_every_n_layers": 2, "local_attention": 4, "global_rope_theta": 500.0,
    "local_rope_theta": 20.0,
}
DEBERTA = {
    **SIZES, "model_type": "deberta-v2", "layer_norm_eps": 1e-3, "relative_attention": True,
    "position_biased_input": False, "position_buckets": 4, "pos_att_type": "p2c|c2p",
    "share_att_key": True, "norm_rel_ebd": "layer_norm",
}


def random_tensors(config: dict[str, Any]) -> Tensors:
    """Every weight, biases and scales included, is a random number."""
    architecture = Architecture.read(config, "config.json")
    rng = np.random.default_rng(0)
    shapes = {one.name: one.shape for one in _KINDS[architecture.kind][1](architecture).values()}
    return {k: rng.normal(0, 0.5, shape).astype(np.float32) for k, shape in shapes.items()}


def write_folder(path: pathlib.Path, config: dict[str, Any], tensors: Tensors | None = None) -> str:
    """Writes config.json and, if there are tensors, model.safetensors."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if tensors is not None:
        safetensors.numpy.save_file(tensors, path / "model.safetensors")
    return str(path)


def encode(config: dict[str, Any], t: Tensors, ids: np.ndarray, segments: np.ndarray) -> list:
    """Encodes one sequence without padding, in float64.

    Returns:
        `[T, D]` of the embeddings, of every layer, and the output.
    """
    kind = config["model_type"]
    if kind == "modernbert":
        return _modernbert(config, t, ids)
    eps, has_table = config["layer_norm_eps"], config.get("position_biased_input", True)
    x = np.float64(t["embeddings.word_embeddings.weight"])[ids]
    if "embeddings.token_type_embeddings.weight" in t:
        x += t["embeddings.token_type_embeddings.weight"][segments]
    if has_table:
        first = config["pad_token_id"] + 1 if kind == "roberta" else 0
        x += t["embeddings.position_embeddings.weight"][first : first + len(ids)]
    hidden = [_norm(t, "embeddings.LayerNorm", x, eps)]
    for i in range(config["num_hidden_layers"]):
        name, x = f"encoder.layer.{i}", hidden[-1]
        if kind == "deberta-v2":
            mixed = _disentangled(config, t, f"{name}.attention.self", x)
        else:
            q, k, v = (
                _heads(config, _linear(t, f"{name}.attention.self.{one}", x))
                for one in ("query", "key", "value")
            )
            mixed = _mix(q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1]), v)
        x = x + _linear(t, f"{name}.attention.output.dense", mixed)
        x = _norm(t, f"{name}.attention.output.LayerNorm", x, eps)
        inner = _gelu(_linear(t, f"{name}.intermediate.dense", x), config.get("hidden_act"))
        x = x + _linear(t, f"{name}.output.dense", inner)
        hidden.append(_norm(t, f"{name}.output.LayerNorm", x, eps))
    return [*hidden, hidden[-1]]


def _disentangled(config: dict[str, Any], t: Tensors, name: str, x: np.ndarray) -> np.ndarray:
    """Adds up the score of each pair of steps on its own."""
    farthest, buckets = config["max_position_embeddings"], config["position_buckets"]
    span, half = (buckets if buckets > 0 else farthest), buckets // 2

    def row(distance: int) -> int:
        if buckets > 0 and abs(distance) > half:
            share = math.log(abs(distance) / half) / math.log((farthest - 1) / half)
            distance = round(math.copysign(math.ceil(share * (half - 1)) + half, distance))
        return min(max(distance + span, 0), 2 * span - 1)

    vectors = np.float64(t["encoder.rel_embeddings.weight"])
    if config["norm_rel_ebd"] == "layer_norm":
        vectors = _norm(t, "encoder.LayerNorm", vectors, config["layer_norm_eps"])
    q, k, v = (
        _heads(config, _linear(t, f"{name}.{one}_proj", x)) for one in ("query", "key", "value")
    )
    shared, kinds = config["share_att_key"], config["pos_att_type"]
    scores = q @ k.swapaxes(1, 2)
    for kind, asks, other in (("c2p", q, "key"), ("p2c", k, "query")):
        if kind not in kinds:
            continue
        projection = f"{name}.{'' if shared else 'pos_'}{other}_proj"
        of_rows = _heads(config, _linear(t, projection, vectors))
        for i in range(len(x)):
            for j in range(len(x)):
                step = i if kind == "c2p" else j
                scores[:, i, j] += (asks[:, step] * of_rows[:, row(i - j)]).sum(-1)
    terms = 1 + ("c2p" in kinds) + ("p2c" in kinds)
    return _mix(scores / math.sqrt(terms * q.shape[-1]), v)


def _modernbert(config: dict[str, Any], t: Tensors, ids: np.ndarray) -> list:
    eps, width = config["norm_eps"], config["intermediate_size"]
    x = np.float64(t["embeddings.tok_embeddings.weight"])[ids]
    hidden = [_norm(t, "embeddings.norm", x, eps)]
    for i in range(config["num_hidden_layers"]):
        name, x = f"layers.{i}", hidden[-1]
        is_local = i % config["global_attn_every_n_layers"] != 0
        base = config["local_rope_theta" if is_local else "global_rope_theta"]
        read = _norm(t, f"{name}.attn_norm", x, eps) if i else x
        q, k, v = (
            _heads(config, one) for one in np.split(_linear(t, f"{name}.attn.Wqkv", read), 3, -1)
        )
        half = q.shape[-1] // 2
        turns = np.exp(1j * np.arange(len(ids))[:, None] * base ** (-np.arange(half) / half))
        q, k = ((one[..., :half] + 1j * one[..., half:]) * turns for one in (q, k))
        scores = (q @ k.conj().swapaxes(1, 2)).real / math.sqrt(2 * half)
        if is_local:
            steps = np.arange(len(ids))
            far = np.abs(steps[:, None] - steps) > config["local_attention"] // 2
            scores = np.where(far, -np.inf, scores)
        x = x + _linear(t, f"{name}.attn.Wo", _mix(scores, v))
        inner = _linear(t, f"{name}.mlp.Wi", _norm(t, f"{name}.mlp_norm", x, eps))
        gate = _gelu(inner[:, :width], config.get("hidden_activation"))
        hidden.append(x + _linear(t, f"{name}.mlp.Wo", gate * inner[:, width:]))
    return [*hidden, _norm(t, "final_norm", hidden[-1], eps)]


def _linear(t: Tensors, name: str, x: np.ndarray) -> np.ndarray:
    return x @ t[f"{name}.weight"].T + t.get(f"{name}.bias", 0)


def _norm(t: Tensors, name: str, x: np.ndarray, eps: float) -> np.ndarray:
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    return x * t[f"{name}.weight"] + t.get(f"{name}.bias", 0)


def _heads(config: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Splits `[T, D]` into `[H, T, dh]`."""
    return x.reshape(len(x), config["num_attention_heads"], -1).swapaxes(0, 1)


def _mix(scores: np.ndarray, v: np.ndarray) -> np.ndarray:
    mixed = scipy.special.softmax(scores, axis=-1) @ v
    return mixed.swapaxes(0, 1).reshape(mixed.shape[1], -1)


def _gelu(x: np.ndarray, name: str | None = None) -> np.ndarray:
    if name == "gelu_new":
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x * scipy.special.ndtr(x)
