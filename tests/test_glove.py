"""Word vectors from text: what is asked for is read to the bit, a bad line is named by number."""

import gzip
import io
import os
import pathlib
import re
import tracemalloc
import zipfile

import numpy as np
import pytest
import refusals
from hypothesis import given, settings
from hypothesis import strategies as st

from msajax.corpus.glove import read_glove

GOOD = ["the 0.25 -1.5 3e-2", "cat 1 2 3", "sat -0.1 0.2 -0.3"]


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "vectors.txt"


def write(path: pathlib.Path, lines: list[str], end: str = "\n") -> pathlib.Path:
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


def read(path, *words: str) -> dict[str, list[float]]:
    found = read_glove(path, words)
    assert found.vectors.dtype == np.float32 and len(found.words) == len(found.vectors)
    return dict(zip(found.words, found.vectors.tolist(), strict=True))


def f32(*values: float) -> list[float]:
    return np.array(values, np.float32).tolist()


def refusal(path, *words: str) -> str:
    message = refusals.refusal(read_glove, path, words or ("the", "cat", "sat"))
    assert str(path) in message
    return message


# --- what is read ---


def test_wanted_words_are_read_and_others_are_not(path):
    found = read_glove(write(path, GOOD), ["sat", "the", "dog"])
    assert found.words == ("the", "sat")  # in the file's order
    wanted = np.array([[0.25, -1.5, 0.03], [-0.1, 0.2, -0.3]], np.float32)
    np.testing.assert_array_equal(found.vectors, wanted, strict=True)
    for words in (["dog"], []):  # without a known word the width is still known
        found = read_glove(path, words)
        assert found.words == () and found.vectors.shape == (0, 3)


def test_gzip_is_told_by_content(tmp_path, path):
    plain = read(write(path, GOOD), "the", "cat")
    packed = tmp_path / "vectors.bin"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed, "the", "cat") == plain
    path.rename(tmp_path / "plain.gz")
    assert read(tmp_path / "plain.gz", "the", "cat") == plain


FILES = {  # the lines of a file, and vectors that are read of it
    "spaces in words": (
        [". . . 0.5 0.25 1", "the 1 2 3", "Route 66 4 5 6", "at a@b.com 7 8 9", ". 0 0 0"],
        {". . .": [0.5, 0.25, 1], "Route 66": [4, 5, 6], "at a@b.com": [7, 8, 9], ".": [0, 0, 0]},
    ),
    "a single line": ([". . . 0.5 0.25 1"], {". . .": [0.5, 0.25, 1]}),
    "words like numbers": (["2004 0.5 1", "nan 1 2", "-1e3 3 4", "inf 5 6"],
                           {"2004": [0.5, 1], "nan": [1, 2], "-1e3": [3, 4], "inf": [5, 6]}),
    "a word twice": ([*GOOD, "cat 7 8 9"], {"cat": [1, 2, 3]}),
    "a header": (["3 3", *GOOD], {"cat": [1, 2, 3]}),
    "no header": (["7 3", "8 4"], {"7": [3], "8": [4]}),
    "unwanted lines": (["the x y z", *GOOD[1:], "dog nan nan nan"], {"cat": [1, 2, 3]}),
    "letters of any script": (
        ["The 1 2", "the 3 4", "größer 5 6", "Ωμέγα 7 8", "\x85 9 10", "\xa0 11 12"],
        {"the": [3, 4], "größer": [5, 6], "Ωμέγα": [7, 8], "\x85": [9, 10], "\xa0": [11, 12]},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_words_are_compared_as_they_are_written_and_may_hold_spaces(path, name):
    lines, wanted = FILES[name]
    strangers = {"\ud800", "at", "Route", "3"} - wanted.keys()
    assert read(write(path, lines), *wanted, *strangers) == wanted
    path.write_text("\n".join(lines), encoding="utf-8")  # the last line needs no end
    assert read(path, *wanted) == wanted


@pytest.mark.parametrize("end", ["\r\n", " \n", "\t \r\n"])
def test_white_space_at_the_end_of_lines_does_not_matter(path, end):
    found = read(write(path, GOOD, end), "cat", "sat")
    assert found == {"cat": [1, 2, 3], "sat": f32(-0.1, 0.2, -0.3)}


@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(
        st.lists(st.text("abcü.", min_size=1, max_size=4), min_size=1, max_size=3).map(" ".join),
        min_size=1,
        max_size=12,
        unique=True,
    ),
    width=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
    keep=st.integers(0, 12),
)
def test_what_is_written_is_read(tmp_path_factory, words, width, seed, keep):
    values = np.random.default_rng(seed).normal(size=(len(words), width)).astype(np.float32)
    lines = [
        f"{word} {' '.join(repr(float(v)) for v in row)}"
        for word, row in zip(words, values, strict=True)
    ]
    path = write(tmp_path_factory.getbasetemp() / "random.txt", lines)
    found = read_glove(path, words[:keep])
    assert found.words == tuple(words[:keep])
    np.testing.assert_array_equal(found.vectors, values[:keep], strict=True)


def test_memory_does_not_grow_with_the_file_nor_with_a_line(path):
    line = " ".join(["0.123456789"] * 50)
    write(path, [f"w{k} {line}" for k in range(20000)])
    assert path.stat().st_size > 12e6
    tracemalloc.start()
    assert len(read_glove(path, ["w7", "w19999"]).words) == 2
    assert tracemalloc.get_traced_memory()[1] < 3e6  # a buffer of 1 MiB and the first lines
    path.write_bytes(b"")
    os.truncate(path, 1 << 26)  # zeros that take no place on disk
    assert "line 1: 1048576 bytes or longer" in refusal(path)
    assert tracemalloc.get_traced_memory()[1] < 4e6
    tracemalloc.stop()


def test_the_real_file_is_read_as_another_parser_reads_it(shared_data):
    path = shared_data / "glove.840B.300d.mosi_vocab.txt"
    fields = [line.split(" ") for line in path.read_text(encoding="utf-8").splitlines()]
    words = [line[0] for line in fields]
    found = read_glove(path, words)
    assert found.words == tuple(words) and len(words) == 2722
    wanted = np.array([line[1:] for line in fields]).astype(np.float32)
    np.testing.assert_array_equal(found.vectors, wanted, strict=True)


# --- what is refused ---


@pytest.mark.parametrize("before", [0, 300])
@pytest.mark.parametrize(
    "line, message",
    [
        ("odd 1 2", r"2 value\(s\) after the word, expected 3 as on the other lines"),
        ("odd", r"0 value\(s\) after the word"),
        ("", r"0 value\(s\) after the word"),
        ("odd 0.1 0.2 0.3 0.4", r"more than the 3 numbers that the other lines have"),
        ("odd 0.1 -2.5e-3 0.3 0.4 0.5", r"more than the 3 numbers"),
        ("cat 1 x 3", r"a value that is no number"),
        ("cat 1  3", r"a value that is no number"),
        ("cat 1 nan 3", r"a value that is not a finite float32 number"),
        ("cat 1 2 -inf", r"a value that is not a finite float32 number"),
        ("cat 1 2 4e38", r"a value that is not a finite float32 number"),
    ],
)
def test_a_malformed_line_is_named(path, before, line, message):
    others = [f"w{k} 1 2 3" for k in range(before + 5)]
    write(path, [*others[5:], line, *others[:5]])
    found = refusal(path)
    assert re.search(rf", line {before + 1}: {message}", found), found


def test_a_file_that_is_not_what_its_header_promises_or_is_cut_is_refused(path):
    for lines, said in (
        (["4 3", *GOOD], r"ends after line 4: its first line promises 4 words, and 3 "),
        (["2 3", *GOOD], r"promises 2 words, and 3 are there"),
        (["4 3", *GOOD, "odd 1"], r", line 5: 1 value\(s\)"),  # lines count from the header
        ([*GOOD * 100, GOOD[0][:-5]], r", line 301: 2 value\(s\)"),
    ):
        path.write_text("\n".join(lines))
        assert re.search(said, refusal(path))


@pytest.mark.parametrize("lines, width", [(20000, 2), (200, 300), (5, 2)])
def test_a_truncated_gzip_is_refused_with_a_line(path, lines, width):
    values = np.random.default_rng(0).normal(size=(lines, width))
    text = "".join(f"w{k} {' '.join(map(repr, row))}\n" for k, row in enumerate(values.tolist()))
    content = gzip.compress(text.encode())
    path.write_bytes(content[: len(content) * 2 // 3])
    found = refusal(path)
    line = int(re.search(r"is damaged after line (\d+): .*end-of-stream", found)[1])
    lost = 65536 / len(text) * lines  # what was decompressed together with the damaged place
    assert max(0, 0.6 * lines - lost) <= line < 0.7 * lines
    assert (line > 0) == (lines > 5)
    path.write_bytes(content[:-6] + bytes([content[-6] ^ 1]) + content[-5:])  # in the checksum
    assert re.search(r"is damaged after line \d+: CRC check failed", refusal(path))


def test_a_file_of_another_kind_is_refused(path):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("glove.txt", "\n".join(GOOD))
    for content, message in (
        (b"", r"is empty; expected a word and its numbers"),
        (b"\n\n\n", r"line 1: no word vector"),
        (b"hello world\nand so on\n", r"line 1: no word vector"),
        (b"3 300\nin \x00\x01\x02\xff\xfe and\nof \x07 \x05\n", r"line 2: no word vector"),
        (bytes(range(256)) * 20, r"line 1: no word vector"),
        (b"\x89PNG\r\n\x1a\n" + bytes(5000), r"line 1: no word vector"),
        (b"1 2 3\n" * 3 + b"a " * 600000, r"line 4: 1048576 bytes or longer"),
        (b"\x1f\x8b\x08 no gzip", r"is damaged after line 0: "),
        (archive.getvalue(), "is a zip archive; unpack it"),
    ):
        path.write_bytes(content)
        assert re.search(message, refusal(path)), content[:20]


def test_a_path_that_cannot_be_read_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    gone = tmp_path / "gone.txt"
    assert re.search(r"gone\.txt cannot be read: No such file", refusal(gone))
    for place in (tmp_path, tmp_path / "pipe"):
        assert re.search(r"cannot be read: it is no regular file", refusal(place))
