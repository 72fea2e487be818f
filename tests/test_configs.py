"""Every experiment file trains: `:smoke` is its own model on a small synthetic corpus."""

import importlib.util
import pathlib

import numpy as np
import pytest

from msajax import experiment
from msajax.config import from_config_dict

CONFIGS = sorted((pathlib.Path(__file__).resolve().parent.parent / "configs").glob("*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_smoke_trains_two_seeds_for_two_epochs_to_finite_results(path, tmp_path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = from_config_dict(module.get_config("smoke"))
    results = experiment.train(config, str(tmp_path / "run"))
    assert results["seeds"] == [0, 1]
    assert results["timing"]["epochs"] == 2
    assert np.isfinite([results[s]["mae"]["mean"] for s in ("valid", "test")]).all()
    assert set(results["corpus"]["modalities"]) <= set(results["corpus"]["widths"])
