"""Measures sound in frames of 10 ms: 27 columns of loudness, spectrum and voice, or log-mel bands.

A sound is mono at 16 kHz, its samples from -1 to 1. S of them are T = ceil(S / 160) frames: frame t
stands for the samples 160 t to 160 t + 159, and its middle lies at (t + 1/2) / 100 s. It is
measured in a window around its middle, less the window's mean: of 25 ms, and of 50 ms for pitch and
harmonicity. Around the sound there is silence. Frames are computed in blocks, whose ends change
nothing.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy import fft, sparse

from msajax.recordings.media import RATE

HOP, WINDOW = 160, 400  # samples from frame to frame, and of a window
_BLOCK = 500  # frames that are computed together
_FFT = 512
_HAMMING = np.hamming(WINDOW).astype(np.float32)
HZ = fft.rfftfreq(_FFT, 1 / RATE)[1:]  # of the spectrum, without its constant

# Pitch as Boersma (1993) has it: what a candidate is worth, and what changes of pitch cost.
_LOWEST, _HIGHEST = 60, 600  # Hz
_PITCH_WINDOW = 3 * RATE // _LOWEST
_LAGS = np.arange(2 * RATE // _LOWEST + 2) / 2  # of the autocorrelation, in samples
_CANDIDATES = 8
_SILENT, _VOICED, _OCTAVE, _JUMP, _TURN = 0.03, 0.45, 0.01, 0.35, 0.14


def _mel_bands() -> sparse.csr_array:
    """Makes triangles over the spectrum, equally wide in HTK's mels from 20 to 8000 Hz, [40, 256].

    Sparse: the sums of a frame then are the same whichever frames stand beside it.
    """
    edges = np.linspace(*(2595 * np.log10(1 + np.array([20, 8000]) / 700)), 42)
    low, middle, high = (700 * (10 ** (edges[i : i + 40, None] / 2595) - 1) for i in range(3))
    bands = np.minimum((HZ - low) / (middle - low), (high - HZ) / (high - middle))
    return sparse.csr_array(np.maximum(bands, 0).astype(np.float32))


_MEL = _mel_bands()


def _windows(samples: np.ndarray, first: int, last: int, width: int) -> np.ndarray:
    """Returns the windows of the frames from first to before last, less their means, [n, width]."""
    start = first * HOP + (HOP - width) // 2
    end = start + (last - first - 1) * HOP + width
    padding = (max(0, -start), max(0, end - len(samples)))
    part = np.pad(samples[max(0, start) : end], padding)
    windows = np.lib.stride_tricks.sliding_window_view(part, width)[::HOP]
    return windows - windows.mean(axis=1, keepdims=True)


class Frames:
    """Holds n frames of a sound and what columns are made of.

    Attributes:
        samples: `[n, 400]` of each window, less their mean.
        pitch: `[n]` Hz, 0 where there is no voice.
        harmonicity: `[n]`, the share of the energy that repeats with the pitch; 0 without voice.
    """

    def __init__(
        self,
        samples: np.ndarray,
        first: int,
        last: int,
        pitch: np.ndarray | None = None,
        harmonicity: np.ndarray | None = None,
    ) -> None:
        self._windows = _windows(samples, first - 1, last, WINDOW)  # and of the frame before
        self.samples = self._windows[1:]
        self.pitch, self.harmonicity = pitch, harmonicity

    @functools.cached_property
    def _spectra(self) -> np.ndarray:
        spectra = _power(self._windows)
        # Beside -100 dB of the whole nothing counts; silence counts as noise that is equally strong
        # everywhere.
        return spectra + (1e-10 * spectra.sum(axis=1, keepdims=True) + 1e-20)

    @functools.cached_property
    def power(self) -> np.ndarray:
        """The power of each frequency of `HZ`, by a Hamming window, `[n, 256]`."""
        return self._spectra[1:]

    @functools.cached_property
    def share(self) -> np.ndarray:
        """The share of each frequency in the power of its frame, `[n, 256]`."""
        return self.power / self.power.sum(axis=1, keepdims=True)

    @functools.cached_property
    def flux(self) -> np.ndarray:
        """How far amplitudes, 1 in sum, lie from those of the frame before, `[n]`."""
        amplitudes = np.sqrt(self._spectra)
        amplitudes /= amplitudes.sum(axis=1, keepdims=True)
        return np.sqrt((np.diff(amplitudes, axis=0) ** 2).sum(axis=1))

    @functools.cached_property
    def centroid(self) -> np.ndarray:
        """The mean frequency, `[n]` Hz."""
        return (self.share * HZ).sum(axis=1)

    def band(self, low: float, high: float) -> np.ndarray:
        """Returns the power of the frequencies above low Hz and up to high Hz, `[n, bins]`."""
        return self.power[:, (HZ > low) & (HZ <= high)]

    def slope(self, low: float, high: float) -> np.ndarray:
        """Computes the slope of the line through the levels of a band, `[n]` dB per Hz."""
        hz = HZ[(HZ > low) & (HZ <= high)]
        hz = hz - hz.mean()
        return (_decibels(self.band(low, high)) * (hz / (hz**2).sum())).sum(axis=1)

    @functools.cached_property
    def log_mel(self) -> np.ndarray:
        """The natural logarithm of the power of each mel band, `[n, 40]`."""
        before = np.concatenate([self.samples[:, :1], self.samples[:, :-1]], axis=1)
        power = _power(self.samples - np.float32(0.97) * before)
        return np.log(np.maximum((_MEL @ power.T).T, 1e-8))

    @functools.cached_property
    def mfcc(self) -> np.ndarray:
        """The orthonormal cosine transform (DCT-II) of `log_mel`, `[n, 40]`."""
        return fft.dct(self.log_mel, norm="ortho")


def _power(windows: np.ndarray) -> np.ndarray:
    spectrum = fft.rfft(windows * _HAMMING, _FFT)[:, 1:]
    return spectrum.real**2 + spectrum.imag**2


def _decibels(power: np.ndarray) -> np.ndarray:
    return 10 * np.log10(power)


class Column(NamedTuple):
    """Describes a column.

    Attributes:
        unit: what it is measured in, "" for a pure number.
        compute: makes it, `[n]`, of frames.
        of_voice: whether it says something of voiced frames alone, and is 0 in others.
    """

    name: str
    unit: str
    formula: str
    compute: Callable[[Frames], np.ndarray]
    of_voice: bool = False


COLUMNS = (
    Column(
        "rms_db",
        "dB",
        "20 log10 of the root mean square of the samples, where 1 is 0 dB; at least -100",
        lambda f: _decibels(np.maximum((f.samples**2).mean(axis=1), 1e-10)),
    ),
    Column(
        "zcr",
        "",
        "the share of neighbouring samples that differ in sign",
        lambda f: np.diff(np.signbit(f.samples), axis=1).mean(axis=1),
    ),
    Column("centroid_hz", "Hz", "the mean frequency, weighted by power", lambda f: f.centroid),
    Column(
        "bandwidth_hz",
        "Hz",
        "the standard deviation of frequency, weighted by power",
        lambda f: np.sqrt((f.share * (HZ - f.centroid[:, None]) ** 2).sum(axis=1)),
    ),
    Column(
        "rolloff85_hz",
        "Hz",
        "the lowest frequency up to which 85 % of the power lie",
        lambda f: HZ[np.argmax(np.cumsum(f.share, axis=1) >= 0.85, axis=1)],
    ),
    Column(
        "flatness",
        "",
        "the geometric mean of the power over frequencies, divided by the arithmetic one",
        lambda f: np.exp(np.log(f.power).mean(axis=1)) / f.power.mean(axis=1),
    ),
    Column(
        "flux",
        "",
        "the Euclidean distance of the amplitudes, 1 in sum, from those of the frame before",
        lambda f: f.flux,
    ),
    Column(
        "alpha_ratio_db",
        "dB",
        "the power from 50 to 1000 Hz against that from 1000 to 5000 Hz",
        lambda f: _decibels(f.band(50, 1000).sum(axis=1) / f.band(1000, 5000).sum(axis=1)),
    ),
    Column(
        "hammarberg_db",
        "dB",
        "the largest power up to 2000 Hz against the largest from 2000 to 5000 Hz",
        lambda f: _decibels(f.band(0, 2000).max(axis=1) / f.band(2000, 5000).max(axis=1)),
    ),
    Column(
        "slope_0_500_db_per_hz",
        "dB/Hz",
        "the slope of the least-squares line through the levels up to 500 Hz",
        lambda f: f.slope(0, 500),
    ),
    Column(
        "slope_500_1500_db_per_hz",
        "dB/Hz",
        "the slope of the least-squares line through the levels from 500 to 1500 Hz",
        lambda f: f.slope(500, 1500),
    ),
    Column(
        "f0_semitone",
        "semitone",
        "12 log2(pitch / 27.5 Hz), the pitch from 60 to 600 Hz; 0 without voice",
        lambda f: 12 * np.log2(np.maximum(f.pitch, 27.5) / 27.5),
        of_voice=True,
    ),
    Column("voiced", "", "1 with voice, else 0", lambda f: f.pitch > 0),
    Column(
        "hnr_db",
        "dB",
        "10 log10(r / (1 - r)), r the share of the energy that repeats with the pitch; from -20 to "
        "60, and 0 without voice",
        lambda f: np.where(
            f.pitch > 0, _decibels((r := np.clip(f.harmonicity, 1 / 101, 1 - 1e-6)) / (1 - r)), 0
        ),
        of_voice=True,
    ),
    *(
        Column(
            f"mfcc_{i}",
            "",
            f"number {i} of the orthonormal cosine transform of the 40 log-mel bands",
            lambda f, i=i: f.mfcc[:, i],
        )
        for i in range(13)
    ),
)

# Of each step: the mean and the standard deviation of each column, and two times.
STEP_COLUMNS = (
    *((f"{c.name}_{statistic}", c.unit) for statistic in ("mean", "sd") for c in COLUMNS),
    ("duration_s", "s"),
    ("pause_before_s", "s"),
)


def audio_columns(samples: np.ndarray) -> np.ndarray:
    """Computes the columns of `COLUMNS` for each frame.

    Args:
        samples: `[S]` float32 at 16 kHz, from -1 to 1; S may be 0.

    Returns:
        `[T, 27]` float32, all finite.
    """
    pitch, harmonicity = _track_pitch(samples)
    columns = np.empty((len(pitch), len(COLUMNS)), np.float32)
    for block in _blocks(len(pitch)):
        frames = Frames(samples, block.start, block.stop, pitch[block], harmonicity[block])
        for i, column in enumerate(COLUMNS):
            columns[block, i] = column.compute(frames)
    return columns


def log_mel(samples: np.ndarray) -> np.ndarray:
    """Computes the natural logarithm of the power of 40 mel bands for each frame.

    The windows are Hamming's, with a pre-emphasis of 0.97; the bands are triangles, equally wide
    in the mels of HTK (2595 log10(1 + f / 700 Hz)) from 20 to 8000 Hz; a power counts as at least
    1e-8.

    Args:
        samples: `[S]` float32 at 16 kHz, from -1 to 1; S may be 0.

    Returns:
        `[T, 40]` float32, all finite.
    """
    bands = np.empty((_count(samples), 40), np.float32)
    for block in _blocks(len(bands)):
        bands[block] = Frames(samples, block.start, block.stop).log_mel
    return bands


def _count(samples: np.ndarray) -> int:
    return -(-len(samples) // HOP)


def _blocks(count: int) -> Iterator[slice]:
    for first in range(0, count, _BLOCK):
        yield slice(first, min(first + _BLOCK, count))


def _track_pitch(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds the pitch of each frame, `[T]` Hz and 0 without voice, and its harmonicity, `[T]`.

    After P. Boersma, "Accurate short-term analysis of the fundamental frequency and the
    harmonics-to-noise ratio of a sampled sound", IFA Proceedings 17 (1993), with its settings: the
    candidates of a frame are peaks of the autocorrelation, divided by that of the window, and the
    absence of voice; a best path through the frames chooses among them.
    """
    count = _count(samples)
    shape = count, 1 + _CANDIDATES  # the first candidate is no voice
    strength, octave, repeats = np.empty((3, *shape), np.float32)
    back = np.empty(shape, np.int8)
    loudest = max(samples.max(initial=0), -samples.min(initial=0), 1e-9)
    for block in _blocks(count):
        found = _candidates(samples, block.start, block.stop, loudest)
        strength[block], octave[block], repeats[block] = found
    best = np.zeros(1 + _CANDIDATES)
    for block in _blocks(count):
        now = octave[block]
        before = np.concatenate([octave[max(block.start - 1, 0)][None], now[:-1]])
        turns = (before == 0)[:, :, None] != (now == 0)[:, None]
        cost = np.where(turns, _TURN, _JUMP * abs(before[:, :, None] - now[:, None]))
        for t, cost_here in enumerate(cost, block.start):
            total = best[:, None] - cost_here
            back[t] = total.argmax(axis=0)
            best = total.max(axis=0) + strength[t]
    path = np.empty(count, int)
    chosen = best.argmax()
    for t in reversed(range(count)):
        path[t] = chosen
        chosen = back[t, chosen]
    rows = np.arange(count)
    return np.where(path > 0, 2 ** octave[rows, path], 0), repeats[rows, path]


def _candidates(
    samples: np.ndarray, first: int, last: int, loudest: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds what the pitch of frames may be: strength, log2 of Hz and harmonicity, `[n, 1 + K]`."""
    windows = _windows(samples, first, last, _PITCH_WINDOW)
    r = _autocorrelation(windows * _HANN)
    r /= np.maximum(r[:, :1], 1e-20) * _HANN_REPEATS
    shortest = 2 * RATE // _HIGHEST
    inner = r[:, shortest:-1]
    is_peak = (inner > r[:, shortest - 1 : -2]) & (inner >= r[:, shortest + 1 :]) & (inner > 0)
    worth = np.where(
        is_peak, inner - _OCTAVE * np.log2(_LOWEST / RATE * _LAGS[shortest:-1]), -np.inf
    )
    chosen = np.argpartition(-worth, _CANDIDATES, axis=1)[:, :_CANDIDATES]
    rows = np.arange(len(r))[:, None]
    at = chosen + shortest
    left, middle, right = (r[rows, at + i] for i in (-1, 0, 1))
    # The top of the parabola through a peak and its neighbours.
    bend = np.minimum(left - 2 * middle + right, -1e-12)
    shift = np.clip((left - right) / (2 * bend), -0.5, 0.5)
    top = middle - (left - right) * shift / 4
    lag = (at + shift) / 2
    strength = np.where(
        worth[rows, chosen] == -np.inf, -np.inf, top - _OCTAVE * np.log2(_LOWEST / RATE * lag)
    )
    centre = slice((_PITCH_WINDOW - RATE // _LOWEST) // 2, (_PITCH_WINDOW + RATE // _LOWEST) // 2)
    level = abs(windows[:, centre]).max(axis=1) / loudest
    unvoiced = _VOICED + np.maximum(0, 2 - level * (1 + _VOICED) / _SILENT)
    no_voice = np.zeros((len(r), 1))
    return (
        np.concatenate([unvoiced[:, None], strength], axis=1),
        np.concatenate([no_voice, np.log2(RATE / lag)], axis=1),
        np.concatenate([no_voice, top], axis=1),
    )


def _autocorrelation(windows: np.ndarray) -> np.ndarray:
    size = fft.next_fast_len(_PITCH_WINDOW + len(_LAGS) // 2, real=True)
    spectrum = fft.rfft(windows, size)
    # Back to twice as many points: half samples.
    return fft.irfft(spectrum.real**2 + spectrum.imag**2, 2 * size)[..., : len(_LAGS)]


_HANN = np.hanning(_PITCH_WINDOW + 2)[1:-1].astype(np.float32)
_HANN_REPEATS = (r := _autocorrelation(_HANN)) / r[0]


def over_steps(columns: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Measures steps: words, or stretches of equal length.

    A frame belongs to the step in which its middle lies. A step that has none, because it is
    shorter than a frame or lies beside the sound, takes the one whose middle is nearest to its own.
    The mean and standard deviation (ddof 0) of `f0_semitone` and `hnr_db` are of voiced frames, and
    0 if there is none.

    Args:
        columns: `[T, 27]`, as `audio_columns` makes them; without a frame all statistics are 0.
        times: `[N, 2]` seconds, start and end of each step.

    Returns:
        `[N, 56]` float32, as `STEP_COLUMNS` names them: 27 means, 27 standard deviations, the
        duration of the step, and the pause since the end of the one before, for the first since 0.
    """
    times = np.asarray(times, np.float64)
    means, deviations = np.zeros((2, len(times), len(COLUMNS)))
    of_voice = np.array([column.of_voice for column in COLUMNS])
    voiced = columns[:, [column.name for column in COLUMNS].index("voiced")] > 0
    # The first frame whose middle is not before a time.
    bounds = np.clip(np.ceil(times * 100 - 0.5), 0, len(columns)).astype(int)
    nearest = np.clip(np.floor(times.mean(axis=1) * 100), 0, len(columns) - 1).astype(int)
    for i, (first, last) in enumerate(bounds):
        if not len(columns):
            break
        here = slice(first, last) if first < last else slice(nearest[i], nearest[i] + 1)
        part = columns[here].astype(np.float64)
        means[i], deviations[i] = part.mean(axis=0), part.std(axis=0)
        part = part[voiced[here]][:, of_voice]
        means[i, of_voice] = part.mean(axis=0) if len(part) else 0
        deviations[i, of_voice] = part.std(axis=0) if len(part) else 0
    ends = np.concatenate([[0], times[:-1, 1]]) if len(times) else times[:, 1]
    lengths = np.stack([times[:, 1] - times[:, 0], np.maximum(times[:, 0] - ends, 0)], axis=1)
    return np.concatenate([means, deviations, lengths], axis=1).astype(np.float32)
