"""Finds when the words of a transcript are spoken, and whether it is spoken at all (English)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from msajax.recordings.media import RATE, Refused
from msajax.recordings.pronunciation import pronounce

# Nats per frame of 10 ms by which the sounds of a transcript may be less likely than the best ones,
# the mean over the frames of its words. Chosen on 130 recordings (docs/recordings.md).
FLAGGED, REFUSED = -2.45, -3.3
_RANGE = 32767 / 32768  # of samples
_FILLERS = ("<", "[", "+", "(")  # how names of silence and noise begin


class Word(NamedTuple):
    """Holds a word of a transcript, and when it is spoken.

    Attributes:
        start: seconds from the first sample; NaN where that is not known.
        end: likewise, where it ends.
        origin: how that is known, a number of `pronunciation`.
        is_flagged: whether the sound there is hardly that word.
    """

    text: str
    start: float
    end: float
    origin: int
    is_flagged: bool = False


class Aligner:
    """Aligns words with sound by the English model that PocketSphinx brings."""

    def __init__(self) -> None:
        """Loads the model, in a quarter of a second."""
        from pocketsphinx import Decoder

        self._decoder = Decoder(samprate=RATE, lm=None, cmn="batch", loglevel="FATAL")

    def align(self, samples: np.ndarray, words: Sequence[str]) -> list[Word]:
        """Finds the times of words in the order in which they are spoken.

        Words that the dictionary lacks are pronounced by `pronunciation`. If the sounds of all
        words are unlikely (`FLAGGED`), those of which that is true are flagged.

        Args:
            samples: `[S]` float32 at 16 kHz.
            words: of `words_of`, at least one.

        Raises:
            Refused: does_not_fit, if a word is not English, or these words are not what is spoken.
        """
        names, origins = [], []
        for word in words:
            said = pronounce(word, self._decoder.lookup_word)
            if said is None:
                raise Refused("does_not_fit", f"{word!r} cannot be spoken by rules of English.")
            name, phones, origin = said
            if phones is not None and self._decoder.lookup_word(name) is None:
                self._decoder.add_word(name, " ".join(phones), True)
            names.append(name)
            origins.append(origin)
        spoken = self._spoken(samples, names)
        if len(spoken) != len(words):
            raise Refused("does_not_fit", "The words are not what is spoken.")
        frames = sum(last - first + 1 for first, last, _ in spoken)
        score = sum(one[2] for one in spoken) / frames
        if score < REFUSED:
            raise Refused(
                "does_not_fit",
                f"The words are hardly what is spoken ({score:.1f} nats a frame; {REFUSED} or more "
                "would be).",
            )
        return [
            Word(
                *(text, first / 100, (last + 1) / 100, origin),
                score < FLAGGED and nats / (last - first + 1) < FLAGGED,
            )
            for text, origin, (first, last, nats) in zip(words, origins, spoken, strict=True)
        ]

    def _spoken(self, samples: np.ndarray, names: Sequence[str]) -> list[tuple[int, int, float]]:
        """Returns first and last frame of each word and its log-likelihood; [] for no way."""
        decoder = self._decoder
        whole = (np.clip(samples, -1, _RANGE) * 32768).astype(np.int16).tobytes()
        try:
            decoder.reinit_feat()  # else times depend on what was aligned before
            decoder.set_align_text(" ".join(names))
            decoder.start_utt()
            decoder.process_raw(whole, full_utt=True)
            decoder.end_utt()
        except RuntimeError:  # too short for a frame, or for these words
            return []
        if decoder.hyp() is None:
            return []
        return [
            (one.start_frame, one.end_frame, math.log(one.ascore) if one.ascore > 0 else -745.0)
            for one in decoder.seg()
            if not one.word.startswith(_FILLERS)
        ]
