"""Calibrates scores on labelled samples: intervals of real numbers, temperatures of classes.

Intervals are those of split conformal prediction, normalised by the spread of the random seeds;
temperature and expected calibration error are those of Guo et al. 2017 (On calibration of modern
neural networks, sections 2 and 4.2). All of them are about the ensemble: the mean over seeds.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.9
FEWEST = 9  # scores of which the 90 % rank is one; what is fitted on fewer says nothing
OPTIMISTIC = "optimistic: it chose the epoch"
BINS = 15

_TEMPERATURES = 0.05, 20.0  # where the best one is looked for
_HALVINGS = 100


@dataclasses.dataclass(frozen=True)
class Basis:
    """Says on which samples a calibration rests.

    Attributes:
        by: `video`, or `sample` where ids name no videos: samples were dealt by these.
        optimistic: they chose the epochs, too, so that errors on them are too small.
    """

    samples: int
    by: str
    optimistic: bool

    def describe(self) -> str:
        """Says which samples these are, and what is wrong with them."""
        if self.optimistic:
            return f"calibrated on validation, {self.samples} samples; {OPTIMISTIC}"
        singly = ", dealt one by one as ids name no videos" if self.by == "sample" else ""
        return f"calibrated on {self.samples} validation samples that chose nothing{singly}"


@dataclasses.dataclass(frozen=True)
class Calibration(Basis):
    """Holds what is fitted to the scores of some samples; the `fit` of a subclass makes it."""

    kind: ClassVar[str]

    def measure(self, scores: NDArray, labels: NDArray) -> dict[str, Any]:
        """Measures it on scores `[S, N, K]` and labels of other samples."""
        raise NotImplementedError

    def applied(self, scores: NDArray) -> dict[str, NDArray]:
        """Returns what it says of scores `[S, N, K]`, by the fields of `msajax.Scores`."""
        raise NotImplementedError

    def told(self, test: Mapping[str, Any]) -> str:
        """Puts what `measure` found on test into a sentence."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form, with lists in place of tuples."""
        fields = dataclasses.asdict(self)
        plain = {key: list(v) if isinstance(v, tuple) else v for key, v in fields.items()}
        return {"kind": self.kind} | plain


@dataclasses.dataclass(frozen=True)
class Intervals(Calibration):
    """Holds the size of the 90 % intervals of K outputs: score ± quantile x spread.

    The spread is the deviation (ddof 1) of the seeds' scores, or the floor where that is larger; it
    is 1 for an output without a floor.

    Attributes:
        quantile: the error over the spread of calibration samples, for each output.
        floor: the median of the seeds' deviation, for each output; None with one seed, or if that
            is 0.
    """

    kind: ClassVar[str] = "interval"
    quantile: tuple[float, ...] = ()
    floor: tuple[float | None, ...] = ()

    @classmethod
    def fit(cls, scores: NDArray, labels: NDArray, basis: Basis) -> "Intervals | None":
        """Fits the intervals of scores `[S, n, K]` to labels `[n, K]`; None of too few samples.

        The quantile is the error of rank ceil((n + 1) 0.9): a new sample that is exchangeable with
        these lies within it with probability 0.9 or more. With a floor that is nearly so, for the
        new sample has no part in the floor.
        """
        n = len(labels)
        rank = -(-9 * (n + 1) // 10)  # in whole numbers: (n + 1) * 0.9 may round up
        if rank > n:
            return None
        floors: tuple[float | None, ...] = (None,) * labels.shape[1]
        if len(scores) > 1:
            medians = np.median(scores.std(axis=0, ddof=1), axis=0)
            # Seeds that mostly agree to the bit have no spread to measure errors by.
            floors = tuple(float(median) if median > 0 else None for median in medians)
        errors = np.abs(labels - scores.mean(axis=0)) / _spread(scores, floors)
        quantile = np.sort(errors, axis=0)[rank - 1]
        return cls(**dataclasses.asdict(basis), quantile=tuple(quantile.tolist()), floor=floors)

    def bounds(self, scores: NDArray) -> tuple[NDArray, NDArray]:
        """Returns the lower and the upper ends `[N, K]` of the intervals of scores `[S, N, K]`."""
        mean = scores.mean(axis=0)
        half = np.array(self.quantile) * _spread(scores, self.floor)
        return mean - half, mean + half

    def measure(self, scores: NDArray, labels: NDArray) -> dict[str, Any]:
        """Measures the intervals of scores `[S, N, K]` on labels `[N, K]`, an entry an output.

        Returns:
            "coverage", the share of the labels that lie in their interval, and "width", the mean.
        """
        low, high = self.bounds(scores)
        inside = (low <= labels) & (labels <= high)
        return {
            "coverage": inside.mean(axis=0).tolist(),
            "width": (high - low).mean(axis=0).tolist(),
        }

    def applied(self, scores: NDArray) -> dict[str, NDArray]:
        """Returns the ends "low" and "high" `[N, K]` of the intervals of scores `[S, N, K]`."""
        return dict(zip(("low", "high"), self.bounds(scores), strict=True))

    def told(self, test: Mapping[str, Any]) -> str:
        """Puts what `measure` found on test into a sentence."""
        coverage = _range([100 * share for share in test["coverage"]], "{:.1f}")
        width, each = _range(test["width"], "{:.3f}"), " of each output" * (len(test["width"]) > 1)
        return (
            f"The 90 % intervals of the ensemble's score{each} hold {coverage} % of the test "
            f"labels, and are {width} wide in the mean ({self.describe()})."
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form."""
        normalised = any(floor is not None for floor in self.floor)
        about = {"kind": self.kind, "level": LEVEL, "normalised": normalised}
        return about | super().to_dict()


@dataclasses.dataclass(frozen=True)
class Temperature(Calibration):
    """Holds the ensemble's temperature T, above 1 where it is too sure: p^(1/T), normalised."""

    kind: ClassVar[str] = "temperature"
    temperature: float = 1.0

    @classmethod
    def fit(cls, scores: NDArray, labels: NDArray, basis: Basis) -> "Temperature | None":
        """Fits the temperature of probabilities `[S, n, C]` to classes `[n, 1]`; None of too few.

        It minimises the negative log-likelihood of the classes. The ensemble has no logits: the
        logarithms of its probabilities stand for them, whose softmax they are. The likelihood is
        convex in 1/T, so that halving an interval finds where its slope is 0, always to the same
        bits; the ends of the interval, 0.05 and 20, stand for what lies beyond.
        """
        if len(labels) < FEWEST:
            return None
        logits, true = np.log(scores.mean(axis=0)), labels.astype(int)

        def slope(temperature: float) -> float:
            """Returns the derivative of the mean loss with respect to 1/T."""
            expected = (_softmax(logits / temperature) * logits).sum(axis=1)
            return float((expected - np.take_along_axis(logits, true, axis=1)[:, 0]).mean())

        low, high = _TEMPERATURES
        for _ in range(_HALVINGS):
            middle = float(np.sqrt(low * high))
            if slope(middle) >= 0:  # 1/T is too large
                low = middle
            else:
                high = middle
        return cls(**dataclasses.asdict(basis), temperature=high)

    def scaled(self, scores: NDArray) -> NDArray:
        """Returns the ensemble's probabilities `[N, C]` at this temperature, of `[S, N, C]`."""
        return _softmax(np.log(scores.mean(axis=0)) / self.temperature)

    def measure(self, scores: NDArray, labels: NDArray) -> dict[str, Any]:
        """Measures how sure the ensemble is, by probabilities `[S, N, C]` and classes `[N, 1]`.

        Returns:
            The expected calibration error before and after scaling, and the bins before it.
        """
        right = labels[:, 0]
        bins = reliability(scores.mean(axis=0), right)
        return {
            "ece_before": calibration_error(bins),
            "ece_after": calibration_error(reliability(self.scaled(scores), right)),
            "bins": bins,
        }

    def applied(self, scores: NDArray) -> dict[str, NDArray]:
        """Returns "calibrated", the probabilities `[N, C]` at this temperature."""
        return {"calibrated": self.scaled(scores)}

    def told(self, test: Mapping[str, Any]) -> str:
        """Puts what `measure` found on test into a sentence."""
        before, after = (f"{100 * test[key]:.1f} %" for key in ("ece_before", "ece_after"))
        return (
            f"The ensemble's probabilities have an expected calibration error of {before} on test, "
            f"{after} at temperature {self.temperature:.3f} (predictions are not scaled by it; "
            f"{self.describe()})."
        )


def from_dict(values: Mapping[str, Any], kind: type) -> Any:
    """Makes a calibration of a kind of its JSON form; raises `KeyError` for another kind."""
    if values["kind"] != kind.kind:
        raise KeyError(values["kind"])
    plain = {field.name: values[field.name] for field in dataclasses.fields(kind)}
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()})


def reliability(probabilities: NDArray, labels: NDArray) -> list[dict[str, float]]:
    """Compares how sure predictions are with how often they are right, in 15 bins of equal width.

    Bin m holds the samples whose largest probability lies in ((m - 1)/15, m/15].

    Args:
        probabilities: `[N, C]`.
        labels: `[N]`, the true class of each sample.

    Returns:
        Of each bin that is not empty, the mean "confidence", the "accuracy" and the "count".
    """
    sure, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    upper = np.arange(1, BINS + 1) / BINS
    bin_of = np.minimum(np.searchsorted(upper, sure, side="left"), BINS - 1)
    found = []
    for rows in (bin_of == m for m in np.unique(bin_of)):
        means = {"confidence": float(sure[rows].mean()), "accuracy": float(right[rows].mean())}
        found.append(means | {"count": int(rows.sum())})
    return found


def calibration_error(bins: list[dict[str, float]]) -> float:
    """Returns the expected calibration error: the bins' mean gap, weighted by their counts."""
    gaps = [abs(each["accuracy"] - each["confidence"]) for each in bins]
    return float(np.average(gaps, weights=[each["count"] for each in bins]))


def _spread(scores: NDArray, floors: tuple[float | None, ...]) -> NDArray:
    """Returns what errors of scores `[S, N, K]` are measured by, `[N, K]`: 1 without a floor."""
    spread = np.ones(scores.shape[1:])
    for k, floor in enumerate(floors):
        if floor is not None:
            spread[:, k] = np.maximum(scores[:, :, k].std(axis=0, ddof=1), floor)
    return spread


def _softmax(logits: NDArray) -> NDArray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _range(values: Sequence[float], form: str) -> str:
    ends = dict.fromkeys(form.format(end) for end in (min(values), max(values)))
    return " to ".join(ends)
