"""Writes a corpus of what a program has in memory: a table, and lists of sequences."""

import dataclasses
import difflib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

import numpy as np

from msajax.config import ModelConfig
from msajax.corpus import columns
from msajax.corpus.corpus import SPLITS, Corpus, Source, Split, modality_order, pad_words
from msajax.corpus.formats import native, save
from msajax.corpus.in_memory import corpus_of
from msajax.corpus.labels import label_kind, require_names
from msajax.corpus.modalities import Modality, read_modalities
from msajax.corpus.sequences import is_list
from msajax.errors import UserError, printable

logger = logging.getLogger(__name__)


class Options(TypedDict, total=False):
    """Holds the further arguments of `save_corpus`, which explains them."""

    id: str
    group: str | None
    seed: int
    aligned: Sequence[str] | bool | None
    overwrite: bool


@dataclasses.dataclass(frozen=True, repr=False)
class SavedCorpus:
    """Says what `save_corpus` wrote; printed, it is the sentences.

    Attributes:
        path: the file, or the folder.
        sizes: `{split: samples}`.
        modalities: `{modality: facts}`: its `width`, 0 for token ids and words; its `shortest`,
            `median` and `longest` sequence in steps, of the samples that have it; and how many
            samples it is `absent` in.
        sentences: all of that, labels, alignment and how samples came into splits, in words.
    """

    path: str
    sizes: Mapping[str, int]
    modalities: Mapping[str, Mapping[str, float]]
    sentences: Sequence[str]

    def __repr__(self) -> str:
        return "\n".join(self.sentences)


def save_corpus(
    path: str | os.PathLike,
    table: Any,
    sequences: Mapping[str, Any],
    *,
    label: str | Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    split: str | Sequence[float] = "split",
    **options: Unpack[Options],
) -> SavedCorpus:
    """Writes a corpus of a table and lists of sequences: padded, with masks, checked.

    Args:
        path: a native archive to write, if it ends in .npz; else a folder of arrays, which is read
            as it is used.
        table: a data frame of pandas or polars, or a dict of columns; a row for each of N samples.
        sequences: `{modality: N arrays [T, d]}` of any lengths T, in the order of the table's
            rows; all their steps are real, also steps of zeros, and None or an array without a
            step is an absent modality. A modality may also be lists of N vectors `[d]`, a single
            step each, or of N lists of token ids; or one array `[N, T, d]` that is padded with
            zeros already. N strings as `text` (or `raw_text`) are transcripts, N lists of strings
            as `text` (or `words`) are words step by step.
        label: the column of labels, or several. Real numbers are scores; text, and whole numbers
            from 0 in a single column, are classes. `{column: names}` gives the classes of text an
            order, which else is that of ordered categories, or of the alphabet. None writes no
            labels; a split in which all labels are missing has none.
        split: the column that says train, valid (or dev, val, validation) or test; or the shares of
            train, valid and test that are drawn, as (0.7, 0.1, 0.2): whole groups, none of which
            is in two splits. A share of 0 leaves that split out.
        **options:
            id (str): the column of ids, "id" by default; each sample has its own.
            group (str): the column of videos or speakers by which shares are drawn; by default by
                the video that ids name, as in `video[3]`. Beside a column of splits it is checked
                that no group is in two of them.
            seed (int): of the draw; 0 by default.
            aligned (names | bool): the modalities whose step i is of the same moment; True for
                all, False for none. By default those that are equally long in every sample.
            overwrite (bool): whether a native archive at `path` is replaced; False by default.

    Returns:
        What was written, in numbers and sentences.

    Raises:
        UserError: for whatever does not fit together, naming the argument and the sample; nothing
            is written then.
    """
    known = ["label", "split", *Options.__annotations__]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0) or known[:1]
            raise UserError(f"save_corpus has no argument {name!r}: did you mean {near[0]!r}?")
    path = _require_free(path, options.get("overwrite", False))
    rows = columns.Table(table)
    id_column, group = options.get("id", "id"), options.get("group")
    ids = columns.read_ids(rows.column(id_column, "id"), id_column)
    labels = columns.read_labels(rows, label, ids)
    splits, how = _splits(rows, split, group, ids, options.get("seed", 0))
    modalities, raw_text = read_modalities(sequences, ids)
    rows.require_same_rows(sequences)
    aligned, why = _find_aligned(modalities, options.get("aligned"), ids)
    shared = {"words" if m == "text" and m not in modalities else m for m in aligned}
    shared |= {"words"} if "text" in aligned and "words" in modalities else set()
    steps = max((modalities[m].steps for m in shared), default=1)
    modalities |= {m: dataclasses.replace(modalities[m], least=steps) for m in shared}
    corpus = _corpus(path, np.array(ids), splits, (labels, modalities, raw_text), aligned)
    if corpus.modalities == () and not any(h.has_raw_text for h in corpus.headers.values()):
        raise UserError("No sample has a step of any modality: there is nothing to write.")
    apart = _words_apart(modalities, ids) if options.get("aligned") is None else []
    saved = _describe(corpus, modalities, raw_text, [why, how, _unused(rows)], apart)
    save(corpus, path)
    return saved


def _require_free(path: Any, overwrite: bool) -> str:
    """Returns where to write; raises `UserError` for what is there and must not be replaced."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise UserError(f"path={path!r}: expected the name of a file, as 'corpus.npz'.")
    path = os.path.expanduser(os.fspath(path)).rstrip(os.sep)
    ending = os.path.splitext(path)[1]
    if ending not in ("", ".npz"):
        raise UserError(
            f"{path}: a corpus is written as an archive, whose name ends in .npz, or as a folder, "
            f"whose name has no ending; not as {ending}."
        )
    if os.path.lexists(path):
        if not overwrite:
            raise UserError(
                f"{path} is there already: choose another name, or replace an archive with "
                "overwrite=True."
            )
        if not native.matches(path):
            raise UserError(f"{path} is there and no .npz archive: choose another name.")
    return path


def _splits(
    table: columns.Table, split: Any, group: str | None, ids: Sequence[str], seed: int
) -> tuple[np.ndarray, str]:
    """Returns the split `[N]` of each sample, and a sentence on how it came there."""
    if isinstance(split, str):
        if split not in table.columns:
            there = ", ".join(map(repr, table.columns))
            raise UserError(
                f"split={split!r}: the table has no such column; it has {there}. To draw splits "
                "give shares of train, valid and test, as split=(0.7, 0.1, 0.2)."
            )
        splits = columns.read_splits(table.column(split, "split"), split)
        if group is None:
            return splits, f"splits: those of the column {split!r}"
        groups, _ = columns.read_groups(table, group, ids)
        columns.require_apart(groups, splits, group)
        return splits, f"splits: those of the column {split!r}; no {group} is in two of them"
    groups, by = columns.read_groups(table, group, ids)
    splits = columns.draw_splits(groups, split, seed, by)
    of_split = {name: set(np.array(groups)[splits == name].tolist()) for name in SPLITS}
    counts = ", ".join(f"{len(found)} {name}" for name, found in of_split.items() if found)
    return splits, f"splits: drawn by {by} with seed {seed}, none of which is in two: {counts}"


def _find_aligned(
    modalities: Mapping[str, Modality], given: Any, ids: Sequence[str]
) -> tuple[tuple[str, ...], str]:
    """Finds the modalities that share their steps, and says why.

    Words are those of `text`, and share its steps where both are there.

    Args:
        modalities: by name.
        given: their names; True for all, False for none, None for those that are equally long in
            every sample that has them.
        ids: of the samples.

    Raises:
        UserError: for a name that is none, and for a sample in which their lengths differ.
    """
    lengths = {("text" if m == "words" else m, m): x.lengths for m, x in modalities.items()}
    names = modality_order({name for name, _ in lengths})
    if given is None:
        return _equally_long(lengths, names)
    if not isinstance(given, bool | str) and not is_list(given):
        raise UserError(f"aligned={given!r}: expected names of modalities, True, False or None.")
    if isinstance(given, bool):
        given = names if given and len(names) > 1 else ()
    given = [given] if isinstance(given, str) else list(given)
    if len(given) == 1 or any(m not in names or given.count(m) > 1 for m in given):
        raise UserError(
            f"aligned={given!r}: expected two or more of {', '.join(names)}, each once."
        )
    chosen = {key: x for key, x in lengths.items() if key[0] in given}
    for key, x in list(chosen.items())[1:]:
        first, other = next(iter(chosen.items()))
        apart = (x != other) & (x > 0) & (other > 0)
        if apart.any():
            i = int(apart.argmax())
            raise UserError(
                f"aligned={tuple(given)!r}: {printable(ids[i])!r} (sample {i}) has {other[i]} "
                f"step(s) of {first[1]}, but {x[i]} of {key[1]}; aligned sequences are equally "
                "long."
            )
    said = f"aligned: {', '.join(given)}, as asked for" if given else "aligned: none, as asked for"
    return tuple(given), said


def _equally_long(
    lengths: Mapping[tuple[str, str], np.ndarray], names: Sequence[str]
) -> tuple[tuple[str, ...], str]:
    """Finds the first modalities that are equally long in every sample, and longer than a step."""

    def same(*pair: str) -> bool:
        both = [x for (name, _), x in lengths.items() if name in pair]
        return all(
            ((x == y) | (x == 0) | (y == 0)).all() and x.max() > 1 for x in both for y in both
        )

    for m in names:
        group = tuple(other for other in names if same(m, other))
        if len(group) > 1:
            return group, (
                f"aligned: {', '.join(group)}, which are equally long in every sample; "
                "aligned=False says that they are not"
            )
    return (), "aligned: none"


def _words_apart(modalities: Mapping[str, Modality], ids: Sequence[str]) -> list[str]:
    """Says in a sentence if words are not as long as the features of text beside them."""
    if not {"words", "text"} <= modalities.keys():
        return []
    words, text = modalities["words"], modalities["text"]
    apart = (words.lengths != text.lengths) & (words.lengths > 0) & (text.lengths > 0)
    i = int(apart.argmax())
    return [
        f"{words.where} has {words.lengths[i]} step(s) in {printable(ids[i])!r}, the first of "
        f"{apart.sum()} such sample(s), but {text.where} has {text.lengths[i]}: so words share "
        "their steps with nothing; if that is meant, aligned=False says it."
    ] * bool(apart.any())


def _corpus(
    path: str,
    ids: np.ndarray,
    splits: np.ndarray,
    content: tuple[columns.Labels | None, Mapping[str, Modality], Sequence[str] | None],
    aligned: Sequence[str],
) -> Corpus:
    """Makes the corpus of labels, modalities and transcripts that are cut into splits."""
    labels, modalities, raw_text = content
    made = {}
    for name in SPLITS:
        rows = np.flatnonzero(splits == name)
        if not rows.size:
            continue
        features = {m: x.array(rows) for m, x in modalities.items() if not x.are_words}
        words = modalities.get("words")
        made[name] = Split(
            ids=ids[rows],
            features=features,
            masks={m: modalities[m].mask(rows) for m in features if modalities[m].has_mask},
            labels=columns.labels_of(labels, rows, name),
            raw_text=None if raw_text is None else np.array([raw_text[i] for i in rows], np.str_),
            words=None if words is None else pad_words([words.rows[i] for i in rows], words.steps),
        )
    names = () if labels is None else require_names(labels.names, "label")
    try:
        return corpus_of(
            made,
            source=Source(path, "native npz"),
            label_names=names,
            integers=labels is not None and labels.are_classes,
            aligned=aligned,
        )
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"The columns of labels have {error}.") from error


def _unused(table: columns.Table) -> str:
    left = [repr(name) for name in table.columns if name not in table.used]
    return f"not read of the table: {', '.join(left)}" if left else ""


def _describe(
    corpus: Corpus,
    modalities: Mapping[str, Modality],
    raw_text: Sequence[str] | None,
    others: Sequence[str],
    warnings: Sequence[str],
) -> SavedCorpus:
    """Says what a corpus holds; warns of what is probably a mistake."""
    sizes = {name: header.size for name, header in corpus.headers.items()}
    found = ", ".join(f"{size} {name}" for name, size in sizes.items())
    sentences, facts, warnings = [f"{corpus.path}: {found}"], {}, list(warnings)
    for m, x in modalities.items():
        facts[m] = x.facts()
        sentences.append(f"{m} {x.describe(facts[m])}")
        warnings += x.warnings()
    for warning in warnings:
        logger.warning("%s: %s", corpus.path, warning)
        sentences.append(f"warning: {warning}")
    if raw_text is not None:
        sentences.append(f"raw_text: transcripts of {sum(map(bool, raw_text))} samples")
    return SavedCorpus(
        corpus.path, sizes, facts, [*sentences, _describe_labels(corpus), *filter(None, others)]
    )


def _describe_labels(corpus: Corpus) -> str:
    labelled = [name for name, header in corpus.headers.items() if header.label_names]
    if not labelled:
        return "labels: none; such a corpus can be predicted, but not trained on"
    try:
        task = label_kind(corpus, ModelConfig())
    except UserError as error:  # one class alone
        return f"labels: {error}"
    where = "" if len(labelled) == len(corpus.headers) else f", in {' and '.join(labelled)} alone"
    whole = "; whole numbers are classes, .astype(float) makes them scores" * bool(
        task.kind == "classification" and task.names == tuple(map(str, task.classes))
    )
    return f"labels: {task.kind} of {printable(', '.join(task.names))}{where}{whole}"
