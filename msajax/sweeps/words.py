"""Says in words what has become of trials."""

from collections.abc import Mapping
from typing import Any

from msajax.sweeps.verdicts import Metric


def trial_line(record: Mapping[str, Any]) -> str:
    """Says in one line how a trial has ended."""
    settings = ", ".join(f"{key} {_shown(v)}" for key, v in record["settings"].items())
    score = ""
    if record["score"] is not None:
        spread = "" if record["sd"] is None else f" ± {record['sd']:.4f}"
        score = f"{record['metric']} {record['score']:.4f}{spread}, "
    return f"trial {record['trial']} ({settings or 'nothing changed'}): {score}{record['why']}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def winner_sentence(best: Mapping[str, Any], apart: Mapping[int, bool], metric: Metric) -> str:
    """Says in words which trial is best, and which ones its random seeds do not tell from it."""
    count, spread = len(best["seeds"]), "" if best["sd"] is None else f" ± {best['sd']:.4f}"
    of_seeds = f"{count} random seeds" if count > 1 else "one random seed"
    text = (
        f"Trial {best['trial']} is the best on validation, {metric.name} {best['score']:.4f}"
        f"{spread} with {of_seeds}."
    )
    if not apart:
        return f"{text} No other trial ran to its end."
    if count < 2:
        return f"{text} One seed cannot tell it from any other trial: take --trial_seeds=3 or more."
    same = sorted(number for number, is_apart in apart.items() if not is_apart)
    others = f"the {len(apart)} others that ran to their end" if len(apart) > 1 else "the other one"
    if not same:
        return f"{text} Its seeds tell it from {others}."
    if len(same) == len(apart):
        none = "do not tell it from" if len(apart) == 1 else "tell it from none of"
        return f"{text} Its seeds {none} {others}."
    listed = ", ".join(map(str, same))
    return (
        f"{text} Of {others}, the seeds do not tell it from {len(same)}: trial"
        f"{'s' * (len(same) > 1)} {listed}."
    )
