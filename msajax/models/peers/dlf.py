"""Defines DLF: what each modality alone says, what all say, and text that reads both."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.layers.heads import Arrays
from msajax.models.contract import BATCH, LABELS, MODALITIES, POSITIONS, Model, Prediction, Term
from msajax.models.inputs import ENCODER
from msajax.models.peers.common import (
    BOUND,
    Linear,
    Measured,
    Peer,
    Scored,
    kind_of,
    last_valid,
    mean_over_rows,
    needs_text_and_another,
    once_a_row,
    uniform,
)
from msajax.models.peers.crossmodal import (
    FEWEST_LAYERS,
    Encoders,
    Work,
    attention_dropout,
    positioned,
    project,
    refine,
    run_encoders,
    visible,
)
from msajax.tasks import has_scale

_MARGIN = 0.15  # of cosines, for each unit by which labels differ
_ANCHORS = 16  # whose triplets are computed at a time


class WholeSequence(nn.Module):
    """Maps all steps, `length` at most, to one vector, each step by a kernel of its own."""

    length: int

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps `[B, T, D]` under `[B, T]` to `[B, D]`."""
        width = x.shape[-1]
        draw = uniform((self.length * width) ** -0.5)
        kernel = self.param("kernel", draw, (self.length, width, width))[: x.shape[1]]
        x = jnp.where(mask[..., None], x, 0).reshape(x.shape[0], -1)
        return jnp.matmul(x, kernel.reshape(-1, width)) + self.param("bias", draw, (width,))


class DisentangledLanguageFocused(Peer):
    """Parts each modality in its own and in what all share, and lets text read both.

    Every modality becomes two sequences: by an encoder of its own, and by one that all share. The
    own part of text reads those of the others; scores are made of what each found at its last step,
    of the last steps of the shared parts, and of all these. In training, terms ask that both parts
    rebuild the modality, that they differ, and that shared vectors are alike where labels are
    (Wang et al., 2025). Of the authors' code only what receives gradients is here; it has no
    padding mask and takes the last step of the array, which `compat` of reference does. They
    compare the parts of a step in CMU-MOSEI by tens of numbers, here in any corpus by all. Any
    other modalities may stand beside text.
    """

    @nn.nowrap
    def score(self, sequences: Arrays, valid: Arrays, *, train: bool) -> Scored:
        """Scores features `{modality: [B, T_m, d_m]}` under `{modality: [B, T_m]}`.

        For the terms aux has the scores `score_<modality>` and `score_shared`, `[B, K]`; `rebuilt`,
        `again` and `apart`, `[B]`; and `vectors` `[B, M, D]` with `present` `[B, M]`.
        """
        own, config, names = self.config.own, self.config, self.spec.modalities
        others = [m for m in names if m != "text"]
        rates = tuple(map(attention_dropout, names))
        streams, seen = {}, {}  # {modality: [batch, length, d_model]} and masks
        for m in names:
            streams[m], seen[m] = project(config, m, sequences[m], valid[m], train=train)

        own_steps = {m: visible(own, seen[m], seen[m]) for m in names}

        def work(
            encoders: Encoders, streams: Arrays, keeps: Arrays, contexts: Arrays | None = None
        ) -> dict[str, Work]:
            """Lets each stream read its context, or itself, where its `keep` allows."""
            works = encoders(
                [positioned(own, x) for x in streams.values()],
                [contexts and positioned(own, contexts[m]) for m in streams],
                [keeps[m] for m in streams],
                train=train,
            )
            return dict(zip(streams, works, strict=True))

        # What is a modality's own and what all share, and whether both rebuild it.
        depth = own.num_layers
        private_encoders = Encoders(config, depth, rates, name="private")
        shared_rates = ("attention_dropout",) * len(names)
        shared_encoder = Encoders(config, depth, shared_rates, shared=True, name="shared")
        private, shared = run_encoders(
            own.num_heads,
            work(private_encoders, streams, own_steps),
            work(shared_encoder, streams, own_steps),
        )
        rebuilt = {
            m: Linear(own.d_model, use_bias=False, name=f"{m}_decoder")(
                jnp.concatenate([private[m], shared[m]], axis=-1)
            )
            for m in names
        }
        # Apart from all others, since scores need nothing of it.
        (again,) = run_encoders(own.num_heads, work(private_encoders, rebuilt, own_steps))
        aux = {
            "rebuilt": sum(squares(rebuilt[m] - streams[m], seen[m]) for m in names),
            "again": sum(squares(again[m] - private[m], seen[m]) for m in names),
            "apart": sum(alike(private[m], shared[m], seen[m]) for m in names),
            "present": jnp.stack([seen[m].any(axis=1) for m in names], axis=1),
        }
        vectors = []
        for m in names:
            steps = max(self.spec.length(m) - getattr(own, f"{kind_of(m)}_kernel") + 1, 1)
            is_wide = own.compat == "reference" and sequences[m].shape[-1] == own.d_model
            whole = WholeSequence(self.spec.length(m) if is_wide else steps, name=f"{m}_vector")
            vectors.append(whole(shared[m], seen[m]))
        aux["vectors"] = jnp.stack(vectors, axis=1)

        # What all share, and what text finds in itself and in the others.
        common = Encoders(config, depth, rates, name="common")
        text_encoder = Encoders(config, depth, ("attention_dropout",), name="text")
        between = Encoders(config, depth, tuple(map(attention_dropout, others)), name="between")
        read = {m: visible(own, seen["text"], seen[m]) for m in others}
        common, found, of_others = run_encoders(
            own.num_heads,
            work(common, shared, own_steps),
            work(text_encoder, {"text": private["text"]}, own_steps),
            work(between, dict.fromkeys(others, private["text"]), read, private),
        )
        layers, same_rates = max(depth, FEWEST_LAYERS), ("attention_dropout",) * len(others)
        memory = Encoders(config, layers, same_rates, name="memory")
        of_text = dict.fromkeys(others, own_steps["text"])
        found |= run_encoders(own.num_heads, work(memory, of_others, of_text))[0]

        # Scores, the last of all that was found.
        common = jnp.concatenate([last_valid(common[m], seen[m]) for m in names], axis=1)
        refined = refine(config, common, "shared_post", train=train)
        aux["score_shared"] = Linear(self.spec.outputs, name="shared_regression")(refined)
        parts = []
        for m, x in found.items():
            last = refine(config, last_valid(x, seen["text"]), f"{m}_post", train=train)
            aux[f"score_{m}"] = Linear(self.spec.outputs, name=f"{m}_regression")(last)
            parts.append(nn.sigmoid(Linear(last.shape[1], name=f"{m}_gate")(last)))
        parts.append(nn.sigmoid(Linear(common.shape[1], name="shared_gate")(common)))
        fused = refine(config, jnp.concatenate(parts, axis=1), "post", train=train)
        score = Linear(self.spec.outputs, name="regression")(fused)
        return score, aux


def over_steps(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Averages `[B, T]` over valid steps: `[B]`, 0 for a row without one."""
    return jnp.where(mask, x, 0).sum(axis=1) / jnp.maximum(mask.sum(axis=1), 1)


def squares(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Averages the squares of `[B, T, D]` over valid steps: `[B]`."""
    return over_steps(jnp.square(x).mean(axis=-1), mask)


def cosine(x: jax.Array, y: jax.Array, axis: int = -1) -> jax.Array:
    """Computes cosines of angles; 0, with a finite slope, where a vector is 0."""
    lengths = jnp.square(x).sum(axis) * jnp.square(y).sum(axis)
    return (x * y).sum(axis) * jax.lax.rsqrt(jnp.maximum(lengths, 1e-24))


def alike(x: jax.Array, y: jax.Array, mask: jax.Array) -> jax.Array:
    """Averages the cosines of steps of `[B, T, D]`, those below 0 as 0: `[B]`."""
    return over_steps(nn.relu(cosine(x, y)), mask)


def triplets(
    vectors: jax.Array, labels: jax.Array, counts: jax.Array, differ: Callable
) -> tuple[jax.Array, jax.Array]:
    """Measures how far vectors of other labels are nearer than those of the same.

    Of an anchor i, a vector p of the same label and a vector n of another one it is
    `max(0, 0.15 |y_i - y_n| - cos(i, p) + cos(i, n))`.

    Args:
        vectors: `[N, D]`.
        labels: `[N, L]`.
        counts: `[N]` bool, those that are there.
        differ: says how far the labels `[L]` of two are apart.

    Returns:
        The sum over anchors of the mean over all p and n, and the number of anchors that have both.
    """
    unit = vectors * jax.lax.rsqrt(jnp.maximum(jnp.square(vectors).sum(1, keepdims=True), 1e-24))

    @jax.checkpoint  # of the triplets of all anchors nothing is kept
    def of_anchor(i: jax.Array) -> tuple[jax.Array, jax.Array]:
        near = jnp.matmul(unit, unit[i])
        apart = jax.vmap(differ, (0, None))(labels, labels[i])
        same = counts & (apart == 0) & (jnp.arange(len(unit)) != i)
        other = counts & (apart != 0)
        excess = nn.relu((_MARGIN * apart + near)[:, None] - near)  # [others, same]
        total = jnp.where(other[:, None] & same, excess, 0).sum()
        number = same.sum() * other.sum()
        has_both = counts[i] & (number > 0)
        return jnp.where(has_both, total / jnp.maximum(number, 1), 0), has_both

    losses, has_both = jax.lax.map(of_anchor, jnp.arange(len(unit)), batch_size=_ANCHORS)
    return losses.sum(), has_both.sum()


def terms(config: ModelConfig, name: str, loss: Term) -> dict[str, Term]:
    """Puts beside the task's loss that of every other score, and the four terms of the parts."""
    own, is_number = config.own, has_scale(name)

    def of_score(key: str) -> Callable:
        return lambda prediction, batch: loss.measure(
            prediction.replace(score=prediction.aux[key]), batch
        )

    def of_others(prediction: Prediction, batch: Any) -> Measured:
        keys = [f"score_{m}" for m in batch.masks if m != "text"]
        found = [of_score(key)(prediction, batch) for key in [*keys, "score_shared"]]
        return sum(total for total, _ in found), found[0][1]

    def of_rows(key: str) -> Callable:
        return lambda prediction, batch: mean_over_rows(prediction.aux[key], batch)

    def differ(one: jax.Array, other: jax.Array) -> jax.Array:
        return jnp.abs(one - other).mean() if is_number else (one != other).any().astype(one.dtype)

    def near(prediction: Prediction, batch: Any) -> Measured:
        vectors, present = prediction.aux["vectors"], prediction.aux["present"]
        modalities = vectors.shape[1]
        counts = (present & (batch.row_weight[:, None] > 0)).reshape(-1)
        labels = jnp.repeat(batch.labels, modalities, axis=0)
        vectors = vectors.reshape(-1, vectors.shape[-1])
        with jax.default_matmul_precision(config.matmul_precision):
            total, anchors = triplets(vectors, labels, counts, differ)
        return once_a_row(total / jnp.maximum(anchors, 1), batch)

    found = {
        name: loss,
        "text": Term(of_score("score_text"), loss.weight * own.text_weight, loss.scope),
        "others": Term(of_others, loss.weight, loss.scope),
        "rebuilt": Term(of_rows("rebuilt"), own.rebuilt_weight),
        "again": Term(of_rows("again"), own.again_weight),
        "apart": Term(of_rows("apart"), own.apart_weight),
        "near": Term(near, own.near_weight, BATCH),
    }
    return {key: term for key, term in found.items() if term.weight}


_OF_MODALITIES = ("private/*", "common/*", "between/*", "memory/*", "shared_*", "post_*")
MODEL = Model(
    module=DisentangledLanguageFocused,
    bound=BOUND
    | {"regression/*": (LABELS, MODALITIES), "*_regression/*": (LABELS,)}
    | {"*_vector/kernel": (POSITIONS,)}
    | dict.fromkeys(_OF_MODALITIES, (MODALITIES,)),
    terms=terms,
    check=needs_text_and_another("lets text read other modalities"),
    space={
        "model.dlf.num_layers": [1, 2, 3],
        "model.dlf.text_dropout": (0.1, 0.5, "linear"),
        "model.dlf.text_weight": [1.0, 3.0],
        "optim.learning_rate": (5e-5, 2e-3, "log"),
    },
    encoder=ENCODER,
)
