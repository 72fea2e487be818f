"""Makes a corpus of recordings: each row measured by a process that may die, none lost unsaid."""

import collections
import contextlib
import csv
import dataclasses
import fcntl
import glob
import hashlib
import json
import logging
import math
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from msajax import announce
from msajax.corpus.corpus import Corpus, Source
from msajax.corpus.formats import save
from msajax.corpus.in_memory import as_list, is_missing
from msajax.corpus.save_corpus import SavedCorpus, corpus_of_table, require_free
from msajax.errors import UserError, nearest, printable, reading, writing
from msajax.files import (
    as_path,
    holds,
    put_in_place,
    replacing,
    require_writable,
    scratch_folder,
    write_text,
)
from msajax.recordings.pronunciation import GUESSED
from msajax.recordings.row import FACTS
from msajax.recordings.settings import Settings, make_manifest
from msajax.recordings.timed import READERS

logger = logging.getLogger(__name__)

COLUMNS = ("file", "id", "label", "transcript", "group", "split", "start", "end")
STATUSES = ("ok", "partial", "failed")
ROWS, REPORT = "rows", "extract_report.csv"
REPORT_COLUMNS = (
    *("row", "file", "id", "status", "reason", "audio", "text", "seconds_audio", "offset_audio"),
    *("words", "words_guessed", "words_flagged", "took_seconds"),
)
_LONGEST = 1 << 17  # characters of a cell
_WALL = 10  # seconds on the clock for each of processor time
_MAPPED = 1 << 20  # bytes from which an array stays on disk until it is padded
_LOG_SECONDS = 60.0  # between lines of progress in a log
_POLL = 0.1  # seconds


class Stopped(Exception):
    """Says that `extract` was asked to stop; a second start goes on."""


@dataclasses.dataclass(frozen=True)
class Row:
    """Holds a row of the table of recordings.

    Attributes:
        number: its number, from 1, the line after the names of the columns.
        file: the recording, as the table names it.
        path: where it lies.
        id: of the sample; with a group `group$_$id`.
        labels: `{column: number, class or None}`.
        transcript: what is said; "" where that is not known, or `times` says it.
        times: path of a file of words and their times; "" for none.
        split: train, valid or test, by any of their names.
        start: seconds.
        end: likewise; infinite for the end of the file.
    """

    number: int
    file: str
    path: str
    id: str
    labels: Mapping[str, Any]
    transcript: str = ""
    times: str = ""
    split: str = "train"
    start: float = 0.0
    end: float = math.inf

    def task(self) -> dict[str, Any]:
        """Returns what decides its features, as `row.measure` takes it."""
        names = ("path", "start", "end", "transcript", "times")
        return {name: getattr(self, name) for name in names}


# --- the table ---


def read_rows(table: Any, columns: Mapping[str, str] | None = None) -> list[Row]:
    """Reads the table of recordings.

    Args:
        table: path of a CSV; or a data frame, a dict of columns, or a list of dicts. `file` and
            `id` are needed, `label` or several `label_…`, `transcript` (or the path of a file of
            times), `group`, `split`, `start` and `end` in seconds are read where they are. Paths
            are relative to the CSV's folder, or the working directory.
        columns: `{one of these names: what the table calls it}`.

    Raises:
        UserError: for a table that is not of this form, naming row and column.
    """
    folder, where = ".", "The table"
    if isinstance(table, str | os.PathLike):
        where, folder = os.fspath(table), os.path.dirname(os.fspath(table)) or "."
        names, cells = _read_csv(where)
    else:
        names, cells = _read_table(table)
    called = dict(columns or {})
    for known, name in called.items():
        if known not in COLUMNS and not known.startswith("label_"):
            raise UserError(f"--columns: there is no column {known!r}.{nearest(known, COLUMNS)}")
        if name not in names:
            raise UserError(
                f"{where} has no column {name!r}, which --columns names; it has {', '.join(names)}."
            )
    taken = set(called.values())
    called |= {
        name: name
        for name in names
        if (name in COLUMNS or name.startswith("label_")) and name not in called
        if name not in taken
    }
    for needed in ("file", "id"):
        if needed not in called:
            raise UserError(
                f"{where} has no column {needed!r}; it has {', '.join(names) or 'none'}. Another "
                f"name is given by --columns={needed}=NAME."
            )
    labels = _read_labels(where, cells, [known for known in called if known[:5] == "label"], called)
    rows = []
    for number, cell in enumerate(cells, 1):
        found = {
            known: "" if is_missing(value := cell[name]) else str(value).strip()
            for known, name in called.items()
        }
        at = f"{where}: row {number}"
        for needed in ("file", "id", *({"group", "split"} & found.keys())):
            if not found[needed]:
                raise UserError(f"{at} has no {called[needed]}.")
        start, end = (
            _seconds(found.get(name, ""), other, f"{at}: {called.get(name)}")
            for name, other in (("start", 0.0), ("end", math.inf))
        )
        if not start < end:
            raise UserError(f"{at}: start {start:g} must be before end {end:g}.")
        text = found.get("transcript", "")
        is_times = os.path.splitext(text)[1].lower() in READERS and len(text.split()) == 1
        group = found.get("group")
        rows.append(
            Row(
                number=number,
                file=found["file"],
                path=os.path.abspath(os.path.join(folder, os.path.expanduser(found["file"]))),
                id=f"{group}$_${found['id']}" if group else found["id"],
                labels=labels[number - 1],
                transcript="" if is_times else text,
                times=os.path.abspath(os.path.join(folder, text)) if is_times else "",
                split=found.get("split", "train"),
                start=start,
                end=end,
            )
        )
    twice = [id_ for id_, count in collections.Counter(row.id for row in rows).items() if count > 1]
    if twice:
        raise UserError(f"{where}: the id {printable(twice[0])!r} is there twice.")
    if not rows:
        raise UserError(f"{where} has no row.")
    return rows


def _read_csv(path: str) -> tuple[list[str], list[dict[str, str]]]:
    csv.field_size_limit(_LONGEST)
    try:
        with reading(path), open(path, encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            names = [name.strip() for name in next(lines, [])]
            cells = []
            for line in lines:
                if line and len(line) != len(names):
                    raise UserError(
                        f"{path}: line {lines.line_num} has {len(line)} cells, but there are "
                        f"{len(names)} columns."
                    )
                if line:
                    cells.append(dict(zip(names, line, strict=True)))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no CSV in UTF-8: {error}.") from error
    if len(set(names)) < len(names):
        raise UserError(f"{path} has two columns of the same name.")
    return names, cells


def _read_table(table: Any) -> tuple[list[str], list[dict[str, Any]]]:
    if isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table):
        names = list(dict.fromkeys(name for row in table for name in row))
        return names, [{name: row.get(name) for name in names} for row in table]
    names = list(table) if isinstance(table, Mapping) else list(getattr(table, "columns", ()))
    columns = [as_list(table[name], f"Column {name!r} of the table") for name in names]
    if not names or len({len(column) for column in columns}) > 1:
        raise UserError(
            "The table must be the path of a CSV, a data frame, a dict of columns of equal length, "
            "or a list of dicts."
        )
    return names, [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _read_labels(
    where: str, cells: Sequence[Mapping[str, Any]], known: list[str], called: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Reads the labels of each row; text is made numbers where all of a column is."""
    labels: list[dict[str, Any]] = [{} for _ in cells]
    for name in known:
        values = [cell[called[name]] for cell in cells]
        values = [None if is_missing(v) or v == "" else v for v in values]
        if all(v is None for v in values):
            continue
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                values = [kind(v) if isinstance(v, str) else v for v in values]
                break
        for row, value in zip(labels, values, strict=True):
            row[called[name]] = value
    return labels


def _seconds(text: str, other: float, where: str) -> float:
    if not text:
        return other
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise UserError(f"{where} is {printable(text)!r}: must be seconds, 0 or more.")
    return seconds


# --- the processes ---


class _Worker:
    """Runs a process that measures one row after the other, and a new one when it has died."""

    def __init__(self, settings: Settings, errors: str) -> None:
        self._settings, self._errors, self._is_closed = settings, errors, False
        self._process: subprocess.Popen | None = None

    def measure(self, task: Mapping[str, Any]) -> None:
        """Has a row measured; if the process dies of it, once more without its file.

        Raises:
            RuntimeError: if that does not help, a bug.
        """
        refused = self._try(task)
        if refused and (again := self._try({**task, "refused": refused})):
            raise RuntimeError(f"{task['path']} cannot be measured: {again[1]}")

    def close(self) -> None:
        """Ends the process, and lets no other one begin."""
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        if (process := self._process) is not None:
            process.kill()
            process.wait()

    def _try(self, task: Mapping[str, Any]) -> tuple[str, str] | None:
        """Returns None if the row was measured, else a reason and a sentence."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        process, heard, wait, is_late = self._process, b"", 60.0, False
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(task).encode() + b"\n")
        while True:
            is_late = not select.select([process.stdout], [], [], _WALL * wait)[0]
            if is_late or not (part := os.read(process.stdout.fileno(), 1 << 16)):
                break
            *lines, heard = (heard + part).split(b"\n")
            for message in map(json.loads, lines):
                if "done" in message:
                    return None
                wait = message["wait"]
        self._end()
        if self._is_closed:
            raise Stopped
        with open(self._errors, encoding="utf-8", errors="replace") as file:
            said = file.read().strip().splitlines() or [f"exit code {process.returncode}"]
        if is_late or process.returncode == -signal.SIGXCPU:
            return "timeout", "It took too long."
        if "MemoryError" in said[-1] or process.returncode == -signal.SIGKILL:
            return "too_large", "It takes more memory than it may have."
        return "undecodable", f"The process that decoded it died: {printable(said[-1])}."

    def _start(self) -> None:
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | one | {"PYTHONPATH": os.pathsep.join(paths)}
        with open(self._errors, "w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "msajax.recordings.row"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,  # Ctrl-C is for whoever asked
                bufsize=0,
            )
        with contextlib.suppress(OSError):
            settings = json.dumps(dataclasses.asdict(self._settings))
            self._process.stdin.write(settings.encode() + b"\n")


def measure_rows(
    rows: Sequence[Row],
    settings: Settings,
    folder: str,
    jobs: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> list["Measured"]:
    """Measures rows, but for those that `folder` holds already; each is written whole or not.

    Args:
        rows: at least one.
        settings: what is made of them.
        folder: where the results of each row go, in a folder of its own.
        jobs: processes; 0 for one a core.
        should_stop: asked several times a second.

    Raises:
        Stopped: if it should; what is measured stays.
    """
    with writing(folder):
        os.makedirs(folder, exist_ok=True)
    for left in glob.glob(os.path.join(glob.escape(folder), ".msajax-*")):
        shutil.rmtree(left, ignore_errors=True)  # of a process that was killed
    recipe = json.dumps(settings.recipe(), sort_keys=True)
    places = [os.path.join(folder, _key(row, recipe)) for row in rows]
    todo: dict[str, Row] = {
        place: row for place, row in zip(places, rows, strict=True) if not os.path.isdir(place)
    }
    if done := len(set(places)) - len(todo):
        logger.info("%d of %d rows are measured already.", done, len(set(places)))
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    ready: queue.SimpleQueue = queue.SimpleQueue()
    for item in todo.items():
        waiting.put(item)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jobs = min(jobs or cores or 1, len(todo))
    with scratch_folder(folder) as scratch, _progress(len(todo)) as tell:
        workers = [_Worker(settings, os.path.join(scratch, f"{n}.err")) for n in range(jobs)]

        def work(worker: _Worker, number: int) -> None:
            try:
                while True:
                    place, row = waiting.get_nowait()
                    made = os.path.join(scratch, str(number))
                    os.mkdir(made)
                    worker.measure({**row.task(), "folder": made})
                    put_in_place(made, place)
                    ready.put(None)
            except queue.Empty:
                pass
            except BaseException as error:
                ready.put(error)

        threads = [
            threading.Thread(target=work, args=pair, daemon=True)
            for pair in zip(workers, range(jobs), strict=True)
        ]
        try:
            for thread in threads:
                thread.start()
            left = len(todo)
            while left:
                if should_stop():
                    raise Stopped(f"{len(rows) - left} of {len(rows)} rows are measured")
                with contextlib.suppress(queue.Empty):
                    if (error := ready.get(timeout=_POLL)) is not None:
                        raise error
                    left -= 1
                    tell()
        finally:
            for worker in workers:
                worker.close()
    return [Measured.of(row, place, settings) for row, place in zip(rows, places, strict=True)]


def _key(row: Row, recipe: str) -> str:
    """Names what is measured of a row: what decides it, and the state of its file."""
    states = []
    for path in (row.path, row.times):
        with contextlib.suppress(OSError):
            state = os.stat(path)
            states.append([state.st_size, state.st_mtime_ns])
    text = json.dumps([recipe, row.task(), states], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """Shows how many rows are measured and the time left: a bar on a terminal, lines in a log."""
    announce.now()
    if not sys.stderr.isatty():
        done, began, told = 0, time.monotonic(), time.monotonic()

        def say() -> None:
            nonlocal done, told
            done += 1
            if (now := time.monotonic()) - told > _LOG_SECONDS:
                told = now
                left = (now - began) / done * (total - done) / 60
                logger.info("%d of %d rows, %.0f minutes left", done, total, left)

        yield say
        return
    columns = (TextColumn("rows"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("rows", total=total)
        yield lambda: bar.advance(task)


# --- the corpus ---


@dataclasses.dataclass(frozen=True)
class Measured:
    """Holds what was measured of a row.

    Attributes:
        row: the row.
        folder: holds its arrays.
        facts: what `row.measure` returned.
        status: ok, partial, if a modality is absent, or failed, if all are.
    """

    row: Row
    folder: str
    facts: Mapping[str, Any]
    status: str

    @classmethod
    def of(cls, row: Row, folder: str, settings: Settings) -> "Measured":
        """Reads it from its folder."""
        with open(os.path.join(folder, FACTS), encoding="utf-8") as file:
            facts = json.load(file)
        wanted = ["text", *["audio"] * (settings.audio != "none")]
        there = [facts[m] == "present" for m in wanted]
        status = "ok" if all(there) else "partial" if any(there) else "failed"
        return cls(row, folder, facts, status)

    def array(self, name: str) -> np.ndarray | None:
        """Returns one of its arrays; None if it has none."""
        path = os.path.join(self.folder, f"{name}.npy")
        if not os.path.exists(path):
            return None
        return np.load(path, mmap_mode="r" if os.path.getsize(path) > _MAPPED else None)

    def line(self) -> list[Any]:
        """Returns its line of the report, as `REPORT_COLUMNS` has it."""
        facts, row = self.facts, self.row
        seconds = (facts.get(name) for name in ("seconds_audio", "offset_audio"))
        origins = collections.Counter(facts["word_origin"])
        return [
            *(row.number, row.file, row.id, self.status, facts["reason"]),
            *(facts["audio"], facts["text"]),
            *("" if value is None else f"{value:.3f}" for value in seconds),
            *(len(facts["words"]), origins[GUESSED], facts["words_flagged"]),
            f"{facts['took_seconds']:.2f}",
        ]


def write_report(path: str, measured: Iterable[Measured]) -> None:
    """Writes the report, a line for each row of the table, as CSV."""
    with replacing(path) as file:
        writer = csv.writer(file)
        writer.writerow(REPORT_COLUMNS)
        writer.writerows(one.line() for one in measured)


def make_corpus(
    measured: Sequence[Measured], settings: Settings, path: str, report: str
) -> tuple[Corpus, SavedCorpus]:
    """Makes a corpus of the rows of which something was measured.

    Args:
        measured: of all rows.
        settings: what was made.
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
        settings: what is made of them.
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
    """Says in sentences what is absent in how many rows, and what is doubtful."""
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
