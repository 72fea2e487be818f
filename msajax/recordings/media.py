"""Decodes the sound of one media file, placed by its presentation times, within fixed limits.

A file comes from anywhere, and decoders are written in C: `row.py` calls this in a process that may
die, whose memory and processor time are bounded here.
"""

import contextlib
import itertools
import math
import os
import re
import resource
import stat
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

RATE = 16_000  # Hz, of all sound
ENDINGS = ("mp4", "webm", "mkv", "mov", "mpg", "mpeg", "wav", "flac", "mp3", "m4a", "ogg")
# What FFmpeg may open: mov is mp4 and m4a, too, and matroska webm. No playlist is among them.
_ALLOWED = {
    "format_whitelist": "mov,matroska,mpeg,wav,flac,mp3,ogg",
    "protocol_whitelist": "file",
}
MOST_SECONDS = 4 * 3600  # of sound that is read of a row
_RATES, _MOST_CHANNELS = (1000, 384_000), 32  # Hz
_MOST_BYTES = 6 << 30  # of address space; a decoder uses a fraction of it
_DURATION = re.compile(r"(\d+):(\d+):(\d+\.\d+)")
_UNKNOWN = 0xFF000000  # bytes that a WAV declares that was written to a pipe
_JUMP = 0.04  # seconds by which time stamps may disagree with the count of samples
_PREROLL = 2.0  # seconds decoded before a cut: codecs need some of what comes before
_SHORT = 1.0  # seconds that a whole file may lack of the duration that it declares
_PORTION = 60 * RATE  # samples after which there is progress


class Refused(Exception):
    """Says why a modality of a recording is absent.

    Attributes:
        reason: no_stream, undecodable, too_large, too_long, timeout, no_transcript, does_not_fit or
            not_allowed.
    """

    def __init__(self, reason: str, sentence: str) -> None:
        """Takes the reason, and a sentence that says what was found."""
        super().__init__(sentence)
        self.reason = reason


class Sound(NamedTuple):
    """Holds the sound of a recording, or of the part that is cut out of it.

    Attributes:
        samples: `[S]` float32 at `RATE`, the mean of the channels, full scale 1; gaps are silence.
        offset: seconds from the beginning of the recording or the part to the first sample.
    """

    samples: np.ndarray
    offset: float

    @property
    def seconds(self) -> float:
        """Returns its length in seconds."""
        return len(self.samples) / RATE


def limit_memory(more: int = 0) -> None:
    """Bounds the memory of this process for good, and lets it die without a dump.

    Args:
        more: bytes beyond what decoding may have.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _MOST_BYTES + more
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_seconds(seconds: float) -> None:
    """Has this process killed once it has used that much more processor time, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def read_sound(
    path: str,
    start: float = 0.0,
    end: float = math.inf,
    progress: Callable[[], None] = lambda: None,
) -> Sound:
    """Decodes the sound of a file, or what lies from `start` to `end`, at most `MOST_SECONDS`.

    A file begins at the smallest first presentation time of its picture and its sound, from which
    `start` and `end` are seconds.

    Args:
        path: the file; nothing else is opened, whatever it says.
        progress: called after each minute of sound.

    Raises:
        Refused: if there is no sound, it cannot be decoded, or is beyond a limit.
    """
    if not os.access(path, os.R_OK):
        raise Refused("undecodable", "There is no such file, or it may not be read.")
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise Refused("not_allowed", "This is no regular file.")
    with open(path, "rb") as file:
        head = file.read(8)
    missing = int.from_bytes(head[4:], "little") + 8 - os.path.getsize(path)
    if head[:4] == b"RIFF" and 1 < missing < _UNKNOWN:  # FFmpeg reads what is left of a WAV file
        raise Refused("undecodable", f"The file is truncated: it lacks {missing} bytes.")
    if start > _PREROLL:
        with contextlib.suppress(_NotFound):
            return _decode(path, start, end, progress, searches=True)
    return _decode(path, start, end, progress, searches=False)


class _NotFound(Exception):
    """Says that a file cannot be searched for a time: it has to be decoded from its beginning."""


def _decode(
    path: str, start: float, end: float, progress: Callable[[], None], searches: bool
) -> Sound:
    """Decodes as `read_sound` does, from shortly before `start` if it `searches`."""
    with _opened(path) as container:
        stream = container.streams.best("audio")
        if stream is None:
            raise Refused("no_stream", "The file has no sound.")
        codec = stream.codec_context
        if codec is None or not codec.rate:
            raise Refused("undecodable", "The codec of the sound is not known.")
        if not _RATES[0] <= codec.rate <= _RATES[1] or codec.channels > _MOST_CHANNELS:
            raise Refused(
                "too_large",
                f"The sound has {codec.channels} channel(s) of {codec.rate} Hz: at most "
                f"{_MOST_CHANNELS} of {_RATES[0]} to {_RATES[1]} Hz are read.",
            )
        frames = container.decode(stream)
        first = next(frames, None)
        if first is None or first.time is None:
            raise Refused("undecodable", "The sound has no frame with a presentation time.")
        declared = _declared(container, stream, first.time)
        begin = min([first.time, *_picture_times(container)]) + start
        if min(end, declared) - start > MOST_SECONDS:
            raise _too_long()
        if searches:
            container.seek(round(1e6 * (begin - _PREROLL)))
            frames = container.decode(stream)
        else:
            frames = itertools.chain([first], frames)
        placed = _Placed(min(end - start, MOST_SECONDS), progress)
        last = first.time
        for frame in frames:
            if frame.time is None:
                raise Refused("undecodable", f"A frame after {last:.3f} s has no time.")
            if searches and placed.first is None and frame.time > begin:
                raise _NotFound
            if not placed.put(frame, frame.time - begin):
                break
            last = frame.time + frame.samples / frame.rate
        else:
            placed.flush()
            # Of an mp3 without an index the duration is a guess.
            short = 0.0 if stream.codec.name.startswith("mp3") else declared
            if last - first.time < short - _SHORT:
                raise Refused(
                    "undecodable",
                    f"The sound ends after {last - first.time:.2f} of {short:.2f} s: the file is "
                    "truncated.",
                )
    return placed.sound(end - start > MOST_SECONDS)


def _too_long() -> Refused:
    return Refused("too_long", f"The sound is longer than {MOST_SECONDS / 3600:g} hours.")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    import av.logging

    av.logging.set_level(av.logging.ERROR)  # else an error does not say what the lists refuse
    try:
        with av.open(path, options=_ALLOWED, timeout=(10.0, 60.0)) as container:
            yield container
    except av.error.ExitError as error:
        raise Refused("timeout", "Reading the file took too long.") from error
    except MemoryError as error:
        raise Refused("too_large", "Decoding takes more memory than it may have.") from error
    except (av.error.FFmpegError, ValueError, OverflowError) as error:
        allowed = "whitelist" not in str(error)
        what = getattr(error, "strerror", None) or str(error)
        raise Refused(
            "undecodable" if allowed else "not_allowed",
            f"The file cannot be decoded: {what}."
            if allowed
            else f"The file is none of {', '.join(ENDINGS)}.",
        ) from error


def _declared(container: Any, stream: Any, first: float) -> float:
    """Returns how many seconds of sound a file declares from its first frame on; 0 for unknown."""
    if stream.duration:
        return float(stream.duration * stream.time_base)
    clock = _DURATION.fullmatch(stream.metadata.get("DURATION", ""))  # of mkv and webm: its end
    if clock is None or not container.duration:
        return 0.0
    hours, minutes, seconds = map(float, clock.groups())
    return min(3600 * hours + 60 * minutes + seconds, container.duration / 1e6) - first


def _picture_times(container: Any) -> list[float]:
    """Returns the first presentation time of each stream of moving pictures, in seconds."""
    import av

    cover = av.stream.Disposition.attached_pic
    return [
        float(stream.start_time * stream.time_base)
        for stream in container.streams.video
        if stream.start_time is not None and not stream.disposition & cover
    ]


class _Placed:
    """Places decoded frames in an array at `RATE`, by their times.

    Attributes:
        first: index of the first sample that is there; None while there is none.
    """

    def __init__(self, seconds: float, progress: Callable[[], None]) -> None:
        """Makes room for `seconds`, of which the system gives what is written to."""
        self.first: int | None = None
        self._samples = np.zeros(round(seconds * RATE), np.float32)
        self._end = self._told = 0  # behind the last sample; that of the last progress
        self._at = 0  # where the next sample goes
        self._expected = -math.inf  # the time of the next frame, if there is no gap
        self._form: tuple[Any, ...] = ()
        self._resampler: Any = None
        self._progress = progress

    def put(self, frame: Any, time: float) -> bool:
        """Places a frame at a time in seconds; says whether later ones are wanted."""
        import av

        form = frame.format.name, frame.layout.name, frame.rate
        if form != self._form or abs(time - self._expected) > _JUMP:
            self.flush()
            if time < self._expected - _JUMP:
                raise Refused("undecodable", f"Time goes back to {time:.3f} s.")
            self._form, self._expected, self._at = form, time, round(time * RATE)
            self._resampler = av.AudioResampler("fltp", frame.layout, RATE)
        # Channels are averaged here, for FFmpeg's mean has another level from float than from int.
        self._write(self._resampler.resample(frame))
        self._expected += frame.samples / frame.rate
        if self._end - self._told > _PORTION:
            self._told = self._end
            self._progress()
        return self._at < len(self._samples)

    def flush(self) -> None:
        if self._resampler is not None:
            self._write(self._resampler.resample(None))

    def sound(self, is_capped: bool) -> Sound:
        if is_capped and self._at > len(self._samples):
            raise _too_long()
        if self.first is None:
            raise Refused("no_stream", "There is no sound between start and end.")
        return Sound(self._samples[self.first : self._end], self.first / RATE)

    def _write(self, frames: list[Any]) -> None:
        for frame in frames:
            mono = frame.to_ndarray().mean(axis=0)
            low, high = max(0, -self._at), min(len(mono), len(self._samples) - self._at)
            if low < high:
                self._end = self._at + high
                self._samples[self._at + low : self._end] = mono[low:high]
                self.first = self._at + low if self.first is None else self.first
            self._at += len(mono)
