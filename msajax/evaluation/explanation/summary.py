"""Prints what an explanation found, for people."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from msajax.evaluation.explanation.integrate import EXACT
from msajax.evaluation.tables import metric_table


def print_explanation(found: Mapping[str, Any], console: Console) -> None:
    """Prints what each modality contributes, over the samples that were explained."""
    samples, split = found["samples"], found["split"]
    title = f"{len(samples)} of {found['samples_in_split']} samples of {split}"
    table = metric_table(title, "mean absolute contribution", "mean weight", first="modality")
    for m, size in found["summary"]["mean_absolute_contribution"].items():
        weight = sum(sample["weights"][m] for sample in samples) / len(samples)
        table.add_row(*map(Text, (m, f"{size:.3f}", f"{weight:.3f}")))
    console.print(table)
    told = [completeness_in_words(found), *attention_in_words(found)]
    console.print("\n".join(told), highlight=False, soft_wrap=True)


def completeness_in_words(found: Mapping[str, Any]) -> str:
    """Says how well the contributions of a sample sum to its score."""
    error = found["summary"]["completeness"]
    share, points = 100 * error["relative_median"], error["points"]
    said = (
        f"Contributions sum to the score minus that of the baseline with a median error of "
        f"{share:.2g} % of that difference (at most {error['max']:.2g}), by {points} points "
        "of the path."
    )
    if error["relative_median"] >= EXACT:
        said += " That is not exact: read single contributions with care."
    return said


def attention_in_words(found: Mapping[str, Any]) -> list[str]:
    """Says what maps of attention are means of, and what of them is left out; [] without maps."""
    maps = [one for sample in found["samples"] for one in sample["attention"]]
    if not maps:
        return []
    detail, seeds = found["attention"], found["seeds"]
    over = f" and {seeds} random seeds" if seeds > 1 else ""
    said = [f"Attention of all heads is a mean over heads{over}."]
    if not detail["heads"]:
        said.append(
            "Single heads are left out, which would make the page too large: --samples with a "
            "smaller number shows them."
        )
    elif seeds > 1:
        said.append(
            f"A single head is that of random seed {detail['heads_of_seed']}: heads of different "
            "seeds do not correspond."
        )
    if any(max(one["steps_of_cells"]) > 1 for one in maps):
        said.append(
            f"Maps have at most {detail['cells']} cells a side; a cell of several steps is the "
            "mean of those that attend, and the sum over those that are attended to."
        )
    return said
