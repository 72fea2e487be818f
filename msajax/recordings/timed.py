"""Reads files that say when words are spoken: SRT, WebVTT, Praat's TextGrid, NIST's CTM."""

import os
import re

from msajax.recordings.media import Refused
from msajax.recordings.pronunciation import FROM_FILE, words_of
from msajax.recordings.words import Word

_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+)[.,](\d+)\s*-->\s*(?:(\d+):)?(\d+):(\d+)[.,](\d+)")
# The values of a TextGrid, which its long form names and its short one does not.
_VALUE = re.compile(r'"((?:[^"]|"")*)"|(?<![\w.])(-?\d+(?:\.\d+)?(?:[eE]-?\d+)?)(?![\w.])')
_SILENCE = {"", "sil", "sp", "spn", "<eps>", "#", "<sil>"}
_Spans = list[tuple[float, float, str]]


def read_times(path: str, file: str) -> list[Word]:
    """Reads the words of a file of times, in the order in which they are spoken.

    Several words that stand together, as in a subtitle, share its time by their numbers of letters.

    Args:
        path: ends in .srt, .vtt, .TextGrid or .ctm.
        file: the recording, which a CTM of several names in its first column, without its ending.

    Raises:
        Refused: no_transcript, if it cannot be read, or has no word.
    """
    read = READERS[os.path.splitext(path)[1].lower()]
    try:
        with open(path, "rb") as source:
            content = source.read()
        wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
        spans = read(content.decode("utf-16" if wide else "utf-8-sig"), file)
    except OSError as error:
        raise Refused("no_transcript", f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, LookupError) as error:
        raise Refused("no_transcript", f"{path} says no times of words: {error}.") from error
    found = []
    for start, end, text in sorted(spans):
        words = words_of(text)
        letters, at = sum(map(len, words)), start
        for word in words:
            until = at + (end - start) * len(word) / letters
            found.append(Word(word, at, until, FROM_FILE))
            at = until
    if not found:
        raise Refused("no_transcript", f"{path} has no word with a time.")
    return found


def _subtitles(text: str, file: str) -> _Spans:
    spans: _Spans = []
    for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        if clock := _CLOCK.search(block):
            h, m, s, part, h2, m2, s2, part2 = clock.groups()
            start, end = (
                3600 * int(a or 0) + 60 * int(b) + float(f"{c}.{d}")
                for a, b, c, d in ((h, m, s, part), (h2, m2, s2, part2))
            )
            said = block[clock.end() :].partition("\n")[2]  # behind the settings of a cue
            spans.append((start, end, re.sub(r"<[^>]*>|\{[^}]*\}", "", said)))
    return spans


def _textgrid(text: str, file: str) -> _Spans:
    values = [
        match[1].replace('""', '"') if match[2] is None else float(match[2])
        for match in _VALUE.finditer(re.sub(r"\[\d*\]", "", text))
    ]
    if values[:2] != ["ooTextFile", "TextGrid"]:
        raise ValueError("it does not begin as one")
    tiers: dict[str, _Spans] = {}
    at = 5
    while at < len(values):
        kind, name, _, _, size = values[at : at + 5]
        width = 3 if kind == "IntervalTier" else 2
        rows = values[at + 5 : at + 5 + int(size) * width]
        if width == 3:
            entries = zip(rows[::3], rows[1::3], rows[2::3], strict=True)
            spans = [(s, e, t) for s, e, t in entries if t.strip().lower() not in _SILENCE]
            tiers[name.lower()] = spans
        at += 5 + int(size) * width
    for name in ("words", "word", *(tiers if len(tiers) == 1 else ())):
        if name in tiers:
            return tiers[name]
    raise ValueError(f"it has no tier named words, but {', '.join(tiers) or 'none'}")


def _ctm(text: str, file: str) -> _Spans:
    rows = [line.split() for line in text.splitlines() if line.strip() and line[:2] != ";;"]
    names = {row[0] for row in rows}
    stem = os.path.splitext(os.path.basename(file))[0]
    rows = [row for row in rows if len(names) == 1 or row[0] == stem]
    return [
        (float(start), float(start) + float(length), word)
        for _, _, start, length, word, *_ in rows
        if word.lower() not in _SILENCE
    ]


READERS = {".srt": _subtitles, ".vtt": _subtitles, ".textgrid": _textgrid, ".ctm": _ctm}
"""What reads a file of times, by its ending: a new kind is an entry."""
