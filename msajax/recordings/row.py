"""Measures recordings in a process that may die: `python -m msajax.recordings.row`.

Its first line of input are the settings, each later one a row; each row gets a line of output once
its folder holds what was measured, or that says why no row can be, and before it lines that say how
much longer to wait.
"""

import functools
import hashlib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from msajax.errors import UserError, first_line
from msajax.recordings import audio_columns
from msajax.recordings.media import (
    Refused,
    Sound,
    limit_memory,
    limit_seconds,
    read_sound,
)
from msajax.recordings.pronunciation import NONE, words_of
from msajax.recordings.settings import AUDIO, Settings
from msajax.recordings.timed import read_times
from msajax.recordings.words import Aligner, Word

FACTS = "facts.json"
_PATIENCE = 30.0  # seconds of processor time without progress
_WRITING = 900.0  # likewise, in which a large model loads, or writes what is said in half a minute
_aligner = functools.cache(Aligner)


def measure(
    row: Mapping[str, Any],
    settings: Settings,
    folder: str,
    progress: Callable[[float], None] = lambda seconds: None,
) -> dict[str, Any]:
    """Measures a row into the files of a folder: audio, audio_times and text_times.

    Args:
        row: path; start and end, seconds; transcript, words or "", and times, the path of a file
            of times or "". `refused` holds a reason and a sentence if the file is not to be opened.
        progress: called with seconds that the next part may take.

    Returns:
        What the report says of the row, its words, and the SHA-256 of the file if it was read.

    Raises:
        UserError: if a transcript is to be written by a model that cannot be loaded.
    """
    began, sound, problem = time.monotonic(), None, None
    progress(_PATIENCE)
    facts: dict[str, Any] = {"sha256": ""}
    try:
        if row.get("refused"):
            raise Refused(*row["refused"])
        sound = read_sound(
            row["path"], row["start"], row["end"], functools.partial(progress, _PATIENCE)
        )
        facts |= {"seconds_audio": sound.seconds, "offset_audio": sound.offset}
        facts["sha256"] = _digest(row["path"], progress)
        progress(_PATIENCE + sound.seconds)
    except Refused as error:
        problem = error.with_traceback(None)  # whose frames would keep the sound
    except MemoryError:
        problem = Refused("too_large", "Decoding takes more memory than it may have.")

    transcript, words, no_text = row["transcript"], [], None
    try:
        if row["times"]:
            words = _cut(read_times(row["times"], row["path"]), row["start"], row["end"])
            transcript = " ".join(word.text for word in words)
        elif not transcript and settings.asr_model and sound is not None:
            progress(_WRITING)
            transcribe = _transcriber(settings.asr_model)
            transcript = transcribe(sound.samples, functools.partial(progress, _WRITING))
            progress(_PATIENCE + sound.seconds)
        if not (transcript and words_of(transcript)):
            raise Refused("no_transcript", "There is no transcript.")
        if settings.steps == "word" and not words:
            words = _timed(words_of(transcript), sound)
    except Refused as error:
        no_text = error.with_traceback(None)
    spans = np.array([[word.start, word.end] for word in words]).reshape(-1, 2)

    if problem is None and settings.aligns:
        problem = no_text
    if problem is None and AUDIO[settings.audio].compute is not None:
        audio, times = _audio(sound, settings, spans)
        np.save(os.path.join(folder, "audio.npy"), audio)
        np.save(os.path.join(folder, "audio_times.npy"), times)
    np.save(os.path.join(folder, "text_times.npy"), spans)
    problems = {str(one): one for one in (problem, no_text) if one is not None}
    return facts | {
        "audio": "present" if problem is None else f"absent:{problem.reason}",
        "text": "present" if no_text is None else f"absent:{no_text.reason}",
        "reason": " ".join(problems),
        "transcript": "" if no_text else transcript,
        "words": [] if no_text else [word.text for word in words],
        "word_origin": [word.origin for word in words],
        "words_flagged": sum(word.is_flagged for word in words),
        "took_seconds": time.monotonic() - began,
    }


def _digest(path: str, progress: Callable[[float], None]) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 26):
            digest.update(part)
            progress(_PATIENCE)
    return digest.hexdigest()


def _cut(words: list[Word], start: float, end: float) -> list[Word]:
    """Returns the words that begin from `start` to before `end`, whose times count from there."""
    return [
        word._replace(start=word.start - start, end=min(word.end, end) - start)
        for word in words
        if start <= word.start < end
    ]


def _timed(words: list[str], sound: Sound | None) -> list[Word]:
    """Returns words with their times, which are not known without sound."""
    if sound is None:
        return [Word(word, np.nan, np.nan, NONE) for word in words]
    return [
        word._replace(start=word.start + sound.offset, end=word.end + sound.offset)
        for word in _aligner().align(sound.samples, words)
    ]


def _audio(sound: Sound, settings: Settings, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns steps of sound `[T, d]` float32, and their starts and ends `[T, 2]` in seconds."""
    computed = AUDIO[settings.audio].compute(sound.samples)
    if settings.pools:
        times = words
        if settings.steps == "100ms":
            first, end = sound.offset, sound.offset + sound.seconds
            times = np.arange(int(first * 10), np.ceil(end * 10))[:, None] / 10 + [0, 0.1]
        return audio_columns.over_steps(computed, times - sound.offset), times
    length = sound.seconds / len(computed) if settings.audio == "waveform" else 0.01
    starts = sound.offset + np.arange(len(computed)) * length
    return computed, np.stack([starts, starts + length], axis=1)


@functools.cache
def _transcriber(folder: str) -> Callable[[np.ndarray, Callable[[], None]], str]:
    """Loads a faster-whisper model of a folder, which writes what is said in samples.

    It takes what is to be called after each part of them.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    from faster_whisper import WhisperModel

    try:
        model = WhisperModel(folder, device="cpu", cpu_threads=1, local_files_only=True)
    except Exception as error:  # of the package, or of those that it is made of
        raise UserError(f"--asr_model={folder} cannot be loaded: {first_line(error)}.") from error

    def transcribe(samples: np.ndarray, progress: Callable[[], None]) -> str:
        said = []
        # At a temperature above 0, which it falls back to, words are drawn at random.
        for part in model.transcribe(samples, beam_size=5, temperature=0.0)[0]:
            said.append(part.text.strip())
            progress()
        return " ".join(said)

    return transcribe


def main() -> None:
    """Measures the rows that come on standard input, and ends with it."""
    lines: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)  # whoever asked has gone

    threading.Thread(target=listen, daemon=True).start()

    def progress(seconds: float) -> None:
        limit_seconds(seconds)
        print(json.dumps({"wait": seconds}), flush=True)

    settings = Settings(**json.loads(lines.get()))
    # A model of 16 bits has 32 in memory.
    model = os.scandir(settings.asr_model) if settings.asr_model else ()
    limit_memory(3 * sum(file.stat().st_size for file in model))
    while True:
        row = json.loads(lines.get())
        try:
            facts = measure(row, settings, row["folder"], progress)
        except UserError as error:
            print(json.dumps({"error": str(error)}), flush=True)
            continue
        with open(os.path.join(row["folder"], FACTS), "w", encoding="utf-8") as file:
            json.dump(facts, file)
        print(json.dumps({"done": True}), flush=True)


if __name__ == "__main__":
    main()
