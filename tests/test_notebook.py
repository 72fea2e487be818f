"""The notebook of docs/ runs as it stands, and shows what it has made."""

import json
import os

from survivors import ROOT, python

TOUR = json.loads((ROOT / "docs" / "tour.ipynb").read_text(encoding="utf-8"))
CODE = [cell for cell in TOUR["cells"] if cell["cell_type"] == "code"]


def test_every_cell_runs_in_order_and_leaves_what_the_next_ones_read(tmp_path):
    cells = ["".join(cell["source"]) for cell in CODE]
    script = "\n".join([*cells, "assert inside > 0.7 and scores.score.shape == (2, 1)"])
    script += "\nassert result['test']['mae']['mean'] < other['test']['mae']['mean'] - 0.2\n"
    environment = {**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": str(ROOT)}
    done = python("-c", script, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "both" / "report.html").exists()


def test_results_are_kept_in_it_and_nothing_of_a_machine():
    shown = [output for cell in CODE for output in cell["outputs"]]
    kinds = {kind for output in shown for kind in output.get("data", {})}
    assert {"text/html", "image/png"} <= kinds and len(shown) >= 7
    assert all(output["output_type"] != "error" for output in shown)
    text = json.dumps(TOUR)
    assert "/tmp" not in text and "/home" not in text and "/root" not in text
    assert len(text) < 200_000
    assert "\\u001b" not in text  # codes of a terminal, which HTML does not know
