"""Recordings become corpora: sound by its time stamps, words, one manifest, nothing lost unsaid."""

import csv
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
from refusals import refusal
from survivors import LIMIT, ROOT, start
from tiny import tiny_config

import msajax
from msajax.cli.corpora import convert
from msajax.cli.predict import open_clips, predict
from msajax.config import DataConfig
from msajax.corpus.in_memory import corpus_of
from msajax.recordings import extract as extraction
from msajax.recordings import measure, media, row
from msajax.recordings.audio_columns import audio_columns, over_steps
from msajax.recordings.measure import Stopped
from msajax.recordings.media import RATE, Refused, read_sound
from msajax.recordings.pronunciation import guess, pronounce, spell_number, words_of
from msajax.recordings.settings import settings_of
from msajax.recordings.timed import read_times

av = pytest.importorskip("av")
pocketsphinx = pytest.importorskip("pocketsphinx")
CLIPS = ROOT.parent / "shared" / "clips"
NOISE = (0.2 * np.random.default_rng(0).normal(size=3 * RATE)).astype(np.float32).clip(-1, 1)


def write(path, samples=NOISE, codec="pcm_s16le", rate=RATE, at=0.0, pictures=None, gap=None):
    """A file of sound `[S]` or `[channels, S]` that begins `at` seconds, beside a picture at 0.

    With a `gap` of (sample, seconds) what follows that sample comes so much later.
    """
    samples = np.atleast_2d(samples)
    with av.open(str(path), "w") as container:
        video = None
        if pictures:
            video = container.add_stream("mpeg4", 10)
            video.width = video.height = 32
        layout = {1: "mono", 2: "stereo"}[len(samples)]
        stream = container.add_stream(codec, rate, layout=layout)
        if video is not None:
            for i in range(pictures):
                frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), i, np.uint8), "rgb24")
                frame.pts = i
                container.mux(video.encode(frame))
            container.mux(video.encode(None))
        for first in range(0, samples.shape[1], 1000):
            part = np.ascontiguousarray(samples[:, first : first + 1000])
            frame = av.AudioFrame.from_ndarray(part, "fltp", layout)
            frame.rate, frame.pts = rate, round(at * rate) + first
            frame.pts += round(gap[1] * rate) if gap and first >= gap[0] else 0
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return str(path)


@pytest.fixture
def at_once(monkeypatch):
    """Rows are measured in this process: the start of another one takes longer than they do."""

    class Worker:
        def __init__(self, settings, errors):
            self.settings = settings

        def measure(self, task):
            facts = row.measure(task, self.settings, task["folder"])
            pathlib.Path(task["folder"], row.FACTS).write_text(json.dumps(facts))

        def close(self):
            pass

    monkeypatch.setattr(measure, "_Worker", Worker)


def reason_of(path, *cut):
    with pytest.raises(Refused) as refused:
        read_sound(str(path), *cut)
    return refused.value.reason


# --- decoding ---


def test_samples_are_the_mean_of_the_channels_as_they_were_written(tmp_path):
    both = np.stack([NOISE, 0.5 * NOISE])
    for name, codec in (("a.wav", "pcm_s16le"), ("a.flac", "flac"), ("a.mkv", "pcm_s16le")):
        sound = read_sound(write(tmp_path / name, both, codec))
        assert sound.offset == 0 and sound.samples.dtype == np.float32
        np.testing.assert_allclose(sound.samples, 0.75 * NOISE, atol=2e-4)


@pytest.mark.parametrize(
    "name, codec, rate",
    [
        *(("a.mp4", "aac", 44_100), ("a.webm", "libopus", 48_000), ("a.mp3", "libmp3lame", 44_100)),
        *(("a.m4a", "aac", 48_000), ("a.ogg", "libopus", 48_000), ("a.mpg", "mp2", 44_100)),
    ],
)
def test_a_tone_keeps_its_times_through_codecs_and_resampling(tmp_path, name, codec, rate):
    t = np.arange(4 * rate) / rate
    tone = np.where((t > 1) & (t < 1.5), np.sin(2 * np.pi * 440 * t) / 2, 0).astype(np.float32)
    path = write(tmp_path / name, tone, codec, rate)
    whole, cut = read_sound(path), read_sound(path, 0.9, 1.7)
    for sound, begin in ((whole, 0), (cut, 0.9)):
        loud = np.flatnonzero(np.abs(sound.samples) > 0.1) / RATE + sound.offset + begin
        # The first frame of mp2 begins with its encoder's delay, which nothing in the file tells.
        np.testing.assert_allclose(loud[[0, -1]], [1, 1.5], atol=0.012 if codec == "mp2" else 0.006)
        assert np.abs(sound.samples).max() == pytest.approx(0.5, abs=0.05)
    assert cut.offset == 0 and len(cut.samples) == round(0.8 * RATE)


def test_sound_that_begins_after_the_picture_and_has_a_gap_is_placed_by_its_time_stamps(tmp_path):
    path = write(tmp_path / "a.mkv", at=0.7, pictures=40, gap=(20_000, 0.5))
    sound = read_sound(path)
    assert sound.offset == pytest.approx(0.7, abs=0.001)  # mkv counts in milliseconds
    assert sound.seconds == pytest.approx(3.5, abs=0.001)
    np.testing.assert_allclose(sound.samples[:20_000], NOISE[:20_000], atol=1e-4)
    assert not sound.samples[20_000:27_980].any()
    np.testing.assert_allclose(sound.samples[-28_000:], NOISE[20_000:], atol=1e-4)
    early = read_sound(path, 0.2, 1.2)
    assert early.offset == pytest.approx(0.5, abs=1e-4) and early.seconds == pytest.approx(0.5)
    np.testing.assert_array_equal(early.samples, sound.samples[:8000])
    assert reason_of(path, 0, 0.6) == reason_of(path, 90) == "no_stream"


@pytest.mark.parametrize("name, codec", [("a.wav", "pcm_s16le"), ("a.mp3", "libmp3lame")])
def test_a_cut_far_into_a_file_is_that_part_of_the_whole(tmp_path, name, codec):
    path = write(tmp_path / name, np.tile(NOISE, 4), codec)
    whole, cut = read_sound(path), read_sound(path, 7.25, 9.5)
    assert cut.offset == 0 and len(cut.samples) == 36_000
    at = round(7.25 * RATE)
    np.testing.assert_allclose(cut.samples, whole.samples[at : at + 36_000], atol=1e-6)


def test_what_is_no_media_file_or_a_broken_one_is_refused_and_opens_nothing_else(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a.ts"
        whole = write(tmp_path / "whole.wav")
        playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{url}\n#EXT-X-ENDLIST\n"
        cases = {
            "list.mp4": (playlist.encode(), "undecodable"),
            "list.m3u8": (playlist.encode(), "not_allowed"),
            "cat.mp4": (f"ffconcat version 1.0\nfile '{whole}'\n".encode(), "not_allowed"),
            "zeros.mp4": (bytes(100_000), "undecodable"),
            "text.mp3": (b"Hello.\n" * 500, "undecodable"),
            "empty.wav": (b"", "undecodable"),
        }
        for name, (content, reason) in cases.items():
            (tmp_path / name).write_bytes(content)
            assert reason_of(tmp_path / name) == reason, name
        os.mkfifo(tmp_path / "endless.wav")
        assert reason_of(tmp_path / "endless.wav") == reason_of(tmp_path) == "not_allowed"
        assert reason_of(tmp_path / "none.wav") == reason_of(url) == "undecodable"
        with pytest.raises(BlockingIOError):
            server.accept()

    content = pathlib.Path(whole).read_bytes()
    (tmp_path / "half.wav").write_bytes(content[: len(content) // 2])
    assert reason_of(tmp_path / "half.wav") == "undecodable"
    for name, codec in (("a.flac", "flac"), ("a.mkv", "pcm_s16le"), ("a.webm", "libopus")):
        rate = 48_000 if codec == "libopus" else RATE
        half = pathlib.Path(write(tmp_path / name, np.tile(NOISE, 3), codec, rate))
        read_sound(str(half))
        half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
        assert reason_of(half) == "undecodable", name
    for rate in (1, 2**31 - 1):
        header = content[:24] + rate.to_bytes(4, "little") + content[28:]
        (tmp_path / "rate.wav").write_bytes(header)
        assert reason_of(tmp_path / "rate.wav") == "too_large"
    with av.open(str(tmp_path / "silent.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", 10)
        stream.width = stream.height = 32
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), "rgb24")
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert reason_of(tmp_path / "silent.mp4") == "no_stream"


def test_sound_of_more_than_the_limit_is_refused_by_its_header_and_by_its_length(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(media, "MOST_SECONDS", 2)
    assert reason_of(write(tmp_path / "a.wav")) == "too_long"
    unknown = write(tmp_path / "a.mp3", np.tile(NOISE, 3), "libmp3lame")
    assert reason_of(unknown) == "too_long"
    assert read_sound(unknown, 1, 2.5).seconds == 1.5


def test_a_process_that_computes_without_progress_is_killed():
    code = "from msajax.recordings.media import *\nlimit_memory()\nlimit_seconds({})\n{}"
    run = [sys.executable, "-c"]
    done = subprocess.run([*run, code.format(0.1, "while True: pass")], cwd=ROOT, timeout=LIMIT)
    assert done.returncode == -signal.SIGXCPU
    big = code.format(30, "np.ones(1 << 32)")
    done = subprocess.run([*run, big], cwd=ROOT, timeout=LIMIT, capture_output=True, text=True)
    assert "MemoryError" in done.stderr and resource.getrlimit(resource.RLIMIT_AS)[0] < 0


# --- words ---


def test_words_are_spoken_by_the_dictionary_by_spelling_or_by_rules():
    assert words_of('Well, [laughs] "I" don’t know: <b>50% off</b> - (umm)!') == [
        *("Well", "I", "don't", "know", "50%", "off", "umm")
    ]
    said = {"1,250": "one thousand two hundred fifty", "1905": "nineteen o five", "0": "zero"}
    said |= {
        "1984": "nineteen eighty four", "3.5": "three point five", "2007": "two thousand seven",
    }
    assert {number: " ".join(spell_number(number)) for number in said} == said
    known = {"well": "W EH L", "known": "N OW N", "one": "W AH N", "b": "B IY", "c": "S IY"}
    assert pronounce("Well", known.get) == ("well", None, 0)
    assert pronounce("well-known", known.get)[1:] == ("W EH L N OW N".split(), 1)
    assert pronounce("BC", known.get)[1:] == ("B IY S IY".split(), 1)
    assert pronounce("1", known.get)[1:] == ("W AH N".split(), 1)
    assert pronounce("snape", known.get)[1:] == ("S N EY P".split(), 2)
    assert pronounce("你好", known.get) is None
    names = {"nightly": "N AY T L IY", "whizzed": "W IH Z D", "quizlet": "K W IH Z L EH T"}
    assert {name: " ".join(guess(name)) for name in names} == names


def test_rules_of_spelling_say_three_quarters_of_the_dictionarys_sounds():
    path = os.path.join(pocketsphinx.get_model_path(), "en-us", "cmudict-en-us.dict")
    lines = [line.split() for line in open(path, encoding="utf-8")]
    lines = [line for line in lines if line[0].isalpha() and len(line[0]) > 2]
    wrong = total = 0
    for word, *phones in random.Random(0).sample(lines, 1500):
        before = list(range(len(phones) + 1))  # edits between the two
        for i, said in enumerate(guess(word), 1):
            row = [i]
            for j, phone in enumerate(phones, 1):
                row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (said != phone)))
            before = row
        wrong, total = wrong + before[-1], total + len(phones)
    assert 0.2 < wrong / total < 0.33


TIMES = {
    "a.srt": "1\r\n00:00:01,000 --> 00:00:02,200\r\n<i>So good</i>\r\n\r\n"
    "2\r\n00:01:00,500 --> 00:01:01,000\r\nyes\r\n",
    "a.vtt": "WEBVTT\n\nNOTE all\n\n00:01.000 --> 00:02.200 align:start\nSo\ngood\n\n"
    "01:00.500 --> 01:01.000\n[laughs] yes\n",
    "a.ctm": ";; words\nx 1 9 9 no\na 1 1.0 0.4 So 0.9\na 1 1.4 0.8 good\na 1 60.5 0.5 yes\n",
    "short.TextGrid": 'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n61\n<exists>\n2\n'
    '"TextTier"\n"bells"\n0\n61\n1\n3\n"ding"\n"IntervalTier"\n"Words"\n0\n61\n4\n0\n1\n""\n'
    '1\n1.4\n"So"\n1.4\n2.2\n"good"\n60.5\n61\n"yes"\n',
    "long.TextGrid": 'File type = "ooTextFile"\nObject class = "TextGrid"\n\nxmin = 0\nxmax = 61\n'
    'tiers? <exists>\nsize = 1\nitem []:\n    item [1]:\n        class = "IntervalTier"\n'
    '        name = "1st ""tier"""\n        xmin = 0\n        xmax = 61\n'
    "        intervals: size = 3\n"
    '        intervals [1]:\n xmin = 1\n xmax = 1.4\n text = "So"\n'
    '        intervals [2]:\n xmin = 1.4\n xmax = 2.2\n text = "good"\n'
    '        intervals [3]:\n xmin = 60.5\n xmax = 61\n text = "yes"\n',
}


@pytest.mark.parametrize("name", TIMES)
def test_files_of_times_say_when_words_are_spoken(tmp_path, name):
    encoding = "utf-16" if name == "long.TextGrid" else "utf-8"
    (tmp_path / name).write_text(TIMES[name], encoding=encoding, newline="")
    words = read_times(str(tmp_path / name), "videos/a.mp4")
    assert [word.text for word in words] == ["So", "good", "yes"]
    assert {word.origin for word in words} == {3}
    wanted = [[1, 1.4], [1.4, 2.2], [60.5, 61]]  # the words of a subtitle by their letters
    np.testing.assert_allclose([(word.start, word.end) for word in words], wanted, atol=1e-9)


def test_words_of_real_speech_are_found_and_others_are_refused():
    folder = CLIPS / "av" / "grid_s1"
    if not folder.is_dir():
        pytest.skip("no ../shared/clips beside this checkout")
    from msajax.recordings.words import Aligner

    aligner, errors = Aligner(), []
    for path in sorted(folder.glob("*.align"))[:3]:
        lines = [line.split() for line in path.read_text().splitlines()]
        labelled = [(int(at) / 25_000, word) for at, _, word in lines if word not in ("sil", "sp")]
        samples = read_sound(str(path.with_suffix(".mpg"))).samples
        words = [word for _, word in labelled]
        found = aligner.align(samples, words)
        errors += [abs(one.start - at) for one, (at, _) in zip(found, labelled, strict=True)]
        with pytest.raises(Refused, match="words are"):
            aligner.align(samples, "the weather was lovely so we walked by the river".split())
        assert aligner.align(samples, words) == found  # whatever came before
    assert np.median(errors) < 0.03 and len(errors) == 18


# --- a table, and its corpus ---


def table_of(folder, *lines, columns="file,id,label,transcript"):
    path = folder / "clips.csv"
    path.write_text("\n".join([columns, *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Twelve files, one of them broken; words by files of times."""
    folder = tmp_path_factory.mktemp("clips")
    for i in range(12):
        write(folder / f"{i}.wav", NOISE[1000 * i : 1000 * i + 20_000])
        (folder / f"{i}.vtt").write_text(
            f"WEBVTT\n\n00:00.100 --> 00:00.600\nso {'very ' * (i % 3)}good\n"
        )
    (folder / "3.wav").write_bytes(bytes(1000))
    lines = [f"{i}.wav,{i},{i / 2 - 2},{i}.vtt,v{i // 3}" for i in range(12)]
    return table_of(folder, *lines, columns="file,id,label,transcript,actor")


def arrays_of(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_corpus_of_words_sound_and_their_times(tmp_path, clips):
    done = msajax.extract(clips, tmp_path / "c.npz", columns={"group": "actor"}, jobs=2)
    assert done.counts == {"ok": 11, "partial": 1}
    assert "audio absent: undecodable in 1 rows" in str(done)
    corpus = msajax.open_corpus(tmp_path / "c.npz")
    split = corpus.split("train")
    assert corpus.aligned == ("text", "audio") and split.ids[4] == "v1$_$4"
    assert split.words[2].tolist() == ["so", "very", "very", "good"]
    assert split.word_origin.tolist()[1] == [3, 3, 3, -1]
    np.testing.assert_allclose(split.times["text"][0, :2], [[0.1, 0.1 + 1 / 6], [0.1 + 1 / 6, 0.6]])
    assert np.isnan(split.times["text"][0, 2:]).all() and np.isnan(split.times["audio"][3]).all()
    assert split.masks["audio"].sum(axis=1).tolist() == [2, 3, 4, 0, *[3, 4], *[2, 3, 4] * 2]
    for i in (0, 5):  # features are those of the modules, computed here
        steps = split.masks["audio"][i]
        frames = audio_columns(read_sound(str(clips.parent / f"{i}.wav")).samples)
        wanted = over_steps(frames, split.times["text"][i, steps])
        np.testing.assert_array_equal(split.features["audio"][i, steps], wanted)
    manifest = corpus.source.manifest
    assert len(manifest["columns"]["audio"]) == corpus.width("audio") == 56
    assert manifest["settings"] == {"steps": "word", "audio": "columns", "asr_model": ""}
    assert manifest["tools"]["av"] == av.__version__ and manifest["sources"]["3.wav"] == ""
    lines = list(csv.DictReader(open(done.report, encoding="utf-8")))
    assert list(lines[0]) == list(extraction.REPORT_COLUMNS)
    assert lines[3]["status"] == "partial" and lines[3]["audio"] == "absent:undecodable"
    assert lines[3]["reason"] and lines[4]["seconds_audio"] == "1.250" and lines[4]["words"] == "3"
    assert sorted(os.listdir(tmp_path / "c.extract")) == ["extract_report.csv", "lock", "request"]

    # What is kept on the way: by convert, by a folder, and in part by a fold.
    convert(str(tmp_path / "c.npz"), DataConfig(), str(tmp_path / "folder"))
    again = msajax.open_corpus(tmp_path / "folder")
    assert again.source.manifest == manifest and again.digest == corpus.digest
    fold = DataConfig(folds=3, fold=0)
    convert(str(tmp_path / "c.npz"), fold, str(tmp_path / "fold.npz"))
    part = msajax.open_corpus(tmp_path / "fold.npz")
    test, rows = part.split("test"), [split.ids.tolist().index(i) for i in part.split("test").ids]
    np.testing.assert_array_equal(test.times["audio"], split.times["audio"][rows])
    np.testing.assert_array_equal(test.word_origin, split.word_origin[rows])
    assert part.source.manifest == manifest
    assert corpus_of({"train": split}).digest != corpus_of({"train": split_at_0(split)}).digest


def split_at_0(split):
    import dataclasses

    times = {m: np.nan_to_num(x) * 0 for m, x in split.times.items()}
    return dataclasses.replace(split, times=times)


@pytest.mark.parametrize(
    "steps, audio, shape, last",
    [
        *(("frame", "columns", (125, 27), (1.24, 1.25)), ("frame", "logmel", (125, 40), None)),
        *(("100ms", "columns", (13, 56), (1.2, 1.3)), ("frame", "waveform", (20_000, 1), None)),
    ],
)
def test_other_steps_of_sound(tmp_path, at_once, steps, audio, shape, last):
    path = write(tmp_path / "a.wav", NOISE[:20_000])
    table = [{"file": path, "id": "a", "transcript": "so good", "label": 0.5}]
    done = msajax.extract(table, tmp_path / "c", steps=steps, audio=audio)
    corpus = msajax.open_corpus(tmp_path / "c")
    corpus.verify()
    split = corpus.split("train")
    assert split.features["audio"].shape == (1, *shape) and split.raw_text.tolist() == ["so good"]
    assert split.words is None and corpus.aligned == () and done.counts == {"ok": 1}
    if last:
        np.testing.assert_allclose(split.times["audio"][0, -1], last)
    if audio == "waveform":
        np.testing.assert_allclose(split.features["audio"][0, :, 0], NOISE[:20_000], atol=1e-4)
    names = [column["name"] for column in corpus.source.manifest["columns"]["audio"]]
    assert len(set(names)) == shape[1] and corpus.source.manifest["kind"] == {"audio": audio}


WRONG = {
    "id,label\na,1": "has no column 'file'",
    "file,id\na.wav,a\nb.wav,a": "the id 'a' is there twice",
    "file,id\n,a": "row 1 has no file",
    "file,id,start\na.wav,a,soon": "row 1: start is 'soon': must be seconds",
    "file,id,start,end\na.wav,a,2,1": "start 2 must be before end 1",
    "file,id\na.wav,a,b": "line 2 has 3 cells, but there are 2 columns",
    "file,id": "has no row",
    'file,id\n"a.wav,a': "is no CSV in UTF-8",
    "file,id\na.wav,a": "--steps=word needs words",
}


@pytest.mark.parametrize("content", WRONG)
def test_a_table_that_is_wrong_is_one_sentence_and_nothing_is_written(tmp_path, content):
    (tmp_path / "clips.csv").write_text(content)
    said = refusal(msajax.extract, tmp_path / "clips.csv", tmp_path / "c.npz")
    assert WRONG[content] in said and os.listdir(tmp_path) == ["clips.csv"]


def test_settings_that_are_wrong_are_one_sentence(tmp_path, clips, monkeypatch):
    def said(**settings):
        return refusal(msajax.extract, clips, tmp_path / "c.npz", **settings)

    assert "--audio=mfcc: must be one of columns, logmel, waveform, none" in said(audio="mfcc")
    assert "--audio=logmel has steps frame" in said(audio="logmel", steps="word")
    assert "has no column 'speaker', which --columns names" in said(columns={"group": "speaker"})
    with pytest.raises(msajax.UserError, match="no column 'grup'. Did you mean 'group'?"):
        msajax.extract(clips, tmp_path / "c.npz", columns={"grup": "actor"})
    assert not os.listdir(tmp_path)
    (tmp_path / "faster_whisper.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert "with its tokenizer.json: nothing is downloaded" in said(asr_model=str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "package av and pocketsphinx: pip install -r requirements-clips.txt" in said()


def test_rows_without_anything_usable_end_with_their_reasons(tmp_path, at_once):
    (tmp_path / "a.wav").write_bytes(bytes(99))
    said = refusal(msajax.extract, table_of(tmp_path, "a.wav,a,1,"), tmp_path / "c.npz",
                   steps="100ms")
    assert "None of 1 row(s) is usable; a.wav" in said and not (tmp_path / "c.npz").exists()
    lines = list(csv.DictReader(open(tmp_path / "c.extract" / "extract_report.csv")))
    assert lines[0]["audio"] == "absent:undecodable" and lines[0]["text"] == "absent:no_transcript"


def test_a_model_that_writes_transcripts_is_the_users_folder(tmp_path, monkeypatch):
    """A stand-in for faster-whisper, which is installed by hand."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "faster_whisper.py").write_text(
        "import os, types\n\n\nclass WhisperModel:\n"
        "    def __init__(self, folder, local_files_only, **options):\n"
        "        assert local_files_only and os.environ['HF_HUB_OFFLINE'] == '1'\n"
        "        self.said = open(folder + '/tokenizer.json').read()\n"
        "        assert self.said != 'broken', 'it is damaged'\n\n"
        "    def transcribe(self, samples, beam_size, temperature):\n"
        "        assert temperature == 0.0  # else words are drawn at random\n"
        "        return [types.SimpleNamespace(text=f' {self.said} {len(samples)}')], None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1")
    (tmp_path / "model" / ".cache").mkdir(parents=True)  # as downloads leave it
    (tmp_path / "model" / "tokenizer.json").write_text("heard")
    write(tmp_path / "a.wav", NOISE[:16_000])
    table = table_of(tmp_path, "a.wav,a,1,", "a.wav,b,2,so good")
    options = {"steps": "100ms", "asr_model": str(tmp_path / "model")}
    msajax.extract(table, tmp_path / "c.npz", **options)
    corpus = msajax.open_corpus(tmp_path / "c.npz")
    assert corpus.split("train").raw_text.tolist() == ["heard 16000", "so good"]
    (tmp_path / "model" / "tokenizer.json").write_text("broken")
    assert "is not the model that wrote" in refusal(
        settings_of, corpus.source.manifest, options["asr_model"]
    )
    said = refusal(msajax.extract, table, tmp_path / "d.npz", **options)
    assert "model cannot be loaded: it is damaged." in said and not (tmp_path / "d.npz").exists()


# --- prediction, death and resumption ---


def test_words_of_recordings_are_read_as_vectors_in_training_and_of_a_new_clip(
    tmp_path, clips, at_once
):
    glove = tmp_path / "glove.txt"
    glove.write_text("good 1 2 3\nso 4 5 6\n")
    table = [
        dict(line, file=clips.parent / line["file"], transcript=clips.parent / line["transcript"])
        for line in csv.DictReader(open(clips))
    ]
    msajax.extract(table, tmp_path / "c.npz", columns={"group": "actor"}, jobs=1)
    data = DataConfig(glove_path=str(glove))
    split = msajax.open_corpus(tmp_path / "c.npz", data).split("train")
    assert split.words[1].tolist()[:3] == ["so", "very", "good"]
    assert split.features["text"][1, :3].tolist() == [[4, 5, 6], [0, 0, 0], [1, 2, 3]]
    assert split.masks["text"].tolist() == (split.words != "").tolist()
    config = tiny_config(
        **{"data__path": str(tmp_path / "c.npz"), "data__glove_path": str(glove)},
        **{"data__folds": 3, "data__fold": 0, "train__epochs": 1, "train__seeds": 1},
    )
    msajax.train(config, str(tmp_path / "run"))
    wanted = next(csv.DictReader(open(tmp_path / "run" / "predictions" / "test.csv")))
    line = table[int(wanted["id"].split("$")[-1])]
    clip = {"transcript": str(line["transcript"]), "jobs": 1}
    scored = str(tmp_path / "p.csv")
    predict(str(tmp_path / "run" / "bundle"), str(line["file"]), scored, clips=clip)
    found = next(csv.DictReader(open(scored)))
    assert float(found["score"]) == pytest.approx(float(wanted["score"]), abs=1e-5)
    assert found["present_text"] == found["present_audio"] == "1"


def test_a_bundle_makes_the_features_of_its_corpus_again_bit_for_bit(
    tmp_path, clips, monkeypatch, caplog, at_once
):
    msajax.extract(clips, tmp_path / "c.npz", jobs=1)
    corpus = msajax.open_corpus(tmp_path / "c.npz")
    split = corpus.split("train")
    bundle = {"preparation": {"manifest": json.loads(json.dumps(corpus.source.recipe))}}
    assert "sources" not in bundle["preparation"]["manifest"]
    monkeypatch.setattr("msajax.cli.predict.read_description", lambda path: bundle)
    clip, said = str(clips.parent / "4.wav"), str(clips.parent / "4.vtt")
    one = open_clips("b", clip, str(tmp_path / "p.csv"), said, jobs=1).split("test")
    assert one.ids.tolist() == ["4"] and one.labels is None
    all_of = open_clips("b", str(clips), str(tmp_path / "all.csv"), jobs=1).split("test")
    for found, k in ((one, 0), (all_of, 4)):
        size = int(split.masks["audio"][4].sum())
        wanted = split.features["audio"][4, :size]
        assert found.features["audio"][k, :size].tobytes() == wanted.tobytes()
        assert found.words[k].tolist()[:size] == split.words[4].tolist()[:size]
    assert "3.wav: The file cannot be decoded" in caplog.text
    assert os.listdir(tmp_path / "p.extract") and not (tmp_path / "p.extract" / "rows").exists()
    bundle["preparation"]["manifest"]["tools"]["av"] = "1.0"
    assert settings_of(bundle["preparation"]["manifest"], "").steps == "word"
    assert "Features of training were made with av 1.0" in caplog.text
    bundle["preparation"]["manifest"] = None
    said = refusal(open_clips, "b", clip, str(tmp_path / "p.csv"))
    assert "trained on features of unknown making" in said


def test_a_process_that_dies_of_a_file_costs_one_modality_of_that_row(tmp_path, monkeypatch):
    """The process is replaced by one that dies of files named so."""
    dies = (
        "import os, signal, sys, msajax.recordings.row as row\nread = row.read_sound\n\n\n"
        "def read_sound(path, *rest):\n"
        "    name = os.path.basename(path)\n"
        "    if name == 'crash.wav':\n        sys.stderr.write('double free'), os.abort()\n"
        "    if name == 'spin.wav':\n        os.kill(os.getpid(), signal.SIGXCPU)\n"
        "    if name == 'fat.wav':\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return read(path, *rest)\n\n\nrow.read_sound = read_sound\nrow.main()\n"
    )
    run = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda command, **options: run([*command[:1], "-c", dies], **options)
    )
    names = ("crash", "a", "spin", "fat", "b")
    for name in names:
        write(tmp_path / f"{name}.wav", NOISE[:8000])
    table = table_of(tmp_path, *(f"{name}.wav,{name},1,so good" for name in names))
    msajax.extract(table, tmp_path / "c.npz", steps="frame", jobs=1)
    lines = list(csv.DictReader(open(tmp_path / "c.extract" / "extract_report.csv")))
    reasons = [line["audio"] for line in lines]
    assert reasons == [
        *("absent:undecodable", "present", "absent:timeout", "absent:too_large", "present")
    ]
    assert "double free" in lines[0]["reason"] and {line["text"] for line in lines} == {"present"}


def test_rows_that_are_refused_leave_no_sound_in_memory(tmp_path):
    """Room for hours of sound, eight times, would be more than a process may have."""
    write(tmp_path / "a.wav", NOISE[:16_000])
    table = [
        {"file": tmp_path / "a.wav", "id": str(i), "transcript": f"{'never ' * 9}{word}"}
        for i, word in enumerate("this that these those here there now then".split())
    ]
    assert "None of 8" in refusal(msajax.extract, table, tmp_path / "c.npz", jobs=1)
    lines = list(csv.DictReader(open(tmp_path / "c.extract" / "extract_report.csv")))
    assert {line["audio"] for line in lines} == {"absent:does_not_fit"}


def test_a_start_that_was_killed_or_stopped_goes_on_to_the_same_bytes(tmp_path, clips):
    options = {"columns": {"group": "actor"}, "steps": "frame", "jobs": 2}
    msajax.extract(clips, tmp_path / "whole.npz", **options | {"jobs": 1})
    command = [
        *("--mode=extract", f"--input={clips}", f"--output={tmp_path / 'c.npz'}"),
        *("--columns=group=actor", "--steps=frame", "--jobs=1"),
    ]
    rows, ends = tmp_path / "c.extract" / "rows", []
    for wanted, kind in ((2, signal.SIGKILL), (6, signal.SIGTERM)):
        process = start(*command, log=tmp_path / "log")
        while process.poll() is None:
            if rows.is_dir() and sum(not n.startswith(".") for n in os.listdir(rows)) >= wanted:
                process.send_signal(kind)
                break
            time.sleep(0.002)
        ends.append(process.wait(LIMIT))
        assert not (tmp_path / "c.npz").exists()
    assert ends == [-signal.SIGKILL, 75]
    done = start(*command, log=tmp_path / "log")
    assert done.wait(LIMIT) == 0 and "rows are measured already" in (tmp_path / "log").read_text()
    assert arrays_of(tmp_path / "c.npz") == arrays_of(tmp_path / "whole.npz")
    assert not rows.exists()
    before = (tmp_path / "c.npz").read_bytes()
    # Killed when the corpus was there already.
    again = msajax.extract(clips, tmp_path / "c.npz", **options)
    assert "is there already" in str(again) and again.counts == {"ok": 11, "partial": 1}
    assert (tmp_path / "c.npz").read_bytes() == before
    assert "is there already" in refusal(msajax.extract, clips, tmp_path / "c.npz", steps="100ms")


def test_stopping_leaves_no_row_half_measured(tmp_path, clips):
    asked = iter([False] * 3 + [True] * 1000)
    with pytest.raises(Stopped):
        msajax.extract(clips, tmp_path / "c.npz", jobs=2, should_stop=lambda: next(asked))
    rows = tmp_path / "c.extract" / "rows"
    assert all((rows / name / "facts.json").is_file() for name in os.listdir(rows))
    assert not [name for name in os.listdir(rows) if name.startswith(".")]


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="there is no espeak-ng")
def test_scores_are_found_in_words_and_in_voices_of_new_clips(tmp_path):
    made = pathlib.Path(__file__).resolve().parent.parent / "bench" / "made_speech.py"
    sizes = ("--clips=200", "--new=50", "--epochs=25", "--seeds=1")
    subprocess.run([sys.executable, made, *sizes, f"--output={tmp_path / 'f.json'}"], check=True)
    found = json.loads((tmp_path / "f.json").read_text())
    assert found["extracted"]["ok"] > 180 and found["both"] > 0.85
    assert found["both"] > found["text"] + 0.1 and found["both"] > found["audio"] + 0.05
