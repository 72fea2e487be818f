"""Prints what an explanation found, for people."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from msajax.report.explanation.integrate import EXACT
from msajax.results.tables import metric_table


def print_explanation(found: Mapping[str, Any], console: Console) -> None:
    """Prints what each modality contributes, over the samples that were explained."""
    samples, split = found["samples"], found["split"]
    title = f"{len(samples)} of {found['samples_in_split']} samples of {split}"
    table = metric_table(title, "mean absolute contribution", "mean weight", first="modality")
    for m, size in found["summary"]["mean_absolute_contribution"].items():
        weight = sum(sample["weights"][m] for sample in samples) / len(samples)
        table.add_row(*map(Text, (m, f"{size:.3f}", f"{weight:.3f}")))
    console.print(table)
    for said in (completeness_in_words(found), attention_in_words(found)[1]):
        if said:
            console.print(said, highlight=False, soft_wrap=True)


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


def attention_in_words(found: Mapping[str, Any]) -> tuple[str, str]:
    """Says what the maps of attention are, and what of them is left out; "" and "" without maps."""
    maps = [one for sample in found["samples"] for one in sample["attention"]]
    if not maps:
        return "", ""
    detail, seeds, left_out = found["attention"], found["seeds"], []
    said = "Attention is the mean over heads" + (f" and {seeds} random seeds" if seeds > 1 else "")
    if detail["heads"] and seeds > 1:
        said += (
            f"; a single head is that of random seed {detail['heads_of_seed']}, for heads of "
            "different seeds do not correspond"
        )
    if not detail["heads"]:
        left_out.append(
            "Single heads of attention are left out, which would make the page too large: a "
            "smaller number of --samples shows them."
        )
    if any(max(one["steps_of_cells"]) > 1 for one in maps):
        left_out.append(
            f"Maps of attention have at most {detail['cells']} cells a side: a cell of several "
            "steps is the mean of those that attend, and the sum over those attended to."
        )
    return f"{said}.", " ".join(left_out)
