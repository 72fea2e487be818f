"""Makes a corpus of recordings, none of which is lost unsaid."""

import collections
import contextlib
import csv
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from msajax import announce
from msajax.corpus.corpus import Corpus, Source
from msajax.corpus.formats import save
from msajax.corpus.save_corpus import SavedCorpus, corpus_of_table, require_free
from msajax.errors import UserError, writing
from msajax.files import as_path, holds, replacing, require_writable, write_text
from msajax.recordings.measure import Measured, measure_rows
from msajax.recordings.pronunciation import GUESSED
from msajax.recordings.settings import Settings, make_manifest
from msajax.recordings.table import Row, read_rows
from msajax.recordings.timed import READERS

STATUSES = ("ok", "partial", "failed")
ROWS, REPORT = "rows", "extract_report.csv"
REPORT_COLUMNS = (
    *("row", "file", "id", "status", "reason", "audio", "text", "seconds_audio", "offset_audio"),
    *("words", "words_guessed", "words_flagged", "took_seconds"),
)


def write_report(path: str, measured: Iterable[Measured]) -> None:
    """Writes the report, a line for each row of the table, as CSV."""
    with replacing(path) as file:
        writer = csv.writer(file)
        writer.writerow(REPORT_COLUMNS)
        writer.writerows(map(_line, measured))


def _line(one: Measured) -> list[Any]:
    """Returns its line of the report, as `REPORT_COLUMNS` has it."""
    facts, row = one.facts, one.row
    seconds = (facts.get(name) for name in ("seconds_audio", "offset_audio"))
    origins = collections.Counter(facts["word_origin"])
    return [
        *(row.number, row.file, row.id, one.status, facts["reason"]),
        *(facts["audio"], facts["text"]),
        *("" if value is None else f"{value:.3f}" for value in seconds),
        *(len(facts["words"]), origins[GUESSED], facts["words_flagged"]),
        f"{facts['took_seconds']:.2f}",
    ]


def make_corpus(
    measured: Sequence[Measured], settings: Settings, path: str, report: str
) -> tuple[Corpus, SavedCorpus]:
    """Makes a corpus of the rows of which something was measured.

    Args:
        path: what to call the corpus.
        report: where the report is, for a message.

    Raises:
        UserError: if no row is usable.
    """
    usable = [one for one in measured if one.status != "failed"]
    if not usable:
        first = measured[0]
        raise UserError(
            f"None of {len(measured)} row(s) is usable; {first.row.file}: "
            f"{first.facts['reason']} The reasons of all are in {report}."
        )
    labels = list(usable[0].row.labels)
    table = {name: [one.row.labels[name] for one in usable] for name in labels}
    table |= {"id": [one.row.id for one in usable], "split": [one.row.split for one in usable]}
    sequences: dict[str, list[Any]] = {}
    beside: dict[str, list[np.ndarray]] = {}
    audio = [one.array("audio") for one in usable]
    if any(x is not None for x in audio):
        sequences["audio"] = audio
        if settings.audio != "waveform":  # whose samples follow each other
            beside["audio"] = [_or_empty(one.array("audio_times")) for one in usable]
    if any(one.facts["words"] for one in usable):
        sequences["words"] = [one.facts["words"] for one in usable]
        beside["text"] = [_or_empty(one.array("text_times")) for one in usable]
        beside["word_origin"] = [np.array(one.facts["word_origin"], np.int8) for one in usable]
    if any(one.facts["transcript"] for one in usable):
        sequences["raw_text"] = [one.facts["transcript"] for one in usable]
    are_aligned = settings.aligns and {"audio", "words"} <= sequences.keys()
    manifest = make_manifest(
        settings.recipe(), {one.row.file: one.facts["sha256"] for one in measured}
    )
    return corpus_of_table(
        Source(path, "native npz", manifest=json.loads(manifest)),
        table,
        sequences,
        label=labels or None,
        aligned=("text", "audio") if are_aligned else False,
        beside=beside,
    )


def _or_empty(times: np.ndarray | None) -> np.ndarray:
    return np.zeros((0, 2)) if times is None else times


@dataclasses.dataclass(frozen=True, repr=False)
class Extracted:
    """Says what `extract` made; printed, it is the sentences.

    Attributes:
        path: the corpus.
        report: the file that says of each row what is present, and why something is not.
        counts: `{status: rows}` of ok, partial and failed.
        sentences: what the corpus holds, and what is absent.
    """

    path: str
    report: str
    counts: Mapping[str, int]
    sentences: Sequence[str]

    def __repr__(self) -> str:
        return "\n".join(self.sentences)


def extract(
    rows: Any,
    output: str | os.PathLike,
    *,
    columns: Mapping[str, str] | None = None,
    steps: str = "",
    audio: str = "columns",
    asr_model: str = "",
    jobs: int = 0,
    should_stop: Callable[[], bool] = lambda: False,
) -> Extracted:
    """Makes a corpus of recordings, with sound and words as features, and a report of each row.

    A start that was stopped is continued by the next one, whose corpus is the same. A file that
    cannot be read is one absent modality of its row, with a reason in the report, which lies in
    `<output without .npz>.extract/extract_report.csv`.

    Args:
        rows: path of a CSV; or a data frame, a dict of columns, or a list of dicts, as `read_rows`
            takes them.
        output: a native archive, if it ends in .npz; else a folder of arrays. It may not be there.
        columns: `{name: what the table calls it}`.
        steps: word, 100ms or frame, for which each kind of sound has its own choice; "" for the
            usual one.
        audio: columns (27 of each 10 ms; over words and 100 ms their means and deviations),
            logmel (40 bands), waveform (at 16 kHz) or none.
        asr_model: folder of a faster-whisper model that writes missing transcripts.
        jobs: processes; 0 for one a core.
        should_stop: asked several times a second whether to stop.

    Raises:
        UserError: for a table or settings that are wrong, or if no row is usable.
        Stopped: if it should stop.
    """
    settings = Settings(steps, audio, asr_model)
    listed = read_rows(rows, columns)
    has_text = asr_model or any(row.transcript or row.times for row in listed)
    if settings.steps == "word" and not has_text:
        advice = "" if audio != "columns" else ", or --steps=100ms, which needs no words"
        raise UserError(
            "--steps=word needs words: a column transcript of what is said, or of files of times "
            f"({', '.join(READERS)}), or --asr_model{advice}."
        )
    recipe = settings.recipe()
    asked = json.dumps([recipe, [dataclasses.astuple(row) for row in listed]], sort_keys=True)
    asked = hashlib.sha256(asked.encode()).hexdigest()
    path = os.path.expanduser(as_path(output, "output", "a corpus")).rstrip(os.sep)
    base = path.removesuffix(".npz") + ".extract"
    request, report = os.path.join(base, "request"), os.path.join(base, REPORT)
    # A corpus of this very request was put in place whole, before a kill perhaps.
    is_done = os.path.lexists(path) and holds(request, asked)
    if not is_done:
        require_free(path, False)
        require_writable(path)
    with locked(base):
        if is_done:
            with open(report, encoding="utf-8", newline="") as file:
                counts = collections.Counter(line["status"] for line in csv.DictReader(file))
            sentences = [f"{path} is there already, of this table and these settings"]
        else:
            write_text(request, asked)
            corpus, saved, measured = corpus_of_recordings(
                listed, settings, base, path, jobs, should_stop
            )
            save(corpus, path)
            counts = collections.Counter(one.status for one in measured)
            sentences = [*saved.sentences, *_absent(measured)]
        shutil.rmtree(os.path.join(base, ROWS), ignore_errors=True)
    said = ", ".join(f"{counts[status]} {status}" for status in STATUSES)
    return Extracted(path, report, counts, [*sentences, f"rows: {said}; of each: {report}"])


def corpus_of_recordings(
    rows: Sequence[Row],
    settings: Settings,
    base: str,
    path: str,
    jobs: int = 0,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[Corpus, SavedCorpus, list[Measured]]:
    """Measures rows, writes the report, and makes the corpus, which nobody has written yet.

    Args:
        rows: at least one.
        base: the folder of the report, and of what is measured until it is not needed.
        path: what to call the corpus.
        jobs: processes; 0 for one a core.
        should_stop: asked several times a second.

    Raises:
        UserError: if no row is usable.
        Stopped: if it should stop.
    """
    measured = measure_rows(rows, settings, os.path.join(base, ROWS), jobs, should_stop)
    report = os.path.join(base, REPORT)
    write_report(report, measured)
    announce.now("Making the corpus")
    return *make_corpus(measured, settings, path, report), measured


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Holds a folder for this process; raises `UserError` if another one has it."""
    with writing(folder):
        os.makedirs(folder, exist_ok=True)
        file = open(os.path.join(folder, "lock"), "w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"{folder} is in use by another process: wait until it ends."
            ) from error
        yield


def _absent(measured: Sequence[Measured]) -> list[str]:
    why = collections.Counter(
        f"{m} {one.facts[m].replace(':', ': ')}"
        for one in measured
        for m in ("audio", "text")
        if one.facts[m] not in ("present", "")
    )
    said = [f"{reason} in {count} rows" for reason, count in sorted(why.items())]
    if flagged := sum(one.facts["words_flagged"] > 0 for one in measured):
        said.append(f"transcripts that hardly fit, whose words are flagged, in {flagged} rows")
    return said
