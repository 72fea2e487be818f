"""Configuration: the reference recipe by default, and no impossible value gets past it."""

import ast
import dataclasses
import importlib.util
import json
import math
import pathlib
import re

import ml_collections
import pytest
from tiny import tiny_config

from msajax.config import (
    SYNTHETIC,
    Config,
    DataConfig,
    ModelConfig,
    OptimConfig,
    TrainConfig,
    apply_argument,
    check_key,
    default_config,
    from_config_dict,
    identity,
    idle_settings,
    known_keys,
    outside_ranges,
    unknown_key,
)
from msajax.config.registry import registered
from msajax.corpus.formats import open_corpus
from msajax.errors import UserError
from msajax.preparation.apply import check_split
from msajax.preparation.fit import fit

CONFIGS = sorted((pathlib.Path(__file__).resolve().parent.parent / "configs").glob("*.py"))
# But for models' own sections, which the chosen model alone reads: see test_peers.py.
OWN = tuple(f"model.{name}." for name, entry in registered().items() if entry.settings)
KEYS = tuple(key for key in known_keys() if not key.startswith(OWN))


def nested(settings: dict) -> dict:
    """`{"a.b": c}` -> `{"a": {"b": c}}`."""
    tree: dict = {}
    for key, value in settings.items():
        *sections, last = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return tree


def flat(values, prefix: str = "") -> dict:
    found = {}
    for key, value in values.items():
        is_section = isinstance(value, dict)
        found |= flat(value, f"{prefix}{key}.") if is_section else {prefix + key: value}
    return found


def refusal(settings: dict) -> str:
    with pytest.raises(UserError) as caught:
        from_config_dict(nested(settings))
    message = str(caught.value)
    assert re.fullmatch(r"[^\n]+[.?]", message), message
    return message


DEFAULTS = flat(Config().to_dict())


# --- the defaults ---


def test_the_defaults_are_the_reference_recipe():
    # Section 1 of the specification: the sizes, and Adam, the loss, the batch, the two counters.
    assert {key: DEFAULTS[key] for key in REFERENCE} == REFERENCE


REFERENCE = flat(
    {
        "model": {
            "name": "sequence_level", "model_dim": 128, "num_heads": 4, "head_dim": 0,
            "ff_dim": 256, "n_layers_mod": 2, "n_layers_fuse": 1, "bidirectional_fusion": False,
            "pooling_method": "mean", "dropout_rate": 0.1, "input_dropout": 0.0, "max_len": 0,
            "missing_modality": "mask", "modalities": (), "anchor": "", "norm_eps": 1e-6,
            "dtype": "float32",
        },
        "optim": {
            "name": "adam", "learning_rate": 1e-4, "weight_decay": 0.0, "schedule": "plateau",
            "warmup_steps": 0, "clip_norm": 0.0, "plateau_factor": 0.5, "plateau_patience": 7,
            "min_learning_rate": 1e-6,
        },
        "train": {
            "loss": "auto", "batch_size": 32, "accumulation_steps": 1, "epochs": 100,
            "patience": 15,
        },
        "data": {"truncate": "error", "alignment": "auto", "standardize": ("auto",)},
    }
)


def test_the_default_configuration_is_locked_and_equal_to_the_dataclasses():
    config = default_config()
    assert config.is_locked and config.model.is_locked and config.data.synthetic.is_locked
    with pytest.raises((AttributeError, KeyError), match="model_dmi"):
        config.model.model_dmi = 64
    with pytest.raises(TypeError):
        config.model.model_dim = "wide"
    assert from_config_dict(config) == Config()
    for part in (Config(), DataConfig(), ModelConfig(), OptimConfig(), TrainConfig()):
        with pytest.raises(dataclasses.FrozenInstanceError):  # once it is checked
            setattr(part, dataclasses.fields(part)[0].name, None)


# --- names ---


OTHER_NAMES = {
    "model.heads": "model.num_heads", "optim.lr": "optim.learning_rate",
    "lr": "optim.learning_rate", "model.dim": "model.model_dim", "train.batch": "train.batch_size",
    "model.hidden_size": "model.model_dim", "model.dropout": "model.dropout_rate",
    "model.layers": "model.n_layers_mod", "data.file": "data.path",
}


def test_a_misspelt_key_is_refused_with_the_nearest_right_name():
    keys = KEYS
    assert set(keys) == set(DEFAULTS) and len(keys) == len(DEFAULTS)
    for k, key in enumerate(keys):
        check_key(key)
        section, _, name = key.rpartition(".")
        misspelt = (f"{section}.{name}s", f"{section}.{name[1:]}", f"{section}x.{name}")[k % 3]
        expected = f"Unknown configuration key {misspelt!r}: did you mean {key!r}?"
        if misspelt not in DEFAULTS and misspelt not in OTHER_NAMES:
            with pytest.raises(UserError, match=re.escape(expected)):
                check_key(misspelt)
    for name, ours in OTHER_NAMES.items():  # those of other programs
        assert unknown_key(name).endswith(f"did you mean {ours!r}?")
    for settings, said in (  # of a file
        ({"model.model_dimm": 64}, "did you mean 'model.model_dim'?"),
        ({"training.epochs": 3}, "did you mean 'train.epochs'?"),
        ({"model.ff_dim.inner": 3}, "'model.ff_dim.inner'"),
        ({"model": 3}, "'model'"),
    ):
        assert said in refusal(settings)
    config = ml_collections.ConfigDict({"model": {"num_head": 2}})
    with pytest.raises(UserError, match="did you mean 'model.num_heads'"):
        from_config_dict(config)


# --- values ---

# Every value that a key refuses with all else at its default.
IMPOSSIBLE = {
    "data.clip": (-1.0, math.inf, math.nan),
    "data.truncate": ("", "middle"),
    "data.alignment": ("", "words"),
    "data.text": ("", "glove", "pieces"),
    "model.text_pool": ("", "mean"),
    "data.min_count": (0, -1),
    "data.binarize": ("", "half", "nan"),
    "data.word_shift": ("", "late", "nan", "inf"),
    "data.split_seed": (-1,),
    "data.folds": (-1, 1, 2),
    "data.fold": (-2, 0),  # of no folds
    "data.device_memory_budget": (-1,),
    "data.synthetic.task": ("", "faces", "connectome", "sign", "stress"),
    "data.synthetic.train": (-1, 0, 1),
    "data.synthetic.valid": (0, 1),
    "data.synthetic.test": (0, 1),
    "data.synthetic.modalities": ((), ("text",) * 3, ("text", "a/b", "c"), ("text", "", "c")),
    "data.synthetic.widths": ((), (1, 2), (1, 2, 3, 4), (1, 0, 3), (1, 2, -3)),
    "data.synthetic.lengths": ((), (1, 2), (1, 2, 3, 4), (1, 0, 3), (1, 2, -3)),
    "data.synthetic.absent_share": (-0.1, 1.0, 2.0, math.nan),
    "data.synthetic.seed": (-1,),
    "model.name": ("", "transformer"),
    "model.task": ("", "ranking", "next_token"),
    "model.embedding_dim": (-1, 10**7),
    "model.embedding_scale": ("", "sqrt"),
    "model.input_projection": ("", "never"),
    "model.modalities": (("text", "text"),),
    "model.model_dim": (-128, 0, 130),
    "model.num_heads": (-4, 0, 3, 256),
    "model.head_dim": (-1, 10**12),
    "model.value_dim": (-1, 10**12),
    "model.ff_dim": (-1, 0, 10**9),
    "model.n_layers_mod": (-1, 10**9),
    "model.n_layers_fuse": (-1, 1001),
    "model.n_layers_post_fuse": (-1, 1001),
    "model.mixer": ("", "attention"),
    "model.both_directions": (True,),  # a transformer has no direction
    "model.fusion": ("", "early", "parallel"),  # parallel is nothing else one way
    "model.activation": ("", "swish"),
    "model.norm": ("", "batchnorm"),
    "model.norm_position": ("", "both"),
    "model.positions": ("", "rotary"),
    "model.position_init": (-0.1, 101.0, math.nan, math.inf),
    "model.drofe_age_unit": (-1.0, 0.0, 1001.0, math.nan, math.inf),
    "model.guidance": ("", "gradient", "shap"),
    "model.guidance_weight": (-0.1, 1.1, math.nan),
    "model.guidance_steps": (-1, 0),
    "model.gate_input": ("", "max"),
    "model.gate_activation": ("", "gelu"),
    "model.gate_start": ("", "text"),
    "model.final_norm_type": ("", "batchnorm"),
    "model.ranges": ("", "003"),
    "model.head": ("", "sum"),
    "model.n_layers_head": (-1, 1001),
    "model.head_dropout": (-0.1, 1.0, math.nan),
    "model.attention_dropout": (-0.5, 1.0, math.nan),
    "model.ffn_dropout": (-0.5, 1.0, math.nan),
    "model.projection_dropout": (-0.5, 1.0, math.nan),
    "model.overrides": (("text",), ("=",), ("text.model_dim=3",), ("n_layers_mod=1",)),
    "model.pooling_method": ("", "max"),
    "model.dropout_rate": (-0.1, 1.0, 1.5, math.nan, -math.inf),
    "model.input_dropout": (-0.1, 1.0, 1.5, math.nan),
    "model.max_len": (-1, 10**6 + 1),
    "model.missing_modality": ("", "zero"),
    "model.norm_eps": (-1e-6, 0.0, 2.0, math.nan),
    "model.dtype": ("", "float64", "int8"),
    "model.matmul_precision": ("", "highest", "float16"),
    "optim.b1": (-0.5, 1.0, math.nan),
    "optim.b2": (-0.5, 1.0, math.nan),
    "optim.eps": (-1e-8, 0.0, math.nan),
    "optim.momentum": (-0.5, 1.0, math.nan),
    "optim.learning_rate": (-1e-4, 0.0, math.nan, math.inf),
    "optim.weight_decay": (-0.1, math.nan),
    "optim.schedule": ("", "step"),
    "optim.warmup_steps": (-1,),
    "optim.clip_norm": (-1.0, math.nan, math.inf),
    "optim.plateau_factor": (-0.5, 0.0, 1.0, 2.0, math.nan),
    "optim.plateau_patience": (-1, 0),
    "optim.min_learning_rate": (-1e-6, 2e-4, math.nan),
    "optim.groups": (
        *(("*",), ("learning_rate=1",), (":frozen=true",), ("*:rate=1",), ("*:learning_rate=0",)),
        *(("*:learning_rate=nan",), ("*:layer_decay=0",), ("*:layer_decay=1.5",)),
        *(("*:warmup_steps=1.5",), ("*:warmup_steps=inf",), ("*:frozen=perhaps",)),
        ("*:weight_decay=-1",),
    ),
    "optim.average": (-0.1, 1.0, math.nan),
    "train.seeds": (-1, 0, 2**31 + 1),
    "train.first_seed": (-1, 2**31),
    "train.epochs": (-1, 0),
    "train.batch_size": (-1, 0),
    "train.accumulation_steps": (-1, 0),
    "mesh.mode": ("", "pjit"),
    "mesh.data": (-1,),
    "mesh.seed": (-1,),
    "mesh.model": (-1, 0),
    "mesh.cpu_devices": (-1,),
    "train.patience": (-1,),
    "train.seeds_at_once": (-1,),
    "train.calibration_share": (-0.1, 1.0, math.nan),
    "train.huber_delta": (-1.0, 0.0, math.nan),
    "train.focal_gamma": (-0.5, math.nan),
    "train.class_weights": ("", "sqrt"),
    "train.seed_axis": ("", "pmap"),
    "train.checkpoint_every_seconds": (-1.0, math.nan, math.inf),
    "train.checkpoint_every_steps": (-1,),
    "train.most_skipped_steps": (-1, 0),
    "train.compile_cache": ("",),
    "model.encoders": (("audio",), ("audio=",), ("a=b", "a=c")),
    "model.encoder_layer_drop": (-0.1, 1.0, math.nan),
    "model.encoder_time_masking": (-0.1, 1.0, math.nan),
}
ANYTHING_GOES = {
    # The corpus, or the beginning of the run, decides what suits:
    *("data.path", "data.format", "data.glove_path", "data.standardize", "model.anchor"),
    *("model.init_from", "model.text_encoder", "train.loss", "train.select_by", "train.terms"),
    *("train.transforms", "optim.name"),
    # True and false:
    *("data.mask_from_zeros", "data.allow_loss", "model.causal", "model.text_special"),
    *("model.gradient_checkpointing", "model.bidirectional_fusion", "model.early_fusion"),
    *("model.final_norm", "model.qkv_bias", "model.out_bias", "model.ffn_inner_bias"),
    "model.gate_hidden",
    *("train.deterministic", "train.report", "optim.nesterov"),
}
OF_ENTRIES = ("model.overrides", "optim.groups")  # their messages name the entry that is wrong


@pytest.mark.parametrize("key", IMPOSSIBLE)
def test_an_impossible_value_is_refused_by_name(key):
    assert set(IMPOSSIBLE) | ANYTHING_GOES == set(KEYS)  # none is forgotten
    # What is wrong with model_dim = 130 is that num_heads does not divide it; the like for seeds.
    related = {"model.model_dim": "model.num_heads", "train.seeds": "train.first_seed"}
    for value in IMPOSSIBLE[key]:
        message = refusal({key: value})
        value = value[0] if key in OF_ENTRIES else value
        named = (f"{key} = {value!r}: ", *([f"{related[key]} = "] if key in related else ()))
        assert message.startswith(named), message
        assert key in OF_ENTRIES or str(value) in message
        if isinstance(value, float) and not math.isfinite(value):
            assert message.endswith("must be finite.")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"model.modalities": ("audio",), "model.anchor": "text"}, "model.anchor"),
        ({"model.num_heads": 4, "model.model_dim": 6}, "model.num_heads"),
        ({"optim.learning_rate": 1e-7}, "optim.min_learning_rate"),
        ({"model.mixer": "gru", "model.both_directions": True, "model.model_dim": 9,
          "model.num_heads": 3}, "model.model_dim"),
        ({"model.fusion": "pooled", "model.bidirectional_fusion": True},
         "model.bidirectional_fusion"),
        ({"model.fusion": "pooled", "model.n_layers_post_fuse": 1}, "model.n_layers_post_fuse"),
        ({"model.head": "mean", "model.gate_start": "anchor"}, "model.gate_start"),
        ({"model.head": "mean", "model.gate_input": "concat"}, "model.gate_input"),
        ({"model.positions": "drofe", "model.mixer": "rnn"}, "model.positions"),
        ({"model.positions": "drofe", "model.n_layers_mod": 0}, "model.positions"),
        ({"model.positions": "drofe", "model.head_dim": 6}, "model.positions"),
        ({"model.guidance": "deeplift", "model.mixer": "rnn"}, "model.guidance"),
        ({"model.guidance": "deeplift", "model.n_layers_mod": 0}, "model.guidance"),
        ({"model.head": "concat", "model.gate_hidden": False}, "model.gate_hidden"),
        ({"model.head": "mean", "model.gate_activation": "none"}, "model.gate_activation"),
        ({"model.gate_hidden": False, "model.gate_activation": "none"}, "model.gate_activation"),
        ({"model.overrides": ("video.n_layers_mod=1",), "model.modalities": ("text", "audio")},
         "model.overrides"),
        ({"train.first_seed": 2**31 - 1, "train.seeds": 2}, "train.first_seed"),
        ({"data.synthetic.modalities": ("text", "audio")}, "data.synthetic.widths"),
    ],
)
def test_values_that_exclude_each_other_are_refused_by_name(settings, key):
    assert refusal(settings).startswith(f"{key} = ")


@pytest.mark.parametrize(
    "settings",
    [
        {"model.n_layers_mod": 0, "model.n_layers_fuse": 0},
        {"model.model_dim": 1, "model.num_heads": 1, "model.ff_dim": 1},
        {"model.num_heads": 3, "model.head_dim": 5},
        {"model.positions": "drofe", "model.head_dim": 4},
        {"model.guidance": "deeplift", "model.guidance_weight": 1.0, "model.guidance_steps": 1},
        {"model.dropout_rate": 0.0, "model.input_dropout": 0.99},
        {"model.modalities": ("audio", "text"), "model.anchor": "audio"},
        {"optim.name": "adamw", "optim.weight_decay": 0.01},
        {"optim.groups": ("a:b/*:frozen=True", "*:layer_decay=1", "*:warmup_steps=0")},
        {"optim.name": "adamw", "optim.groups": ("*:weight_decay=0",), "optim.average": 0.999},
        {"optim.learning_rate": 1e-7, "optim.schedule": "constant"},
        {"optim.learning_rate": 1e-6, "optim.min_learning_rate": 1e-6},
        {"train.first_seed": 2**31 - 1, "train.seeds": 1},
        {"train.patience": 0, "train.epochs": 1, "train.batch_size": 1},
        {"train.checkpoint_every_seconds": 0.0, "data.clip": 0.0},
        {"data.synthetic.absent_share": 0.0, "data.synthetic.train": 2},
    ],
)
def test_what_is_at_the_edge_of_the_possible_is_accepted(settings):
    found = flat(from_config_dict(nested(settings)).to_dict())
    assert found == DEFAULTS | settings


# --- types ---


def wrong_types(value) -> tuple:
    if isinstance(value, bool):
        return (1, 0, "true", None)
    if isinstance(value, int):
        return (float(value), True, str(value), None, (value,))
    if isinstance(value, float):
        return (str(value), True, None, (value,))
    if isinstance(value, str):
        return (3, True, None, ("a",))
    wrong_item = "1" if value and isinstance(value[0], int) else 1
    return ("text", None, 3, (wrong_item,), (None,), (True,), ((),))


def test_a_value_of_the_wrong_type_is_refused_by_name():
    for key, default in DEFAULTS.items():
        for value in wrong_types(default):
            message = refusal({key: value})
            assert message.startswith(f"{key} = {value!r}: must be "), message
    assert refusal({"model.ff_dim": {}}).startswith("model.ff_dim = {}: must be of type int")


def test_a_whole_number_passes_as_a_float_and_a_list_as_a_tuple():
    config = from_config_dict(
        {"optim": {"learning_rate": 1}, "model": {"modalities": ["a", "b"]}, "data": {"clip": 3}}
    )
    assert (config.optim.learning_rate, type(config.optim.learning_rate)) == (1.0, float)
    assert (config.data.clip, type(config.data.clip)) == (3.0, float)
    assert config.model.modalities == ("a", "b")


def test_names_are_separated_by_commas_and_a_tilde_in_a_path_is_the_home_folder():
    of_paths = ("data.path", "data.glove_path", "model.init_from", "train.compile_cache")
    for keys, written, expected in (
        ((*of_paths, "model.text_encoder"), "~/mine", str(pathlib.Path.home() / "mine")),
        *((("model.modalities", "data.standardize"), written, expected) for written, expected in (
            (("text,audio",), ("text", "audio")),  # as the command line gives them
            (("audio, text",), ("audio", "text")),
            (("text", "audio"), ("text", "audio")),
            (("",), ()),
        )),
    ):
        found = flat(from_config_dict(nested(dict.fromkeys(keys, written))).to_dict())
        assert {found[key] for key in keys} == {expected}


# --- there and back ---


def test_a_configuration_survives_json():
    config = tiny_config(
        model__modalities=("audio", "text"), model__anchor="audio", train__first_seed=5
    )
    stored = json.dumps(config.to_dict(), allow_nan=False)
    assert from_config_dict(json.loads(stored)) == config
    assert config != Config()
    assert from_config_dict({}) == Config()
    # What a later version adds gets its default.
    part = json.loads(stored)
    del part["model"]["norm_eps"], part["data"]["synthetic"]["seed"]
    assert from_config_dict(part) == config


# --- identity ---

ANOTHER = flat(
    {
        "data": {
            "path": "corpus.npz", "standardize": ("audio",), "clip": 5.0, "truncate": "last",
            "alignment": "unaligned", "mask_from_zeros": False, "text": "words", "min_count": 3,
            "glove_path": "glove.txt", "format": "csd", "word_shift": "-0.02", "split_seed": 1,
            "binarize": "0.5", "folds": 4, "fold": 1, "device_memory_budget": 1, "allow_loss": True,
            "synthetic": {
                "train": 10, "valid": 10, "test": 10, "modalities": ("a", "b", "c"),
                "widths": (1, 2, 3), "lengths": (1, 2, 3), "absent_share": 0.5, "seed": 1,
                "task": "connectome",
            },
        },
        "model": {
            "name": "next_token", "task": "classification", "init_from": "runs/other/bundle",
            "embedding_dim": 16, "embedding_scale": "sqrt_dim", "causal": True,
            "input_projection": "where_needed", "value_dim": 8, "ffn_inner_bias": False,
            "position_init": 0.3, "drofe_age_unit": 1.0, "modalities": ("text", "audio"),
            "anchor": "audio", "model_dim": 64, "num_heads": 2, "head_dim": 16, "ff_dim": 64,
            "n_layers_mod": 1, "n_layers_fuse": 2, "n_layers_post_fuse": 1, "mixer": "gru",
            "bidirectional_fusion": True, "early_fusion": True, "pooling_method": "attention",
            "dropout_rate": 0.2, "n_layers_head": 1, "head_dropout": 0.2,
            "input_dropout": 0.2, "attention_dropout": 0.0, "ffn_dropout": 0.0,
            "projection_dropout": 0.0, "max_len": 10, "missing_modality": "reference",
            "text_encoder": "bert", "text_pool": "words", "text_special": False,
            "encoders": ("audio=wavlm",), "encoder_layer_drop": 0.1, "encoder_time_masking": 0.1,
            "gradient_checkpointing": True, "norm_eps": 1e-5, "dtype": "bfloat16",
            "matmul_precision": "tensorfloat32", "both_directions": True, "fusion": "parallel",
            "activation": "relu", "norm": "rmsnorm", "norm_position": "pre", "final_norm": True,
            "final_norm_type": "layernorm", "positions": "sinusoidal", "guidance": "deeplift",
            "guidance_weight": 0.5, "guidance_steps": 8, "qkv_bias": False, "out_bias": False,
            "gate_input": "concat", "gate_hidden": False, "gate_activation": "none",
            "gate_start": "anchor", "ranges": "002", "head": "mean",
            "overrides": ("text.n_layers_mod=1",),
        },
        "optim": {
            "name": "adamw", "learning_rate": 1e-3, "weight_decay": 0.1, "schedule": "cosine",
            "warmup_steps": 10, "clip_norm": 1.0, "plateau_factor": 0.1, "plateau_patience": 3,
            "min_learning_rate": 1e-5, "groups": ("text_encoder/*:frozen=true",), "average": 0.99,
            "b1": 0.8, "b2": 0.9, "eps": 1e-6, "momentum": 0.5, "nesterov": True,
        },
        "train": {
            "seeds": 5, "first_seed": 5, "seeds_at_once": 1, "epochs": 5, "batch_size": 16,
            "accumulation_steps": 2, "patience": 5, "select_by": "corr", "loss": "mse",
            "calibration_share": 0.2, "huber_delta": 0.5, "focal_gamma": 1.0,
            "class_weights": "balanced",
            "terms": ("gate_entropy=-0.1",), "transforms": ("step_dropout:*=0.1",),
            "seed_axis": "vmap", "checkpoint_every_seconds": 5.0, "checkpoint_every_steps": 7,
            "most_skipped_steps": 2, "compile_cache": "off", "deterministic": False,
            "report": False,
        },
        "mesh": {"mode": "pmap", "data": 2, "seed": 1, "model": 2, "cpu_devices": 2},
    }
)
NEEDED = {  # beside a value that means nothing alone
    "data.fold": {"data.folds": 3},
    "model.name": {"model.causal": True},
    "data.synthetic.task": {
        "data.synthetic.modalities": ("a",), "data.synthetic.widths": (5,),
        "data.synthetic.lengths": (2,),
    },
    "model.both_directions": {"model.mixer": "gru"},
    "model.text_encoder": {"data.text": "ids"},
    "model.fusion": {"model.bidirectional_fusion": True},
}
FREE = {
    # A digest decides: of the corpus, also of the embedded one, and of the text encoder.
    *("data.path", "model.text_encoder", "model.encoders"),
    *("data.device_memory_budget", "data.allow_loss", "model.ranges", "train.seed_axis"),
    *("train.checkpoint_every_seconds", "train.checkpoint_every_steps", "train.compile_cache"),
    *("train.deterministic", "train.report", "train.accumulation_steps"),
    *(key for key in ANOTHER if key.startswith(("data.synthetic.", "mesh."))),
}


@pytest.mark.parametrize("key", KEYS)
def test_identity_ignores_what_is_free_to_change_and_nothing_else(key):
    assert (key in identity(Config())) == (key not in FREE)
    value = ANOTHER[key]
    needs = NEEDED.get(key, {})
    base = from_config_dict(nested(needs))
    other = from_config_dict(nested({key: value, **needs}))
    assert other != base
    theirs = identity(other)  # another model reads fewer settings
    changed = {k for k, v in identity(base).items() if theirs.get(k, v) != v}
    assert changed == (set() if key in FREE else {key})


def test_an_override_reaches_its_modality_alone_with_the_type_of_the_setting():
    config = ModelConfig(
        overrides=("audio.n_layers_mod=1", "audio.final_norm=True", "eye.left.input_dropout=.5")
    )
    expected = dataclasses.replace(config, overrides=(), n_layers_mod=1, final_norm=True)
    assert config.encoder_of("audio") == expected
    assert config.encoder_of("eye.left").input_dropout == 0.5
    assert config.encoder_of("text") is config
    for override, said in (
        ("text.n_layers_mod=-1", "model.n_layers_mod = -1"),
        ("text.n_layers_mod=few", "n_layers_mod = 'few' must be of type int"),
        ("text.final_norm=1", "final_norm = '1' must be of type bool"),
        ("text.mixer=cnn", "model.mixer = 'cnn'"),
        ("text.norm_eps=inf", "model.norm_eps = inf"),
        ("text.both_directions=true", "model.both_directions = True"),
    ):
        assert said in refusal({"model.overrides": (override,)})


# --- what merely surprises ---


@pytest.mark.parametrize(
    ("key", "inside", "outside", "written"),
    [
        ("model_dim", (64, 256), (60, 260), "64 to 256"),
        ("num_heads", (2, 8), (1, 16), "2 to 8"),
        ("ff_dim", (128, 512), (127, 513), "128 to 512"),
        ("n_layers_mod", (1, 3), (0, 4), "1 to 3"),
        ("n_layers_fuse", (1, 2), (0, 3), "1 to 2"),
        ("dropout_rate", (0.0, 0.3), (0.31,), "0.0 to 0.3"),
    ],
)
def test_a_setting_outside_the_range_of_002_is_one_phrase_where_the_ranges_are_asked_for(
    key, inside, outside, written
):
    for value in inside:
        assert outside_ranges(ModelConfig(**{key: value}, ranges="002")) == []
    for value in outside:
        phrases = outside_ranges(ModelConfig(**{key: value}, ranges="002"))
        assert phrases == [f"model.{key} = {value} (range: {written})"]
        assert outside_ranges(ModelConfig(**{key: value})) == []


# --- experiment files ---


WIDTHS, LENGTHS = {"text": 7, "audio": 3}, {"audio": 9, "text": 4}


def test_smoke_replaces_the_corpus_by_a_small_one_of_the_same_widths():
    config = default_config()
    config.data.path = "somewhere.npz"
    config.model.model_dim = 64
    assert apply_argument(config, "smoke", widths=WIDTHS, lengths=LENGTHS) is config
    checked = from_config_dict(config)
    assert checked.data.path == SYNTHETIC
    assert checked.data.synthetic.modalities == ("text", "audio")
    assert (checked.data.synthetic.widths, checked.data.synthetic.lengths) == ((7, 3), (4, 9))
    assert (checked.train.epochs, checked.train.seeds) == (2, 2)
    assert (Config().train.report, checked.train.report) == (True, False)
    assert checked.model.model_dim == 64
    config = default_config()  # no argument changes nothing, an unknown one is refused
    apply_argument(config, "", widths=WIDTHS, lengths=LENGTHS)
    assert from_config_dict(config) == Config()
    with pytest.raises(UserError, match="'smok' is unknown: it can be 'smoke'"):
        apply_argument(config, "smok", widths=WIDTHS, lengths=LENGTHS)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_an_experiment_file_is_locked_possible_and_its_smoke_form_fits_its_corpus(path):
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert f"python -m msajax.main --config configs/{path.name}" in docstring
    spec = importlib.util.spec_from_file_location(f"experiment_{path.stem}", path)
    experiment = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(experiment)
    assert experiment.get_config().is_locked
    with pytest.raises(UserError, match="'smok' is unknown"):
        experiment.get_config("smok")
    whole, smoke = (from_config_dict(experiment.get_config(arg)) for arg in ("", "smoke"))
    assert (smoke.data.path, smoke.train.epochs, smoke.train.seeds) == (SYNTHETIC, 2, 2)
    assert smoke.data.synthetic.train < 100
    # The embedded corpus may lack what a model needs of a modality.
    model = dataclasses.replace(whole.model, modalities=smoke.model.modalities)
    assert (smoke.model, smoke.optim) == (model, whole.optim)
    corpus = open_corpus(smoke.data.path, smoke.data)
    corpus.require_labels("train", "valid", "test")
    preparation = fit(corpus, smoke.data, smoke.model)
    check_split(corpus.split("test"), preparation)
    assert preparation.spec.modalities == (smoke.model.modalities or corpus.modalities)


@pytest.mark.parametrize(
    ("key", "value", "reader"),
    [
        ("data.glove_path", "glove.txt", "words without features"),
        ("data.min_count", 3, "data.text = words"),
        ("data.folds", 4, "data.fold, to choose one"),
        ("model.embedding_dim", 8, "token ids"),
        ("model.embedding_scale", "sqrt_dim", "token ids"),
        ("model.drofe_age_unit", 1.0, "model.positions = drofe"),
        ("model.guidance_weight", 0.5, "model.guidance"),
        ("model.guidance_steps", 4, "model.guidance = integrated_gradients"),
    ],
)
def test_a_setting_that_nothing_reads_is_named(key, value, reader):
    neither = {"reads_tokens": False, "reads_vectors": False}
    changed = default_config()
    assert idle_settings(from_config_dict(changed), **neither) == []
    changed.update_from_flattened_dict({key: value})
    found = idle_settings(from_config_dict(changed), **neither)
    assert found == [f"{key} = {value} (needs {reader})"]
    changed.update_from_flattened_dict(
        {
            "data.text": "words", "data.folds": 4, "data.fold": 3,
            "model.guidance": "integrated_gradients", "model.overrides": ("audio.positions=drofe",),
        }
    )
    read = idle_settings(from_config_dict(changed), reads_tokens=True, reads_vectors=True)
    assert read == []
