"""Runs --mode=inspect: describes what a corpus holds, or what a model costs."""

from typing import Any

from rich.console import Console

from msajax import announce
from msajax.cli.cost_tables import print_model
from msajax.cli.early_checks import check_sources, load_jax
from msajax.cli.inspection_tables import render
from msajax.cli.options import Options
from msajax.config import Config, DataConfig, ModelConfig
from msajax.corpus.demands import say_unread_transcripts, say_what_is_idle
from msajax.corpus.formats import open_own_or_fold
from msajax.errors import OK
from msajax.preparation import inspection


def run(options: Options, console: Console) -> int:
    """Describes and prints; returns the exit code."""
    options.check_output(("digest", "splits", "memory"), ("parameters", "stages", "plan"))
    config = options.config
    if options["input"]:
        report, show = inspect(options["input"], config.data, config.model), render
    else:
        report, show = inspect_model(config), print_model
    announce.now()
    options.write_output(report)
    show(report, console)
    return OK


def inspect(
    path: str, data: DataConfig, model: ModelConfig = inspection.ANY_MODEL
) -> dict[str, Any]:
    """Describes a corpus as `inspect_corpus` does; strict-JSON-ready.

    Raises:
        UserError: if it cannot be used.
    """
    corpus = open_own_or_fold(path, data)
    corpus.verify()
    say_what_is_idle(corpus, Config(data=data), False)
    return inspection.inspect_corpus(corpus, data, model)


def inspect_model(config: Config) -> dict[str, Any]:
    """Describes what a configuration's model costs on its corpus; strict-JSON-ready.

    Raises:
        UserError: if the corpus cannot be used.
    """
    check_sources(config)
    load_jax()
    # Imported here: describing a corpus need not wait for JAX.
    from msajax.experiment.build import open_encoder
    from msajax.models import build_model
    from msajax.models.cost import cost_report
    from msajax.preparation import fit as preparing
    from msajax.results import measure
    from msajax.runtime import devices
    from msajax.training.plan import plan

    devices.require_devices()
    corpus = open_own_or_fold(config.data.path, config.reading)
    preparation = preparing.fit(corpus, config.reading, config.model, open_encoder(config))
    spec = preparation.spec
    # What training would refuse is refused here, too.
    if "valid" in corpus.headers:
        preparing.check_split(corpus.split("valid"), preparation)
    if "test" in corpus.headers:
        measure.check_test(corpus, preparation)
    say_what_is_idle(corpus, config, bool(spec.vocabularies))
    say_unread_transcripts(corpus, config)
    return cost_report(build_model(config.model, spec), spec) | {"plan": plan(config, spec)}
