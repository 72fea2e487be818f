"""The README.md of a bundle: valid metadata for the hub, and names of others that stay text."""

import html
import re

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard

from msajax.report.model_card import markdown, model_card

HOSTILE = (
    "<script>alert(1)</script>", "a|b*c_d`e`[x](javascript:y)", 'quote" and \\ back: - # {}',
    "line\n---\nlicense: mit", "null", "\u202ereversed\u2028\x7f", "1e-05",
)


def results(name: str, seeds: int = 2, classes: bool = False) -> dict:
    metric, other = ("accuracy", "f1_macro") if classes else ("mae", "corr")
    values = {"mean": 0.5, "sd": 0.25 if seeds > 1 else None, "seeds": [0.5] * seeds}
    undefined = {"mean": None, "sd": None, "seeds": [None] * seeds}
    intervals = {"ci95": [0.4, 0.6]}, {"ci95": [None, None]}
    return {
        "model": {"name": name, "parameters": 1234},
        "corpus": {
            "path": f"/home/somebody/{name.replace('/', '')}.npz",
            "format": "native npz",
            "digest": "d1",
            "sizes": {"train": 30, "valid": 20, "test": 10},
            "widths": {name: 4, "left": 2},
        },
        "seeds": list(range(seeds)),
        "epochs": 9,
        "selection": metric,
        "best_epoch": [3] * seeds,
        "failed": [{"seed": 7}],
        "valid": {metric: values, other: undefined},
        "test": {metric: values | intervals[0], other: undefined | intervals[1]},
        "test_ensemble": {metric: 0.625, other: None},
        "floors": {"majority": {metric: 0.4}} if classes else {"constant_0": {metric: 1.5}},
    }


def bundle(name: str, classes: bool = False, **spec) -> dict:
    spec = {
        "modalities": [name],
        "widths": [4],
        "lengths": [6],
        "label_kind": "classification" if classes else "regression",
        "label_names": [name, "other"] if classes else [name],
        **spec,
    }
    of_model = {"name": name, "module": name, "file": f"/x/{name}", "file_sha256": "f1"}
    preparation = {"spec": spec, "statistics": [name], "embeddings": [], "words": []}
    return {
        "msajax": "0.1.0",
        "config": {"data": {"truncate": "first"}},
        "model": of_model,
        "preparation": preparation | {"text_from": ""},
    }


RUN = {"repairs": {"train": {"left": {"clipped": 3, "non_finite": 0}}}}


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_others_stay_text(name):
    card = model_card(results(name), bundle(name), RUN)
    shown = re.sub(r"[\u202e\u2028\x7f]", "\ufffd", name)
    parsed = ModelCard(card)
    assert parsed.data.license == "unknown"  # whatever a name says
    metadata = yaml.safe_load(card.split("---\n")[1])
    assert metadata["tags"][-1] == shown.replace("\n", "\ufffd")
    body = card.split("---\n", 2)[2]
    assert "<" not in body and "\u202e" not in card and "\u2028" not in card
    text = re.sub(r"(?s)\n```python\n.*?\n```\n", "", body)  # the one block of code is closed
    assert "```" not in text and not re.search(r"(?<!\\)\]\(", text)  # no link
    for line in body.splitlines():  # no name begins a line, a cell or a block of its own
        assert line != "---" and not line.startswith("license")
        if line.startswith("| "):
            assert len(re.findall(r"(?<!\\)\|", line)) == 7
    unescaped = html.unescape(re.sub(r"\\(.)", r"\1", markdown(name)))
    assert unescaped == " ".join(name.split()).translate(dict.fromkeys((0x202E, 0x7F), "\ufffd"))


def test_the_card_says_what_was_measured_and_what_was_not():
    card = model_card(results("mine"), bundle("mine"), RUN)
    for sentence in (
        "1,234 parameters, trained by msajax 0.1.0 with 2 random seeds (0, 1), best epochs 3, 3",
        "Test mae 0.500 beats the 1.500 of the constant 0.",
        "Random seeds 7 became non-finite and count nowhere.",
        r"| mae ↓ | 0.500 ± 0.250 | 0.500 ± 0.250 | \[0.400, 0.600\] | 0.625 | 1.500 (0) |",
        "samples: train 30, valid 20, test 10; digest d1.", "Not read: left.",
        "Repaired in train, left: 3 clipped.",
        "Sequences longer than its own (mine 6 steps) are cut to their first steps.",
        "Nothing is calibrated", "scores = bundle.predict({'mine': x_0})",
        "The model is mine of mine (SHA-256 f1), which has to be imported first.",
    ):
        assert sentence in card, sentence
    metrics = ModelCard(card).data.eval_results
    assert [(m.metric_type, m.metric_value) for m in metrics] == [("mae", 0.5), ("mae", 0.625)]
    assert "/home/somebody" not in card and "/x/" not in card
    calibration = {
        "kind": "interval",
        "level": 0.9,
        "optimistic": True,
        "test": {"coverage": [0.875], "width": [3.0]},
    }
    found = model_card(results("mine") | {"calibration": calibration}, bundle("mine"), RUN)
    assert "Intervals of 90 % covered 87.5 % of the test split. It is optimistic: " in found


def test_classes_one_seed_and_what_a_model_reads():
    several = {"modalities": ["text", "audio"], "widths": [0, 4], "lengths": [6, 3]}
    read = bundle("mood", classes=True, **several)
    read["preparation"] |= {"words": ["good"], "text_from": ""}
    read["model"]["file"] = ""
    card = model_card(results("mood", seeds=1, classes=True), read, RUN)
    assert "scores = bundle.predict({'audio': x_0}, raw_text=transcripts)" in card
    assert "A sample may lack modalities" in card and "which has to be imported" not in card
    assert "with 1 random seed (0)" in card and "of the ensemble" not in card
    assert "beats" not in card  # accuracy is compared only where it is no better


@pytest.mark.parametrize("name", ['b"\\', "yes", "1", "- a: b", "1e-9", "{{ title }}"])
def test_metadata_is_yaml_that_holds_what_it_is_given(name):
    found = results(name)
    found["test"]["mae"] |= {"mean": 1e-9}
    of_bundle = bundle(name)
    of_bundle["model"]["name"] = name
    metadata = yaml.safe_load(model_card(found, of_bundle, RUN).split("---\n")[1])
    assert metadata["tags"][-1] == name and metadata["metrics"] == ["mae"]
    (model,) = metadata["model-index"]
    (result,) = model["results"]
    assert model["name"] == f"{name} of {name}"
    assert result["task"] == {"type": "regression", "name": f"regression of {name}"}
    mean, of_ensemble = result["metrics"]
    np.testing.assert_allclose(mean["value"], 0, atol=1e-6)  # and no text: an exponent may be one
    assert of_ensemble == {"type": "mae", "name": "mae of the ensemble", "value": 0.625}


def test_a_card_without_a_defined_score_is_metadata_all_the_same():
    found = results("mine", seeds=1)
    for values in found["test"].values():
        values["mean"] = None
    metadata = yaml.safe_load(model_card(found, bundle("mine"), RUN).split("---\n")[1])
    assert "metrics" not in metadata
    assert metadata["model-index"][0]["results"][0]["metrics"] is None
