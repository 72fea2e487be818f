"""Defines BERT and the loop that fine-tunes it in plain PyTorch: what msajax is measured against.

The same weights, dropout sites, batches, padding, loss and optimiser; attention is PyTorch's own
fused call.
"""

import math

import torch
from torch import nn
from torch.nn import functional

from msajax.encoders.architecture import Architecture


class Layer(nn.Module):
    """Applies post-norm self-attention and feed-forward."""

    def __init__(self, a: Architecture):
        super().__init__()
        d, self.heads, self.rates = a.width, a.heads, (a.attention_dropout, a.dropout)
        self.query, self.key, self.value, self.out = (nn.Linear(d, d) for _ in range(4))
        self.norm_attention = nn.LayerNorm(d, eps=a.norm_eps)
        self.inner, self.outer = nn.Linear(d, a.ff_dim), nn.Linear(a.ff_dim, d)
        self.norm_ffn = nn.LayerNorm(d, eps=a.norm_eps)

    def forward(self, x, mask):
        def split(y):
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, H, T, d]

        of_maps, rate = self.rates
        mixed = functional.scaled_dot_product_attention(
            split(self.query(x)),
            split(self.key(x)),
            split(self.value(x)),
            attn_mask=mask[:, None, None, :],
            dropout_p=of_maps if self.training else 0.0,
        )
        attended = self.out(mixed.transpose(1, 2).flatten(-2))
        x = self.norm_attention(x + functional.dropout(attended, rate, self.training))
        fed = self.outer(functional.gelu(self.inner(x)))
        return self.norm_ffn(x + functional.dropout(fed, rate, self.training))


class Bert(nn.Module):
    """Encodes token ids, takes the mean over valid ones, and regresses a score."""

    def __init__(self, a: Architecture):
        super().__init__()
        self.words = nn.Embedding(a.vocabulary, a.width)
        self.positions = nn.Embedding(a.positions, a.width)
        self.segments = nn.Embedding(a.segments, a.width)
        self.norm, self.rate = nn.LayerNorm(a.width, eps=a.norm_eps), a.dropout
        self.layers = nn.ModuleList([Layer(a) for _ in range(a.layers)])
        self.head = nn.Linear(a.width, 1)

    def forward(self, ids, mask):
        places = torch.arange(ids.shape[1])
        x = self.words(ids) + self.positions(places) + self.segments(torch.zeros_like(ids))
        x = functional.dropout(self.norm(x), self.rate, self.training)
        for layer in self.layers:
            x = layer(x, mask)
        mask = mask[..., None].float()
        return self.head((x * mask).sum(1) / mask.sum(1))[:, 0]


def load(model: Bert, tensors) -> None:
    """Copies the tensors of a folder, by the names that BERT's files have."""

    def copy(name, module):
        for part in ("weight", "bias"):
            if f"{name}.{part}" in tensors:
                getattr(module, part).data.copy_(torch.tensor(tensors[f"{name}.{part}"]))

    embeddings = ("word", "words"), ("position", "positions"), ("token_type", "segments")
    for name, own in embeddings:
        copy(f"embeddings.{name}_embeddings", getattr(model, own))
    copy("embeddings.LayerNorm", model.norm)
    for i, layer in enumerate(model.layers):
        for name, own in (
            *((f"attention.self.{own}", own) for own in ("query", "key", "value")),
            *(("attention.output.dense", "out"), ("attention.output.LayerNorm", "norm_attention")),
            *(("intermediate.dense", "inner"), ("output.dense", "outer")),
            ("output.LayerNorm", "norm_ffn"),
        ):
            copy(f"encoder.layer.{i}.{name}", getattr(layer, own))


class FineTuning:
    """Fine-tunes by AdamW: its own rate for the encoder, warm-up, then linear to 0."""

    def __init__(self, folder, steps: int, rates: tuple[float, float], warmup: int):
        """Begins with a folder's weights; the rates are the encoder's and the head's."""
        torch.manual_seed(0)
        self.model = Bert(folder.architecture)
        load(self.model, folder.tensors())
        head = list(self.model.head.parameters())
        others = [p for name, p in self.model.named_parameters() if not name.startswith("head")]
        self.optimizer = torch.optim.AdamW(
            [{"params": others, "lr": rates[0]}, {"params": head, "lr": rates[1]}],
            weight_decay=0.01,
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda t: min(t / warmup, max(0.0, (steps - t) / (steps - warmup)))
        )

    def step(self, ids, mask, labels) -> float:
        """Takes one step on a batch of arrays; returns its loss."""
        self.model.train()
        ids, mask, labels = torch.tensor(ids).long(), torch.tensor(mask), torch.tensor(labels)
        loss = functional.l1_loss(self.model(ids, mask), labels)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        found = loss.item()
        if not math.isfinite(found):
            raise SystemExit("the loss is not finite")
        return found

    @torch.no_grad()
    def scores(self, ids, mask):
        """Scores a batch of arrays, without dropout."""
        self.model.eval()
        return self.model(torch.tensor(ids).long(), torch.tensor(mask)).numpy()
