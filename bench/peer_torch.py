"""Defines the sequence-level model in plain PyTorch: what msajax is measured against.

The same layers, masks, dropout sites and initial weights as `msajax.models`; attention is PyTorch's
own fused call.
"""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Applies post-norm attention and feed-forward."""

    def __init__(self, config):
        super().__init__()
        d, self.heads, self.rate = config.model_dim, config.num_heads, config.dropout_rate
        self.query, self.key, self.value, self.out = (nn.Linear(d, d) for _ in range(4))
        self.norm_attention = nn.LayerNorm(d, eps=config.norm_eps)
        self.inner, self.outer = nn.Linear(d, config.ff_dim), nn.Linear(config.ff_dim, d)
        self.norm_ffn = nn.LayerNorm(d, eps=config.norm_eps)

    def forward(self, x, context, mask):
        def split(y):
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, H, T, d]

        rate = self.rate if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            split(self.query(x)),
            split(self.key(context)),
            split(self.value(context)),
            attn_mask=mask[:, None, None, :],
            dropout_p=rate,
        )
        attended = self.out(mixed.transpose(1, 2).flatten(-2))
        x = self.norm_attention(x + functional.dropout(attended, rate, self.training))
        inner = functional.dropout(functional.gelu(self.inner(x)), rate, self.training)
        return self.norm_ffn(x + functional.dropout(self.outer(inner), rate, self.training))


class Encoder(nn.Module):
    """Applies a projection, positions and blocks."""

    def __init__(self, config, width, length):
        super().__init__()
        self.rate, self.input_rate = config.dropout_rate, config.input_dropout
        self.projection = nn.Linear(width, config.model_dim)
        self.positions = nn.Parameter(torch.zeros(length, config.model_dim))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers_mod))

    def forward(self, x, mask):
        x = functional.dropout(x * mask[..., None], self.input_rate, self.training)
        x = self.projection(x) + self.positions[: x.shape[1]]
        x = functional.dropout(x, self.rate, self.training)
        for block in self.blocks:
            x = block(x, x, mask)
        return x


class SequenceLevel(nn.Module):
    """Fuses in one direction and pools by means; every modality is present in every sample."""

    def __init__(self, config, spec):
        super().__init__()
        d, names = config.model_dim, spec.modalities
        self.names, self.rate = names, config.dropout_rate
        self.encoders = nn.ModuleDict(
            {m: Encoder(config, spec.width(m), spec.length(m)) for m in names}
        )
        self.fusion = nn.ModuleList(
            nn.ModuleDict({m: Block(config) for m in names[1:]})
            for _ in range(config.n_layers_fuse)
        )
        self.gate_hidden, self.gate_weights = nn.Linear(d, d // 2), nn.Linear(d // 2, len(names))
        self.regression = nn.Linear(d, 1)

    def forward(self, features, masks):
        x = {m: self.encoders[m](features[m], masks[m]) for m in self.names}
        anchor = self.names[0]
        for layer in self.fusion:
            for m in self.names[1:]:
                x[anchor] = layer[m](x[anchor], x[m], masks[m])
        pooled = torch.stack(
            [
                (x[m] * masks[m][..., None]).sum(1) / masks[m].sum(1, keepdim=True).clamp(min=1)
                for m in self.names
            ],
            1,
        )
        hidden = functional.dropout(
            functional.relu(self.gate_hidden(pooled.mean(1))), self.rate, self.training
        )
        weights = self.gate_weights(hidden).softmax(-1)
        return self.regression((weights[..., None] * pooled).sum(1))


def load_flax(model: SequenceLevel, params) -> None:
    """Copies the weights of one random seed of msajax, so that both compute the same."""

    def linear(layer, source, rows):
        layer.weight.data = torch.tensor(source["kernel"]).reshape(rows, -1).T.contiguous()
        layer.bias.data = torch.tensor(source["bias"]).reshape(-1)

    def norm(layer, source):
        layer.weight.data, layer.bias.data = (torch.tensor(source[k]) for k in ("scale", "bias"))

    def block(layer, source):
        d = layer.norm_ffn.normalized_shape[0]
        for name in ("query", "key", "value"):
            linear(getattr(layer, name), source["attention"][name], d)
        linear(layer.out, source["attention"]["out"], d)
        linear(layer.inner, source["ffn"]["inner"], d)
        linear(layer.outer, source["ffn"]["outer"], layer.inner.out_features)
        norm(layer.norm_attention, source["norm_attention"])
        norm(layer.norm_ffn, source["norm_ffn"])

    for m in model.names:
        encoder, source = model.encoders[m], params[f"{m}_encoder"]
        linear(encoder.projection, source["projection"], encoder.projection.in_features)
        encoder.positions.data = torch.tensor(source["positions"]["embedding"])
        for i, layer in enumerate(encoder.blocks):
            block(layer, source[f"blocks_{i}"])
    for i, layer in enumerate(model.fusion):
        for m in model.names[1:]:
            block(layer[m], params["fusion"][f"layers_{i}"][f"{model.names[0]}_from_{m}"])
    gate, d = params["head"]["gate"], model.regression.in_features
    linear(model.gate_hidden, gate["hidden"], d)
    linear(model.gate_weights, gate["weights"], d // 2)
    linear(model.regression, params["regression"], d)
