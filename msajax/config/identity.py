"""Says what makes a run what it is: its settings and the arithmetic; and what nothing reads."""

from collections.abc import Mapping
from typing import Any

from msajax.config.reading import flatten
from msajax.config.sections import Config
from msajax.errors import UserError

# Raised whenever preparation, masks, random bits or the arithmetic of models change. Nothing is
# migrated: a run that goes on, or a bundle that predicts, gives the numbers it gave before.
NUMERICS = 13


def identity(config: Config) -> dict[str, Any]:
    """Selects the settings that make two runs the same run, flat, by key.

    What may change between two starts is left out: the path (the corpus digest decides; of an
    encoder its own), how the run is spread over programs and devices (which changes rounding
    alone), caches and checkpoint intervals, whether lost steps are accepted, reports, with which
    ranges the log compares settings, and settings that the model does not read.
    """
    free = ("data.path", "data.synthetic.", "train.seed_axis", "train.checkpoint_every_")
    free += ("train.compile_cache", "train.deterministic", "train.accumulation_steps", "mesh.")
    free += ("data.device_memory_budget", "data.allow_loss", "model.text_encoder", "train.report")
    free += ("model.ranges", "model.encoders")
    unread = {f"model.{name}" for name in config.model.unread}
    flat = flatten(config) | {"data.text": config.reading.text}
    return {k: v for k, v in flat.items() if not k.startswith(free) and k not in unread}


def idle_settings(config: Config, *, reads_tokens: bool, reads_vectors: bool) -> list[str]:
    """Lists settings that were changed and that nothing reads, each as a short phrase.

    They are warned of, not refused: an experiment may be run with a part of it turned off.
    `reads_tokens` says that a modality of the corpus is token ids, `reads_vectors` that word
    vectors are asked for.
    """
    model = config.model
    encoders = [model, *map(model.encoder_of, model.overridden)]
    positions = {encoder.positions for encoder in encoders}
    readers = {
        "data.glove_path": (reads_vectors, "words without features"),
        "data.folds": (config.data.fold >= 0, "data.fold, to choose one"),
        "data.min_count": (config.data.text == "words", "data.text = words"),
        "model.embedding_dim": (reads_tokens, "token ids"),
        "model.embedding_scale": (reads_tokens, "token ids"),
        "model.final_norm_type": (any(e.final_norm for e in encoders), "model.final_norm"),
        "model.position_init": ("learned" in positions, "model.positions = learned"),
        "model.drofe_age_unit": ("drofe" in positions, "model.positions = drofe"),
        "train.huber_delta": (config.train.loss == "huber", "train.loss = huber"),
        "train.focal_gamma": (config.train.loss == "focal", "train.loss = focal"),
        "model.guidance_weight": (model.guidance != "none", "model.guidance"),
        "model.guidance_steps": (
            model.guidance == "integrated_gradients",
            "model.guidance = integrated_gradients",
        ),
    }
    found, usual = flatten(config), flatten(Config())
    return [
        f"{key} = {found[key]} (needs {what})"
        for key, (is_read, what) in readers.items()
        if found[key] != usual[key] and not is_read
    ]


def require_numerics(content: Mapping[str, Any], what: str) -> None:
    """Raises `UserError` for a run or a bundle whose numbers this program would not reproduce.

    The entry `numerics` of its run.json or bundle.json is compared; `what` names it in the message.
    """
    found = content.get("numerics")
    if type(found) is not int or found != NUMERICS:
        theirs = "none" if found is None else repr(found)
        raise UserError(
            f"{what} was made with other arithmetic (numerics: {theirs} there, {NUMERICS} here), "
            "and would not go on to the same numbers: use the msajax that made it, or train anew."
        )
