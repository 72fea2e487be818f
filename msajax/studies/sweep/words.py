"""Says in words what has become of trials."""

from collections.abc import Mapping
from typing import Any

from msajax.studies.sweep.verdicts import Metric


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
    of_all = f"the {len(apart)} other trials that ran to their end"
    if len(apart) == 1:
        of_all = "the other trial that ran to its end"
    each = f"each of {of_all}" if len(apart) > 1 else of_all
    if not same:
        return f"{text} Its lead over {each} is more than a change of random seeds explains."
    if len(same) < len(apart):
        named = f"trial{'s' * (len(same) > 1)} {', '.join(map(str, same))}"
        each = f"{len(same)} of {of_all} ({named})"
    return (
        f"{text} Its lead over {each} may be chance: the difference changes as much from one "
        "random seed to another."
    )
