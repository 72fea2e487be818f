"""Defines what a metric is: sums over samples, and what becomes of them.

Every metric is a function of sums over samples, so that one definition serves a split, and any
number of resamples of it, in which each sample counts some number of times. All is numpy in
float64 over a whole split at once: a correlation or a weighted F1 averaged over batches is another
number.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_OVERFLOW = "the scores overflow"
_SMALL = 2**14  # numbers of an array whose memory is at hand, without asking the system for more
_ONE_THREAD = 2**18  # multiplications
_FEW = 128  # groups, whose matrix product is faster than ranking anew


class Rule(NamedTuple):
    """Says how a score becomes a class, and whether samples labelled exactly 0 take part."""

    classes: Callable[[NDArray], NDArray]
    with_zero: bool = True

    def kept(self, y: NDArray) -> NDArray:
        """Tells which samples take part."""
        return np.ones(y.shape, bool) if self.with_zero else y != 0


class Metric(NamedTuple):
    """Computes a metric of p (..., N) and y (..., N), and holds what is known of its values.

    Attributes:
      terms: What is summed over samples: p and y to arrays (..., N).
      of_sums: The value, NaN where it is undefined: from the number of samples, (D,) or a scalar,
        and the sums (..., D), to (..., D).
      undefined_when: Why a value is undefined.
      larger_is_better: Whether values rise as scores improve; a loss falls.
      ranked: Whether the terms are those of ranks.
      part: What of p and of y is read: their rows of some outputs.
      rule: The classes of an accuracy, of which the largest one's share is a floor.
    """

    terms: Callable[[NDArray, NDArray], Sequence[NDArray]]
    of_sums: Callable[..., NDArray]
    undefined_when: str = _OVERFLOW
    larger_is_better: bool = False
    ranked: bool = False
    part: Callable[[NDArray], NDArray] = np.asarray
    rule: Rule | None = None

    def value(self, p: NDArray, y: NDArray) -> NDArray:
        """Computes the metric along the last axis: (...)."""
        p, y = self.part(p), self.part(y)
        if self.ranked:
            p, y = average_ranks(p), average_ranks(y)
        sums = [term.sum(axis=-1)[..., None] for term in self.terms(p, y)]
        return self._of(p.shape[-1], sums)[..., 0]

    def weighted(
        self, p: NDArray, y: NDArray, weights: NDArray, group_of: NDArray | None = None
    ) -> NDArray:
        """Computes the metric of samples that count several times, or not at all.

        Args:
          p: (..., N).
          y: (..., N).
          weights: (D, G), how often each group of samples counts in each of D cases.
          group_of: (N,), the number of each sample's group; each is one of its own if not given.

        Returns:
          (..., D): what `value` gives for samples that are repeated so often.
        """
        p, y = self.part(p), self.part(y)
        group_of = np.arange(p.shape[-1]) if group_of is None else group_of
        sizes = np.bincount(group_of, minlength=weights.shape[1]).astype(np.float64)
        n = _product(sizes, weights.T)
        if self.ranked:
            return self._of(n, self._ranked_sums(p, y, weights, group_of))
        sums = [_product(summed(term, group_of), weights.T) for term in self.terms(p, y)]
        return self._of(n, sums)

    def _ranked_sums(
        self, p: NDArray, y: NDArray, weights: NDArray, group_of: NDArray
    ) -> list[NDArray]:
        """Sums terms of ranks of p (..., N) and y (..., N), as `weighted` does: each (..., D)."""
        rank_p, rank_y = _rankers(p, group_of), _rankers(y, group_of)
        rows = [np.empty((len(rank_p), len(weights))) for _ in self.terms(p[..., :1], y[..., :1])]
        columns = max(1, _SMALL // len(group_of))
        for start in range(0, len(weights), columns):
            block = np.ascontiguousarray(weights[start : start + columns].T)  # [G, d]
            counts, of_y = block[group_of], [rank(block) for rank in rank_y]
            for i, rank in enumerate(rank_p):
                terms = self.terms(rank(block), of_y[i % len(of_y)])
                for row, term in zip(rows, terms, strict=True):
                    row[i, start : start + columns] = np.einsum("nd,nd->d", term, counts)
        return [row.reshape(*p.shape[:-1], -1) for row in rows]

    @np.errstate(divide="ignore", invalid="ignore")  # where nothing is left to average
    def _of(self, n: NDArray | int, sums: Sequence[NDArray]) -> NDArray:
        return self.of_sums(n, *sums)


def ratio(numerator: NDArray, denominator: NDArray) -> NDArray:
    """Divides; NaN where the denominator is 0."""
    zero = denominator == 0
    return np.where(zero, np.nan, numerator / np.where(zero, 1, denominator))


def summed(term: NDArray, group_of: NDArray) -> NDArray:
    """Sums a term (..., N) over each group of samples: (..., G)."""
    term = np.asarray(term, np.float64)
    if (group_of == np.arange(len(group_of))).all():
        return term
    sums = np.zeros((*term.shape[:-1], int(group_of.max()) + 1))
    np.add.at(sums, (..., group_of), term)
    return sums


def average_ranks(x: NDArray, weights: NDArray | None = None) -> NDArray:
    """Ranks values; equal ones share the mean of the ranks they span.

    Args:
      x: (..., N).
      weights: (N, D), how often each value is there in each of D cases; once if not given.

    Returns:
      (..., N), or (..., N, D): ranks about a mean of 0.
    """
    given = np.ones((x.shape[-1], 1)) if weights is None else weights
    ranks = np.empty((*x.shape[:-1], *given.shape))
    for index in np.ndindex(x.shape[:-1]):
        ranks[index] = _ranker(x[index])(given)
    return ranks[..., 0] if weights is None else ranks


def _ranker(x: NDArray) -> Callable[[NDArray], NDArray]:
    """Makes the function from weights (N, D) to `average_ranks` of x (N,), which it sorts once."""
    order, position = np.argsort(x), np.arange(len(x))
    new = x[order][1:] != x[order][:-1]
    first = np.maximum.accumulate(np.where(np.r_[True, new], position, 0))
    last = np.minimum.accumulate(np.where(np.r_[new, True], position, len(x))[::-1])[::-1]

    def rank(weights: NDArray) -> NDArray:
        counts = weights[order]
        middle = np.cumsum(counts, axis=0)
        half = middle[-1] / 2
        if new.all():
            middle -= counts / 2
        else:
            middle = (middle[last] + middle[first] - counts[first]) / 2
        ranks = np.empty_like(middle)
        ranks[order] = middle - half
        return ranks

    return rank


def _rankers(x: NDArray, group_of: NDArray) -> list[Callable[[NDArray], NDArray]]:
    """Makes a function for each row of x (..., N): weights of groups (G, D) to ranks (N, D)."""
    rows = x.reshape(-1, x.shape[-1])
    groups = int(group_of.max()) + 1
    if groups > _FEW:
        rankers = map(_ranker, rows)
        return [lambda block, rank=rank: rank(block[group_of]) for rank in rankers]
    # A rank is a sum of what each sample below adds to it: of few groups, each is ranked once.
    members = np.equal.outer(group_of, np.arange(groups)).astype(np.float64)
    return [partial(_product, average_ranks(row, members)) for row in rows]


def _product(a: NDArray, b: NDArray) -> NDArray:
    """Multiplies (..., G) and (G, D) in parts, each so small that BLAS leaves it to one thread.

    Several threads wait for each other at every product, for long where other programs run.
    """
    flat = a.reshape(-1, a.shape[-1])
    size = _ONE_THREAD if len(flat) > 1 else _ONE_THREAD // 32  # of a vector it begins earlier
    if len(flat) > b.shape[1]:
        step = max(2, size // b.size)
        parts = [flat[i : i + step] @ b for i in range(0, len(flat), step)]
        return np.concatenate(parts).reshape(*a.shape[:-1], -1)
    step = max(1, size // flat.size)
    parts = [flat @ b[:, i : i + step] for i in range(0, b.shape[1], step)]
    return np.concatenate(parts, axis=1).reshape(*a.shape[:-1], -1)


def averaged(term: Callable[[NDArray, NDArray], NDArray], **known: object) -> Metric:
    """Makes the metric that is the mean of a term over samples."""
    return Metric(lambda p, y: (term(p, y),), lambda n, total: total / n, **known)


def clipped(metric: Metric) -> Metric:
    """Makes a metric of scores and labels that are clipped to ±1."""
    terms = metric.terms
    return metric._replace(terms=lambda p, y: terms(np.clip(p, -1, 1), np.clip(y, -1, 1)))


def without_zero(metric: Metric) -> Metric:
    """Makes a metric of the samples whose label is not 0."""

    def terms(p: NDArray, y: NDArray) -> list[NDArray]:
        kept = y != 0
        return [kept, *(np.where(kept, term, 0) for term in metric.terms(p, y))]

    def of_sums(n: NDArray, kept: NDArray, *sums: NDArray) -> NDArray:
        return np.where(kept == 0, np.nan, metric.of_sums(kept, *sums))

    why = NO_SAMPLES
    if metric.undefined_when == CONSTANT:
        why = f"of the labels that are not 0, {CONSTANT}, or there is none"
    return metric._replace(terms=terms, of_sums=of_sums, undefined_when=why)


def _centred(x: NDArray) -> NDArray:
    # The first value goes before the mean: the mean of n times 0.1 need not be 0.1, but a constant
    # must come out as exact zeros, or its correlation is rounding noise instead of NaN.
    x = x - x[..., :1]
    return x - x.mean(axis=-1, keepdims=True)


def _scaled(x: NDArray) -> NDArray:
    # A largest size of 1 keeps squares from vanishing or overflowing.
    x = _centred(x)
    largest = np.abs(x).max(axis=-1, keepdims=True)
    return x / np.where(largest == 0, 1, largest)


def _moments(p: NDArray, y: NDArray) -> tuple[NDArray, ...]:
    return p, p * p, y, y * y, p * y


def _squares_about_mean(n: NDArray, total: NDArray, squares: NDArray) -> NDArray:
    spread = squares - np.square(total) / n
    # What is left of a resample that draws one value alone is rounding.
    return np.where(spread <= 1e-13 * squares, 0, spread)


def _of_corr(n: NDArray, p: NDArray, pp: NDArray, y: NDArray, yy: NDArray, py: NDArray) -> NDArray:
    spread = np.sqrt(_squares_about_mean(n, p, pp) * _squares_about_mean(n, y, yy))
    return np.clip(ratio(py - p * y / n, spread), -1, 1)


def _of_ccc(n: NDArray, difference: NDArray, *moments: NDArray) -> NDArray:
    """Computes the concordance correlation (Lin, 1989), moments with ddof 0."""
    p, pp, y, yy, py = moments
    of_p, of_y = _squares_about_mean(n, p, pp), _squares_about_mean(n, y, yy)
    together = np.where(of_p * of_y == 0, 0, py - p * y / n)  # without a spread, only rounding
    return ratio(2 * together / n, (of_p + of_y) / n + np.square(difference / n))


def _of_r2(n: NDArray, errors: NDArray, y: NDArray, yy: NDArray) -> NDArray:
    return 1 - ratio(errors / n, _squares_about_mean(n, y, yy) / n)


CONSTANT = "the prediction or the label is constant"
NO_SAMPLES = "no sample is left: every label is 0"
mae = averaged(lambda p, y: np.abs(p - y))
mse = averaged(lambda p, y: np.square(p - y))
rmse = mse._replace(of_sums=lambda n, total: np.sqrt(total / n))
corr = Metric(lambda p, y: _moments(_scaled(p), _scaled(y)), _of_corr, CONSTANT, True)
spearman = corr._replace(terms=_moments, ranked=True)
ccc = Metric(
    lambda p, y: (p - y, *_moments(_centred(p), _centred(y))),
    _of_ccc,
    "prediction and label are the same constant",
    True,
)
r2 = Metric(
    lambda p, y: (np.square(p - y), centred := _centred(y), centred * centred),
    _of_r2,
    "the label is constant",
    True,
)


def _label_terms(p: NDArray, y: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    has, true = p > 0.5, y > 0.5
    return has & true, true, has


def _balanced(n: NDArray, hits: NDArray, true: NDArray, predicted: NDArray) -> NDArray:
    """Averages the shares of those with a label, and of those without, that are right."""
    without, rejected = n - true, n - true - predicted + hits
    return (ratio(hits, true) + ratio(rejected, without)) / 2


def _of_auc(n: NDArray, ranks: NDArray, true: NDArray) -> NDArray:
    """Computes how often one with the label ranks above one without; ranks are about 0."""
    above = ranks + true * (n - true) / 2
    return ratio(above, true * (n - true))


# Of a probability p (..., N) and a label y (..., N), 0 or 1.
ONE_KIND = "every sample has the label, or none"
label_accuracy = averaged(lambda p, y: (p > 0.5) == (y > 0.5), larger_is_better=True)
label_f1 = Metric(
    _label_terms,
    lambda n, hits, true, has: ratio(2 * hits, true + has),
    "no sample has the label, and none is said to",
    True,
)
balanced_accuracy = Metric(_label_terms, _balanced, ONE_KIND, True)
auc = Metric(lambda p, y: (p * (y > 0), (y > 0) * 1.0), _of_auc, ONE_KIND, True, ranked=True)
binary_cross_entropy = averaged(
    lambda p, y: -np.log(np.maximum(np.where(y > 0.5, p, 1 - p), np.finfo(np.float64).tiny))
)


def accuracy(rule: Rule) -> Metric:
    """Makes the share of samples whose score and label are of one class."""

    def terms(p: NDArray, y: NDArray) -> tuple[NDArray, NDArray]:
        kept = rule.kept(y)
        return (rule.classes(p) == rule.classes(y)) & kept, kept

    return Metric(terms, lambda n, right, kept: ratio(right, kept), NO_SAMPLES, True, rule=rule)


def f1_of(rule: Rule, by: str = "true") -> Metric:
    """Makes the F1 of a rule's classes, averaged by one of the weights of `f1`."""

    def terms(p: NDArray, y: NDArray) -> list[NDArray]:
        return f1_terms(rule.classes(p), rule.classes(y), rule.kept(y))

    return Metric(terms, partial(f1, by=by), NO_SAMPLES, True)


def f1_terms(p: NDArray, y: NDArray, kept: NDArray) -> list[NDArray]:
    """Lists for each class of p or y what its F1 counts: hits, true samples, predicted ones."""
    found = []
    for one_class in np.union1d(p, y):
        predicted, true = (p == one_class) & kept, (y == one_class) & kept
        found += [predicted & true, true, predicted]
    return found


def f1(n: NDArray, *sums: NDArray, by: str) -> NDArray:
    """Averages F1 over classes, F1 = 2 hits / (true count + predicted count) of each.

    A class weighs as much as `by` says: its `true` count, its `predicted` count, or `class`: every
    class that occurs weighs the same.

    Args:
      sums: Hits, true count and predicted count (..., D) of each class in turn.
    """
    total, weights = 0, 0
    for hits, true, predicted in zip(sums[::3], sums[1::3], sums[2::3], strict=True):
        both = true + predicted
        weight = {"true": true, "predicted": predicted, "class": (both > 0) * 1}[by]
        # A class that neither labels nor predictions have weighs nothing: its 0/0 is not needed.
        total = total + weight * 2 * hits / np.maximum(both, 1)
        weights = weights + weight
    return ratio(total, weights)


def recall(n: NDArray, *sums: NDArray) -> NDArray:
    """Averages recall, hits / true count, over the classes that labels have; see `f1`."""
    total, classes = 0, 0
    for hits, true in zip(sums[::3], sums[1::3], strict=True):
        total = total + hits / np.maximum(true, 1)
        classes = classes + (true > 0)
    return ratio(total, classes)


def predicted_classes(p: NDArray) -> NDArray:
    """Finds the most probable class of p (..., C, N), the first of equals: (..., N)."""
    return p.argmax(axis=-2)


def _nats(p: NDArray, y: NDArray) -> NDArray:
    classes = np.arange(p.shape[-2])[:, None]
    of_label = np.where(classes == y[..., None, :], p, 0).sum(axis=-2)
    return -np.log(np.maximum(of_label, np.finfo(np.float64).tiny))


def _class_f1(by: str) -> Metric:
    return Metric(
        lambda p, y: f1_terms(predicted_classes(p), y, np.True_),
        partial(f1, by=by),
        larger_is_better=True,
    )


class_accuracy = averaged(lambda p, y: predicted_classes(p) == y, larger_is_better=True)
class_f1_weighted = _class_f1("true")
class_f1_macro = _class_f1("class")
class_recall = class_f1_macro._replace(of_sums=recall)
cross_entropy = averaged(_nats)

# Of tokens p (..., 2, N): the nats of a sequence, and how many of its steps are predicted.
token_cross_entropy = Metric(
    lambda p, y: (p[..., 0, :], p[..., 1, :]),
    lambda n, nats, steps: ratio(nats, steps),
    "no sequence has two steps in a row",
)
token_perplexity = token_cross_entropy._replace(
    of_sums=lambda n, nats, steps: np.exp(ratio(nats, steps))
)
