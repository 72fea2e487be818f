"""Audio columns against their formulas in plain float64, closed forms, and what must not matter."""

import math
import tracemalloc

import numpy as np
import pytest

from msajax.recordings import audio_columns as module
from msajax.recordings.audio_columns import (
    COLUMNS,
    HOP,
    RATE,
    STEP_COLUMNS,
    audio_columns,
    log_mel,
    over_steps,
)

NAMES = [column.name for column in COLUMNS]


def column(columns, name):
    return columns[:, NAMES.index(name)]


def seconds(length):
    return np.arange(round(length * RATE)) / RATE


def harmonics(pitch, amplitudes, length=1.0):
    t = seconds(length)
    return sum(a * np.sin(2 * np.pi * k * pitch * t + k) for k, a in amplitudes.items())


def speech_like(length=0.8):
    """A buzz of gliding pitch, noise in between, and silence at the end."""
    draw, t = np.random.default_rng(0), seconds(length)
    buzz = sum(np.sin(k * 2 * np.pi * 120 * (t + t**2 / 3)) / k for k in range(1, 30))
    sound = 0.1 * buzz * (np.sin(9 * t) > -0.3) + 0.02 * draw.normal(size=len(t))
    sound[-1500:] = 0
    return sound.astype(np.float32)


def windows_of(samples):
    """Each frame's 400 samples around its middle, less their mean, in float64."""
    for t in range(math.ceil(len(samples) / 160)):
        middle = 160 * t + 80
        around = np.arange(middle - 200, middle + 200)
        inside = (around >= 0) & (around < len(samples))
        window = np.zeros(400)
        window[inside] = samples[around[inside]]
        yield window - window.mean()


def spectrum_of(window):
    """Power of 256 frequencies by sums of cosines and sines."""
    n = np.arange(400)
    tapered = window * (0.54 - 0.46 * np.cos(2 * np.pi * n / 399))
    phase = 2 * np.pi * np.outer(np.arange(1, 257), n) / 512
    return (np.cos(phase) @ tapered) ** 2 + (np.sin(phase) @ tapered) ** 2


def test_every_column_of_the_spectrum_follows_its_formula():
    samples = speech_like()
    found = audio_columns(samples)
    hz = np.arange(1, 257) * RATE / 512
    expected = {name: [] for name in NAMES[:11]}
    before = None
    for window in windows_of(np.r_[np.zeros(HOP), samples]):  # flux knows a frame before the first
        power = spectrum_of(window)
        power += power.sum() * 1e-10 + 1e-20
        if before is None:
            before = power
            continue
        level = 10 * np.log10(power)
        centroid = np.average(hz, weights=power)
        rolloff = next(f for k, f in enumerate(hz) if power[: k + 1].sum() >= 0.85 * power.sum())
        amplitude, last = (np.sqrt(p) / np.sqrt(p).sum() for p in (power, before))
        low, high = power[(hz > 50) & (hz <= 1000)], power[(hz > 1000) & (hz <= 5000)]
        crossings = sum((a < 0) != (b < 0) for a, b in zip(window, window[1:], strict=False))
        row = {
            "rms_db": 20 * math.log10(max(1e-5, math.sqrt((window**2).mean()))),
            "zcr": crossings / 399,
            "centroid_hz": centroid,
            "bandwidth_hz": math.sqrt(np.average(hz**2, weights=power) - centroid**2),
            "rolloff85_hz": rolloff,
            "flatness": np.prod(power ** (1 / 256)) / power.mean(),
            "flux": np.linalg.norm(amplitude - last),
            "alpha_ratio_db": 10 * math.log10(low.sum() / high.sum()),
            "hammarberg_db": level[hz <= 2000].max() - level[(hz > 2000) & (hz <= 5000)].max(),
            "slope_0_500_db_per_hz": np.polyfit(hz[hz <= 500], level[hz <= 500], 1)[0],
            "slope_500_1500_db_per_hz": np.polyfit(
                *(a[(hz > 500) & (hz <= 1500)] for a in (hz, level)), 1
            )[0],
        }
        for name in expected:
            expected[name].append(row[name])
        before = power
    for name, values in expected.items():
        np.testing.assert_allclose(
            column(found, name), values, rtol=2e-4, atol=1e-5, err_msg=name
        )


def test_log_mel_bands_and_their_cosines_follow_their_formulas():
    samples = speech_like()
    hz = np.arange(1, 257) * RATE / 512
    mel = [2595 * math.log10(1 + f / 700) for f in (20, 8000)]
    edges = [700 * (10 ** ((mel[0] + i / 41 * (mel[1] - mel[0])) / 2595) - 1) for i in range(42)]
    triangles = np.array([np.interp(hz, edges[i : i + 3], [0, 1, 0]) for i in range(40)])
    bands = []
    for window in windows_of(samples):
        emphasised = [window[0] * 0.03, *(window[1:] - 0.97 * window[:-1])]
        bands.append(np.log(np.maximum(triangles @ spectrum_of(np.array(emphasised)), 1e-8)))
    np.testing.assert_allclose(log_mel(samples), bands, atol=2e-4)
    for i in range(13):
        cosine = np.cos(np.pi * i * (np.arange(40) + 0.5) / 40)
        expected = np.array(bands) @ cosine * math.sqrt((1 if i == 0 else 2) / 40)
        np.testing.assert_allclose(column(audio_columns(samples), f"mfcc_{i}"), expected, atol=1e-3)


def test_a_tone_has_its_level_frequency_and_pitch():
    for hz in (80, 250, 500):
        inner = audio_columns((0.1 * np.sin(2 * np.pi * hz * seconds(1))).astype(np.float32))[5:-5]
        np.testing.assert_allclose(column(inner, "rms_db"), -20 - 10 * math.log10(2), atol=0.1)
        np.testing.assert_allclose(column(inner, "zcr"), 2 * hz / RATE, atol=1 / 399)
        np.testing.assert_allclose(column(inner, "centroid_hz"), hz, atol=2)
        semitones = 12 * math.log2(hz / 27.5)
        np.testing.assert_allclose(column(inner, "f0_semitone"), semitones, atol=0.01)
        assert column(inner, "voiced").all()


def test_a_pulse_whose_spectrum_falls_evenly_from_2000_hz_has_that_slope_and_its_moments():
    hz = np.fft.rfftfreq(3200, 1 / RATE)
    pulse = np.roll(np.fft.irfft(10 ** (-0.02 * abs(hz - 2000) / 20)), 10 * HOP + HOP // 2)
    found = dict(zip(NAMES, audio_columns(pulse.astype(np.float32))[10], strict=True))
    # Its power is that of Laplace's distribution, of this scale in Hz.
    scale = 10 / (0.02 * math.log(10))
    tail = {f: math.exp(-abs(f - 2000) / scale) / 2 for f in (50, 1000, 5000)}
    ratio = (tail[1000] - tail[50]) / (1 - tail[1000] - tail[5000])
    assert found["slope_500_1500_db_per_hz"] == pytest.approx(0.02, rel=0.02)
    assert found["centroid_hz"] == pytest.approx(2000, rel=0.002)
    assert found["bandwidth_hz"] == pytest.approx(math.sqrt(2) * scale, rel=0.02)
    expected = 2000 - scale * math.log(2 * 0.15)
    assert found["rolloff85_hz"] == pytest.approx(expected, abs=RATE / 512)
    # A bin lies at 1000 Hz: half its width, 15.6 Hz, is too much on one side.
    assert found["alpha_ratio_db"] == pytest.approx(10 * math.log10(ratio) + 0.31, abs=0.1)


def test_the_pitch_is_that_of_a_glide_and_of_harmonics_without_their_fundamental():
    glide = np.sin(2 * np.pi * 100 * 2 / math.log(4) * 4 ** (seconds(2) / 2))
    inner = column(audio_columns(glide.astype(np.float32)), "f0_semitone")[5:-5]
    middle = (np.arange(200) + 0.5)[5:-5] / 100
    np.testing.assert_allclose(inner, 12 * np.log2(100 * 4 ** (middle / 2) / 27.5), atol=0.1)
    missing = harmonics(150, {3: 0.1, 4: 0.1, 5: 0.1, 6: 0.1}).astype(np.float32)
    inner = column(audio_columns(missing), "f0_semitone")[5:-5]
    np.testing.assert_allclose(inner, 12 * math.log2(150 / 27.5), atol=0.01)


@pytest.mark.parametrize("db", [5, 15, 25])
def test_harmonics_in_noise_have_the_ratio_of_their_powers(db):
    voice = harmonics(200, {k: 1 / k for k in range(1, 20)}, 2.0)
    noise = np.random.default_rng(1).normal(size=len(voice))
    noise *= voice.std() / noise.std() / 10 ** (db / 20)
    found = audio_columns((0.05 * (voice + noise)).astype(np.float32))[5:-5]
    semitones = 12 * math.log2(200 / 27.5)
    assert (abs(column(found, "f0_semitone") - semitones) < 0.5).mean() > 0.98
    assert column(found, "hnr_db").mean() == pytest.approx(db, abs=1)


def test_the_pitch_keeps_its_octave_where_every_second_period_is_weak_for_a_moment():
    t = seconds(1)
    buzz = harmonics(200, {k: 0.1 / k for k in range(1, 20)})
    weak = (t > 0.45) & (t < 0.55) & (np.floor(t * 200) % 2 == 1)
    inner = audio_columns((buzz * np.where(weak, 0.7, 1)).astype(np.float32))[5:-5]
    np.testing.assert_allclose(column(inner, "f0_semitone"), 12 * math.log2(200 / 27.5), atol=0.2)


def test_what_is_far_below_the_loudest_sample_is_no_voice():
    buzz = harmonics(200, {k: 0.1 / k for k in range(1, 20)})
    found = audio_columns(np.r_[buzz, 0.003 * buzz, 0.1 * buzz].astype(np.float32))
    assert [column(found, "voiced")[i : i + 90].mean() for i in (5, 105, 205)] == [1, 0, 1]


def test_noise_has_no_voice():
    found = audio_columns(np.random.default_rng(2).normal(0, 0.1, 2 * RATE).astype(np.float32))
    assert column(found, "voiced").mean() < 0.05
    unvoiced = column(found, "voiced") == 0
    assert not column(found, "f0_semitone")[unvoiced].any()
    assert not column(found, "hnr_db")[unvoiced].any()


def test_gain_moves_levels_alone_and_sign_and_delay_nothing():
    samples = harmonics(180, {k: 0.05 / k for k in range(1, 30)}, 0.5).astype(np.float32)
    samples += np.random.default_rng(3).normal(0, 1e-3, len(samples)).astype(np.float32)
    plain = audio_columns(samples)
    shift = np.zeros(len(COLUMNS))
    shift[NAMES.index("rms_db")] = -20
    shift[NAMES.index("mfcc_0")] = math.log(0.01) * math.sqrt(40)
    louder = audio_columns(samples * np.float32(0.1))
    np.testing.assert_allclose(louder, plain + shift, rtol=1e-4, atol=1e-2)
    np.testing.assert_array_equal(audio_columns(-samples)[:, 2:], plain[:, 2:])
    later = audio_columns(np.r_[np.zeros(7 * HOP, np.float32), samples])
    np.testing.assert_array_equal(later[10:], plain[3:])


def test_blocks_change_nothing_and_bound_memory(monkeypatch):
    samples = np.tile(speech_like(), 30)
    tracemalloc.start()
    whole = audio_columns(samples), log_mel(samples)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 25e6  # the windows of pitch alone, 50 ms each, would be 8 MB, their spectra 21
    monkeypatch.setattr(module, "_BLOCK", 37)
    for one, other in zip(whole, (audio_columns(samples), log_mel(samples)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("length", [0, 1, 159, 160, 161, 1000])
def test_any_length_of_anything_gives_a_finite_row_for_each_ten_milliseconds(length):
    draw = np.random.default_rng(4).normal(size=length)
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        for samples in (np.zeros(length), np.ones(length), draw, 1e-30 * draw):
            samples = samples.astype(np.float32)
            columns, bands = audio_columns(samples), log_mel(samples)
            steps = over_steps(columns, np.array([[0, 0.001], [0.2, 9.0]]))
            for found, width in ((columns, 27), (bands, 40)):
                assert found.shape == (math.ceil(length / 160), width)
                assert found.dtype == np.float32
                assert np.isfinite(found).all()
            assert steps.shape == (2, 56)
            assert np.isfinite(steps).all()


def test_a_step_has_the_statistics_of_the_frames_whose_middle_lies_in_it():
    columns = audio_columns(speech_like())
    times = np.array([[0.0, 0.1], [0.1, 0.2], [0.2, 0.333], [0.45, 0.452], [0.6, 0.79], [3, 4]])
    frames = [range(10), range(10, 20), range(20, 33), [45], range(60, 79), [79]]
    found = over_steps(columns, times)
    assert [name for name, _ in STEP_COLUMNS[:27]] == [f"{name}_mean" for name in NAMES]
    assert [name for name, _ in STEP_COLUMNS[27:54]] == [f"{name}_sd" for name in NAMES]
    assert np.ptp(column(columns, "voiced")) == 1
    for row, of_step in zip(found, frames, strict=True):
        for i, name in enumerate(NAMES):
            values = [
                float(columns[t, i]) for t in of_step
                if name not in ("f0_semitone", "hnr_db") or column(columns, "voiced")[t]
            ]
            assert row[i] == pytest.approx(np.mean(values) if values else 0, rel=1e-5)
            sd = math.sqrt(sum((v - np.mean(values)) ** 2 for v in values) / max(len(values), 1))
            assert row[27 + i] == pytest.approx(sd, rel=1e-4, abs=1e-9)
    durations = [0.1, 0.1, 0.133, 0.002, 0.19, 1]
    np.testing.assert_allclose(found[:, 54], durations, rtol=1e-6)
    np.testing.assert_allclose(found[:, 55], [0, 0, 0, 0.117, 0.148, 2.21], atol=1e-6)
