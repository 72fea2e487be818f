"""Reads word vectors from text in the way of GloVe: a word and its numbers on each line.

    the 0.27204 -0.06203 … 0.3955

Plain or gzip, told apart by content; a header line as word2vec and fastText write it is understood.
A word may itself hold spaces, as in glove.840B, so a line is read from its right end.
"""

import collections
import dataclasses
import functools
import gzip
import hashlib
import io
import itertools
import json
import logging
import os
import re
import stat
import zlib
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from msajax.config import DataConfig
from msajax.corpus.corpus import Corpus, Split, is_finite
from msajax.errors import UserError, reading

logger = logging.getLogger(__name__)

_LONGEST_LINE = 1 << 20  # bytes; a binary file need not hold a line's end at all
_HEAD = 256  # lines that settle the width
_BUFFER = 1 << 20
_GZIP_BUFFER = 1 << 16  # what is lost before a damaged place
_DECIMAL_AT_END = re.compile(rb"(?:^| )[-+]?\d*\.\d+(?:[eE][-+]?\d+)?$")


@dataclasses.dataclass(frozen=True)
class WordVectors:
    """Holds the vectors of the words that were asked for and found."""

    words: tuple[str, ...]  # V words, in the order of the file
    vectors: np.ndarray  # `[V, d]` float32, finite

    def add_to(self, digest: Any) -> None:
        """Adds words and numbers to the digest of a corpus, whatever their order in the file."""
        order = np.argsort(self.words)
        digest.update(json.dumps(np.array(self.words)[order].tolist()).encode())
        digest.update(self.vectors[order].astype("<f4").tobytes())


def read_glove(path: str | os.PathLike, vocabulary: Collection[str]) -> WordVectors:
    """Reads the vectors of a vocabulary and streams over all other lines.

    The width d is what most of the first lines have. Every line must have it; the numbers
    themselves are read for wanted words alone. Of a repeated word the first line counts, and words
    are compared as they are written, case included.

    Raises:
        UserError: naming the line, if the file is damaged, no such text, or holds another number
            of values on one line, or a value that is not a finite float32 number.
    """
    path = os.fspath(path)
    wanted = {word.encode("utf-8", "surrogatepass"): word for word in vocabulary}
    found: dict[bytes, np.ndarray] = {}
    number, head = 0, []
    try:
        with _open_text(path) as file:
            rest = _lines(path, file)
            # The first lines settle the width; they are read again with the others.
            for line in itertools.islice(rest, _HEAD):
                head.append(line)
            width, promised = _settle(path, head)
            first = 1 if promised is None else 2
            for number, line in enumerate(itertools.chain(head[first - 1 :], rest), first):
                # From the right end: a word may hold spaces itself, but no decimal at its end.
                line = line.rstrip()
                spaces = line.count(b" ")
                word = line[: line.index(b" ")] if spaces == width else line.rsplit(b" ", width)[0]
                if spaces < width:
                    raise UserError(
                        f"{path}, line {number}: {spaces} value(s) after the word, expected "
                        f"{width} as on the other lines."
                    )
                if spaces > width and _DECIMAL_AT_END.search(word):
                    raise UserError(
                        f"{path}, line {number}: more than the {width} numbers that the other "
                        "lines have."
                    )
                if word in wanted and word not in found:
                    try:
                        values = np.array([float(x) for x in line[len(word) + 1 :].split(b" ")])
                    except ValueError as error:
                        place = f"{path}, line {number}"
                        raise UserError(f"{place}: a value that is no number.") from error
                    if not is_finite(values).all():
                        raise UserError(
                            f"{path}, line {number}: a value that is not a finite float32 number."
                        )
                    found[word] = values.astype(np.float32)
    except (OSError, EOFError, zlib.error) as error:
        last = max(number, len(head))
        raise UserError(f"{path} is damaged after line {last}: {error}.") from error
    if promised is not None and number - 1 != promised:
        raise UserError(
            f"{path} ends after line {number}: its first line promises {promised} words, "
            f"and {number - 1} are there."
        )
    return WordVectors(
        words=tuple(wanted[word] for word in found),
        vectors=np.array(list(found.values()), np.float32).reshape(-1, width),
    )


def _open_text(path: str) -> io.BufferedIOBase:
    with reading(f"The word vectors {path}"):
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
            raise UserError(f"The word vectors {path} cannot be read: it is no regular file.")
        with open(path, "rb") as file:
            magic = file.read(4)
    if magic == b"PK\3\4":
        raise UserError(f"{path} is a zip archive; unpack it and name the text file inside.")
    if magic[:2] == b"\x1f\x8b":
        return io.BufferedReader(gzip.open(path), _GZIP_BUFFER)
    return open(path, "rb", _BUFFER)


def _lines(path: str, file: io.BufferedIOBase) -> Iterator[bytes]:
    read = functools.partial(file.readline, _LONGEST_LINE)
    for number, line in enumerate(iter(read, b""), 1):
        if len(line) == _LONGEST_LINE:
            raise UserError(
                f"{path}, line {number}: {_LONGEST_LINE} bytes or longer; this is no text of word "
                "vectors."
            )
        yield line


def _settle(path: str, head: list[bytes]) -> tuple[int, int | None]:
    """Finds the width of the vectors and, from a header line, the number of words."""
    if not head:
        raise UserError(f"{path} is empty; expected a word and its numbers on each line.")
    header = re.fullmatch(rb"(\d{1,18}) (\d{1,18})", head[0].rstrip()) if len(head) > 1 else None
    widths = collections.Counter(_numbers_at_end(line) for line in head[bool(header) :])
    width = widths.most_common(1)[0][0]
    if width == 0:
        raise UserError(
            f"{path}, line {2 if header else 1}: no word vector; expected a word and its numbers, "
            "separated by single spaces."
        )
    if header and int(header[2]) == width:
        return width, int(header[1])
    return width, None


def _numbers_at_end(line: bytes) -> int:
    count = 0
    for field in reversed(line.rstrip().split(b" ")[1:]):
        try:
            float(field)
        except ValueError:
            break
        count += 1
    return count


def read_vectors(path: str, glove_path: str, counts: collections.Counter[str]) -> WordVectors:
    """Reads the vectors of words by how often each occurs; logs how many have none.

    Raises `UserError` if the file is damaged, or has no vector of any word of the corpus at `path`.
    """
    found = read_glove(glove_path, counts.keys())
    if not found.words:
        raise UserError(f"{glove_path} has none of the {len(counts)} words of {path}.")
    unknown = counts.total() - sum(counts[word] for word in found.words)
    logger.info(
        "%s: %d of %d words (%.1f %%) have no vector and stay valid steps of zeros.",
        *(path, unknown, counts.total(), 100 * unknown / counts.total()),
    )
    return found


def with_word_vectors(corpus: Corpus, data: DataConfig) -> Corpus:
    """Makes the same corpus whose text is the vectors of its words, at their steps.

    Only where `data.glove_path` asks for it, and words are known step by step and no features of
    text are; else it returns the corpus. Raises `UserError` if the file of vectors is damaged, or
    has none of any word.
    """
    known = {name: header for name, header in corpus.headers.items() if header.words}
    reads_features = data.text in ("auto", "features")
    if not (data.glove_path and reads_features and known) or "text" in corpus.modalities:
        return corpus
    counts: collections.Counter[str] = collections.Counter()
    for name in known:
        counts.update(filter(None, corpus.split(name).words.flat))
    vectors = read_vectors(corpus.path, data.glove_path, counts)
    row_of = {word: row for row, word in enumerate(vectors.words, 1)}
    table = np.pad(vectors.vectors, ((1, 0), (0, 0)))  # row 0: a word without a vector

    def read(name: str) -> Split:
        split = corpus.split(name)
        if split.words is None:
            return split
        rows = np.array([row_of.get(word, 0) for word in split.words.flat], np.int32)
        return dataclasses.replace(
            split,
            features={**split.features, "text": table[rows.reshape(split.words.shape)]},
            masks={**split.masks, "text": split.words != ""},
        )

    headers = {
        name: dataclasses.replace(
            header,
            shapes={"text": (header.words, table.shape[1]), **header.shapes},
            dtypes={"text": "float32", **header.dtypes},
            masked=header.masked | {"text"},
        )
        for name, header in known.items()
    }
    digest = hashlib.sha256(corpus.digest.encode())
    vectors.add_to(digest)
    source = dataclasses.replace(corpus.source, has_vectors=True)
    return corpus.with_changes(read, headers, digest=digest.hexdigest(), source=source)
