"""Continues text by a decoder: a model of the next_token task."""

import math
import os
from collections.abc import Sequence

import jax
import numpy as np

from msajax.errors import UserError, printable
from msajax.inference.bundle import Bundle, load
from msajax.preparation.fit import Preparation
from msajax.preparation.words import PADDING, UNKNOWN, detokenize, tokenize
from msajax.tasks import TASKS


def generate(
    bundle: Bundle | str | os.PathLike,
    words: str | Sequence[str] | Sequence[int],
    steps: int = 50,
    temperature: float = 1.0,
    seed: int = 0,
) -> str | list[str] | list[int]:
    """Continues a text, token by token, by a decoder (`configs/decoder.py`).

    With the probabilities p that the decoder gives the next token, a mean over its random seeds,
    each token is drawn with a probability proportional to p^(1 / temperature). Padding and the
    unknown word are never drawn. The decoder reads at most as many tokens as the longest sequence
    that it was trained on (`bundle.preparation.spec.length("text")`): of a longer text the last
    ones, whose positions count from 0, be they learned or sinusoidal; a recurrent decoder forgets
    what is before them, too.

    Args:
        bundle: the decoder, or its folder.
        words: one token or more: a text, read as transcripts are, or a list of words. For a decoder
            of token ids that its corpus brought, whole numbers, or a text of them between spaces.
        steps: the number of tokens to add, 1 or more.
        temperature: 0 takes the likeliest token every time; below 1 likely tokens become likelier,
            above 1 less so.
        seed: 0 or more; the same seed continues the same text in the same way.

    Returns:
        What follows `words`, without them, in the same form: a text, or a list of `steps` tokens.

    Raises:
        UserError: for a model of another task, a token that the decoder has not learned, no token
            at all, and for numbers out of range.
    """
    bundle = bundle if isinstance(bundle, Bundle) else load(bundle)
    require_decoder(bundle)
    for name, value, least in (("steps", steps, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise UserError(f"{name} = {value!r} must be a whole number of {least} or more.")
    is_number = isinstance(temperature, int | float | np.number)
    if not (is_number and math.isfinite(temperature) and temperature >= 0):
        raise UserError(f"temperature = {temperature!r} must be a number of 0 or more.")
    preparation = bundle.preparation
    tokens = token_ids(words, preparation)
    length = preparation.spec.length(preparation.spec.modalities[0])
    rng = np.random.Generator(np.random.PCG64(seed))
    first = 2 if preparation.words else 1  # behind padding, and the unknown word
    added: list[int] = []
    for _ in range(steps):
        # Always as long as the longest sequence, so that one program serves every step.
        read = [*tokens, *added][-length:]
        ids, mask = np.zeros((1, length), np.int32), np.arange(length)[None] < len(read)
        ids[0, : len(read)] = read
        with jax.transfer_guard("allow"):
            found = np.asarray(bundle.next_token(ids, mask), np.float64)
        added.append(first + _draw_token(found[first:], temperature, rng))
    # In the form of what was given.
    if not preparation.words:
        return " ".join(map(str, added)) if isinstance(words, str) else added
    named = [preparation.words[token] for token in added]
    return detokenize(named) if isinstance(words, str) else named


def _draw_token(p: np.ndarray, temperature: float, rng: np.random.Generator) -> int:
    """Draws an index of `p` with a probability proportional to p^(1 / temperature)."""
    if not p.sum() > 0:  # NaN, or a vocabulary without a word
        raise UserError("The decoder gives no token a probability above 0: none can follow.")
    if not temperature:
        return int(p.argmax())
    with np.errstate(divide="ignore", over="ignore"):  # -inf is a probability of 0
        scaled = np.log(p / p.max()) / temperature
    total = np.exp(scaled).cumsum()
    return int(np.searchsorted(total, rng.random() * total[-1], side="right"))


def token_ids(words: str | Sequence[str] | Sequence[int], preparation: Preparation) -> list[int]:
    """Returns the ids of a text or list of tokens; raises `UserError`, naming one not learned."""
    if isinstance(words, bytes | bytearray) or not np.iterable(words):
        raise UserError(
            f"words is of type {type(words).__name__}: it must be a text (str), or a list of "
            "tokens."
        )
    if isinstance(words, str):
        given = tokenize(words) if preparation.words else words.split()
    else:
        given = list(words)
    if not given:
        raise UserError("There is nothing to continue: give one word or more.")
    if not preparation.words:
        (size,) = preparation.spec.vocabularies
        ids = []
        for token in given:
            is_whole = isinstance(token, int | np.integer) and not isinstance(token, bool)
            if isinstance(token, str):
                is_whole = token.isascii() and token.isdigit() and len(token) < 16
            ids.append(int(token) if is_whole else -1)
            if not 0 < ids[-1] < size:
                raise UserError(
                    f"{printable(str(token))!r} is no token of this decoder, which was trained on "
                    f"token ids from 1 to {size - 1}."
                )
        return ids
    row = {word: i for i, word in enumerate(preparation.words) if word != PADDING}
    # A word of a list is spelled as those of transcripts are.
    ids = [row.get(w, row.get("".join(tokenize(w)))) if isinstance(w, str) else None for w in given]
    if None in ids:
        unknown = given[ids.index(None)]
        instead = "" if isinstance(words, str) else f", or put {UNKNOWN!r} in its place"
        raise UserError(
            f"{printable(str(unknown))!r} is not among the {len(row) - 1} words that this decoder "
            f"was trained on: leave it out{instead}."
        )
    return ids


def require_decoder(bundle: Bundle) -> None:
    """Raises `UserError` for a model of another task."""
    kind = bundle.preparation.spec.label_kind
    if not TASKS[kind].continues_text:
        raise UserError(
            f"This bundle holds a model of the {kind} task, which continues no text: train "
            "configs/decoder.py."
        )
