"""Small folders of pretrained text encoders with random weights, and the encoders in numpy."""

import json
import math
import pathlib
from typing import Any

import numpy as np
import safetensors.numpy
import scipy.special

from msajax.encoders.module import module_of
from msajax.encoders.table import read_architecture

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
    architecture = read_architecture(config, "config.json")
    rng = np.random.default_rng(0)
    shapes = {one.name: one.shape for one in module_of(architecture).sources(architecture).values()}
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


SPEECH = {
    "model_type": "wav2vec2", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 12, "layer_norm_eps": 1e-3, "conv_dim": [4, 6, 5],
    "conv_kernel": [10, 3, 2], "conv_stride": [5, 2, 2], "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "feat_proj_dropout": 0.0,
}
"""A frame every 20 samples."""


def encode_sound(config: dict[str, Any], t: Tensors, waveform: np.ndarray) -> list:
    """Encodes a waveform `[S]` without padding, in float64: `[T, D]` of each layer, the output."""
    eps, kind = config["layer_norm_eps"], config["model_type"]
    x = np.float64(waveform)[:, None]
    if config.get("do_normalize"):
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-7)
    for i, (kernel, stride) in enumerate(
        zip(config["conv_kernel"], config["conv_stride"], strict=True)
    ):
        name = f"feature_extractor.conv_layers.{i}"
        weight = np.float64(t[f"{name}.conv.weight"])  # [out, in, kernel]
        starts = range(0, len(x) - kernel + 1, stride)
        x = np.array([np.einsum("oik,ki->o", weight, x[at : at + kernel]) for at in starts])
        x = x + t.get(f"{name}.conv.bias", 0)
        if config.get("feat_extract_norm", "group") == "layer":
            x = _norm(t, f"{name}.layer_norm", x, 1e-5)
        elif i == 0:  # over the time of each channel
            x = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
            x = x * t[f"{name}.layer_norm.weight"] + t[f"{name}.layer_norm.bias"]
        x = _gelu(x, "gelu")
    if "feature_projection.layer_norm.weight" in t:
        x = _norm(t, "feature_projection.layer_norm", x, eps)
    x = _linear(t, "feature_projection.projection", x)
    name, groups = "encoder.pos_conv_embed.conv", config["num_conv_pos_embedding_groups"]
    weight = np.float64(t[f"{name}.weight"])  # [D, D / groups, kernel]
    size, kernel = weight.shape[1:]
    filled = np.pad(x, ((kernel // 2, kernel // 2), (0, 0)))
    positions = np.zeros_like(x)
    for at in range(len(x)):
        for group in range(groups):
            part = slice(group * size, (group + 1) * size)
            read = filled[at : at + kernel, part]
            positions[at, part] = np.einsum("oik,ki->o", weight[part], read)
    x = x + _gelu(positions + t[f"{name}.bias"], "gelu")
    before = config.get("do_stable_layer_norm", False)
    hidden = [x if before else _norm(t, "encoder.layer_norm", x, eps)]
    for i in range(config["num_hidden_layers"]):
        name, x = f"encoder.layers.{i}", hidden[-1]
        read = _norm(t, f"{name}.layer_norm", x, eps) if before else x
        q, k, v = (
            _heads(config, _linear(t, f"{name}.attention.{one}_proj", read)) for one in "qkv"
        )
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        if kind == "wavlm":
            scores = scores + _gated(config, t, f"{name}.attention", read)
        x = x + _linear(t, f"{name}.attention.out_proj", _mix(scores, v))
        x = x if before else _norm(t, f"{name}.layer_norm", x, eps)
        read = _norm(t, f"{name}.final_layer_norm", x, eps) if before else x
        inner = _gelu(_linear(t, f"{name}.feed_forward.intermediate_dense", read), "gelu")
        x = x + _linear(t, f"{name}.feed_forward.output_dense", inner)
        hidden.append(x if before else _norm(t, f"{name}.final_layer_norm", x, eps))
    return [*hidden, _norm(t, "encoder.layer_norm", hidden[-1], eps) if before else hidden[-1]]


def _gated(config: dict[str, Any], t: Tensors, name: str, x: np.ndarray) -> np.ndarray:
    """Computes what WavLM adds to each score on its own, `[H, T, T]`."""
    table = np.float64(t["encoder.layers.0.attention.rel_attn_embed.weight"])
    half, farthest = config["num_buckets"] // 2, config["max_bucket_distance"]
    heads, steps = config["num_attention_heads"], len(x)
    found = np.zeros((heads, steps, steps))
    for head in range(heads):
        for i in range(steps):
            own = x[i].reshape(heads, -1)[head]
            gates = _linear(t, f"{name}.gru_rel_pos_linear", own).reshape(2, 4).sum(-1)
            a, b = 1 / (1 + np.exp(-gates))
            gate = a * (b * t[f"{name}.gru_rel_pos_const"][0, head, 0, 0] - 1) + 2
            for j in range(steps):
                far, row = abs(j - i), half * (j > i)
                if far < half // 2:
                    row += far
                else:
                    share = math.log(far / (half // 2)) / math.log(farthest / (half // 2))
                    row += min(half // 2 + int(share * (half - half // 2)), half - 1)
                found[head, i, j] = gate * table[row, head]
    return found


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
