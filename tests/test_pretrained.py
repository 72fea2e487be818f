"""Pretrained text encoders: what they compute, and what is read of a folder."""

import dataclasses
import functools
import json
import math
import os
import pathlib
import shutil

import check_pretrained
import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from pretrained_folders import (
    BERT,
    DEBERTA,
    MODERN,
    ROBERTA,
    encode,
    random_tensors,
    write_folder,
)

from msajax.encoders.architecture import Architecture, Relative
from msajax.encoders.deberta import by_distance, row_of_distance
from msajax.encoders.folder import open_folder
from msajax.encoders.module import make_encoder, parameters_of
from msajax.encoders.table import KINDS, read_architecture
from msajax.errors import UserError
from msajax.layers.basic import rows_of_batch
from msajax.layers.prng import dropout_key

CONFIGS = {
    "bert": BERT,
    "bert, three segments, another GELU": {**BERT, "type_vocab_size": 3, "hidden_act": "gelu_new"},
    "roberta": ROBERTA,
    "modernbert": MODERN,
    "modernbert with biases, another GELU": {
        **MODERN,
        **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), True),
        "hidden_activation": "gelu_new",
    },
    "deberta": DEBERTA,
    "deberta, projections of its own": {**DEBERTA, "share_att_key": False},
    "deberta, one term, no buckets, absolute positions": {
        **DEBERTA,
        "pos_att_type": ["p2c"],
        "position_buckets": -1,
        "norm_rel_ebd": "none",
        "position_biased_input": True,
        "type_vocab_size": 2,
    },
}
MASK = np.array(
    [
        [1, 1, 1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 1, 1, 1, 1],
        [0, 1, 1, 0, 0, 1, 0, 1, 1],
        [0, 0, 0, 0, 0, 0, 0, 0, 0],
    ],
    bool,
)
RNG = np.random.default_rng(1)
IDS = RNG.integers(2, 13, MASK.shape).astype(np.int32)
SEGMENTS = RNG.integers(0, 6, MASK.shape).astype(np.int32)


def architecture(config):
    return read_architecture(config, "config.json")


@functools.cache
def params_of(name):
    config = CONFIGS[name]
    flat = parameters_of(architecture(config), random_tensors(config))
    return flax.traverse_util.unflatten_dict(flat, sep="/")


# --- what they compute ---


@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_is_its_valid_pieces_alone_wherever_padding_stands(name):
    config = CONFIGS[name]
    encoder = make_encoder(architecture(config), "float32")
    # Padding may hold anything.
    ids = np.where(MASK, IDS, np.array([[0], [7], [10**9], [-5], [3]])).astype(np.int32)
    segments = SEGMENTS % (config.get("type_vocab_size") or 2)
    output, kept = jax.jit(
        lambda params: encoder.apply(
            {"params": params}, ids, MASK, segments=segments, train=False, mutable="intermediates"
        )
    )(params_of(name))
    found = [*kept["intermediates"]["hidden"][0], output]
    assert len(found) == config["num_hidden_layers"] + 2
    tensors = random_tensors(config)
    assert not any(np.asarray(layer)[~MASK].any() for layer in found)
    for row, mask in enumerate(MASK[:-1]):
        expected = encode(config, tensors, IDS[row, mask], segments[row, mask])
        for layer, here in zip(expected, found, strict=True):
            np.testing.assert_allclose(here[row, mask], layer, rtol=1e-4, atol=2e-5)


class Owner(nn.Module):
    """A model that an encoder is a part of, as it always is."""

    config: dict
    dtype: str
    remat: bool

    @nn.compact
    def __call__(self, ids, mask):
        a = architecture(self.config)
        encoder = make_encoder(a, self.dtype, remat=self.remat, name="text_encoder")
        return encoder(ids, mask, train=True)


BERT_RATES = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
MODERN_RATES = {"attention_dropout": 0.3, "mlp_dropout": 0.2, "embedding_dropout": 0.1}
RATES = {
    "bert": BERT_RATES | {"num_hidden_layers": 1},
    "modernbert": MODERN_RATES | {"num_hidden_layers": 2},
    "deberta": BERT_RATES | {"num_hidden_layers": 1},
}


@pytest.mark.parametrize("name", RATES)
def test_dropout_is_a_rows_own_saving_memory_changes_no_number_and_16_bits_are_close(name):
    params = {"text_encoder": params_of(name)}
    config = CONFIGS[name] | RATES[name]

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def run(dtype, remat, params, order, first):
        model = Owner(config, dtype, remat)
        variables = rows_of_batch(first, jnp.ones(len(order)))
        key = {"dropout": dropout_key(2, 0)}

        def loss(params):
            variables["params"] = params
            y = model.apply(variables, jnp.asarray(IDS)[order], jnp.asarray(MASK)[order], rngs=key)
            return (y.astype(jnp.float32) ** 2).sum(), y

        (_, y), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return y, gradient

    order = np.arange(5)
    whole, gradient = run("float32", False, params, order, 4)
    later, _ = run("float32", False, params, (order + 2) % 5, 6)
    np.testing.assert_allclose(later[:3], whole[2:], rtol=1e-5, atol=1e-5)
    assert np.abs(later[3:] - whole[:2]).max(axis=(1, 2)).min() > 0.1
    if name == "bert":  # whatever a layer is, it is computed again in one way
        again, gradient_again = run("float32", True, params, order, 4)
        np.testing.assert_allclose(again, whole, rtol=1e-5, atol=1e-5)
        for here, there in zip(*map(jax.tree.leaves, (gradient_again, gradient)), strict=True):
            np.testing.assert_allclose(here, there, rtol=1e-3, atol=1e-3)
        return
    rounded, of_rounded = run("bfloat16", False, params, order, 4)
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_allclose(rounded.astype(np.float32), whole, atol=0.5)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(of_rounded))


def test_memory_is_saved_by_computing_each_layer_again():
    model = make_encoder(architecture(BERT), "float32", remat=True)
    run = functools.partial(model.apply, train=False)
    text = str(jax.make_jaxpr(run)({"params": params_of("bert")}, IDS, MASK))
    assert text.count("= checkpoint[") + text.count("= remat") == BERT["num_hidden_layers"]
    of_both = [
        jax.eval_shape(functools.partial(one.init, train=False), jax.random.key(0), IDS, MASK)
        for one in (model, make_encoder(architecture(BERT), "float32"))
    ]
    assert of_both[0] == of_both[1]


def test_paths_name_layers_and_embeddings():
    found = parameters_of(architecture(MODERN), random_tensors(MODERN))
    assert {path.split("/")[0] for path in found} == {
        *("embeddings", "layers_0", "layers_1", "layers_2", "final_norm")
    }
    assert "layers_0/norm_attention/scale" not in found
    for name in ("bert", "roberta", "deberta"):
        flat = flax.traverse_util.flatten_dict(params_of(name), sep="/")
        model = make_encoder(architecture(CONFIGS[name]), "float32")
        made = jax.eval_shape(
            functools.partial(model.init, train=False), jax.random.key(0), IDS, MASK
        )["params"]
        made = flax.traverse_util.flatten_dict(made, sep="/")
        assert {k: v.shape for k, v in flat.items()} == {k: v.shape for k, v in made.items()}


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "deberta"])
def test_a_sequence_longer_than_the_positions_is_refused(name):
    a = architecture(CONFIGS[name])
    assert a.positions == (10 if name == "roberta" else 12)
    ids = np.zeros((1, a.positions + 1), np.int32)
    model = make_encoder(a, "float32")
    with pytest.raises(ValueError, match=f"of {a.positions + 1} pieces is longer"):
        jax.eval_shape(
            functools.partial(model.apply, train=False),
            *({"params": params_of(name)}, ids, ids == 0),
        )


def test_distances_share_rows_by_their_logarithm():
    v3 = Relative(256, 512, True, True, True, True, False)
    rows = row_of_distance(v3, np.array([0, 1, -1, 128, -128, 129, 511, -511, 600]))
    assert rows.tolist() == [256, 257, 255, 384, 128, 385, 511, 1, 511]
    every = row_of_distance(v3, np.arange(-511, 512))
    assert (np.diff(every) >= 0).all() and (every + every[::-1] == 512).all()
    plain = Relative(0, 4, True, True, True, True, False)
    assert row_of_distance(plain, np.arange(-6, 7)).tolist() == [
        *(0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7)
    ]
    products = RNG.normal(size=(2, 4, 7))
    expected = [[[one[i, j - i + 3] for j in range(4)] for i in range(4)] for one in products]
    np.testing.assert_allclose(by_distance(jnp.asarray(products)), expected, rtol=1e-6)


# --- folders ---


def read(path):
    folder = open_folder(path)
    return parameters_of(folder.architecture, folder.tensors(), str(path))


def require_same(found, expected):
    assert found.keys() == expected.keys()
    for path, array in found.items():
        assert array.dtype == np.float32 and array.flags.c_contiguous
        np.testing.assert_array_equal(array, expected[path], err_msg=path)


def write_shards(path, tensors, shards):
    """Writes shards, of which each is a part of the names, and their index."""
    index = {}
    for number, names in enumerate(shards):
        file = f"model-{number}.safetensors"
        safetensors.numpy.save_file({k: tensors[k] for k in names}, path / file)
        index |= dict.fromkeys(names, file)
    text = json.dumps({"metadata": {}, "weight_map": index})
    (path / "model.safetensors.index.json").write_text(text)
    return index


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [("", "float32"), ("bert.", "float16"), ("", "bfloat16"), ("bert.", "float64")],
)
def test_weights_of_every_type_and_of_a_task(tmp_path, prefix, kind):
    tensors = random_tensors(BERT)
    rounded = {k: v.astype(jnp.dtype(kind)) for k, v in tensors.items()}
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    named = {}
    for name, array in rounded.items():
        for new, former in old.items() if prefix else ():
            name = name.replace(new, former)
        named[prefix + name] = array
    named[f"{prefix}embeddings.position_ids"] = np.arange(12)[None]
    named[f"{prefix}pooler.dense.weight"] = np.full((8, 8), np.nan, np.float32)
    named["classifier.weight"] = np.ones((3, 8), np.float32)
    write_folder(tmp_path, BERT, named)
    expected = parameters_of(
        architecture(BERT), {k: v.astype(np.float32) for k, v in rounded.items()}
    )
    require_same(read(tmp_path), expected)


def test_shards_may_be_links_only_within_the_hubs_cache(tmp_path):
    tensors, names = random_tensors(BERT), sorted(random_tensors(BERT))
    snapshot = tmp_path / "snapshots" / "1234"
    (tmp_path / "blobs").mkdir()
    snapshot.parent.mkdir()
    write_folder(snapshot, BERT)
    write_shards(snapshot, tensors, [names[:7], names[7:20], names[20:]])
    require_same(read(snapshot), parameters_of(architecture(BERT), tensors))
    (snapshot / "model-0.safetensors").rename(tmp_path / "blobs" / "abc")
    (snapshot / "model-0.safetensors").symlink_to("../../blobs/abc")
    require_same(read(snapshot), parameters_of(architecture(BERT), tensors))
    (tmp_path / "blobs").rename(tmp_path / "elsewhere")
    (snapshot / "model-0.safetensors").unlink()
    (snapshot / "model-0.safetensors").symlink_to("../../elsewhere/abc")
    with pytest.raises(UserError, match="model-0.safetensors is a link out of the folder"):
        open_folder(snapshot)


def test_an_index_names_files_of_its_folder_alone(tmp_path):
    write_folder(tmp_path, BERT)
    parts = ("../", "/", "a/", "a\\", "\n", ".")
    for file in (*(f"{one}m.safetensors" for one in parts), "..", "", "m.bin"):
        text = json.dumps({"weight_map": {"x": file}})
        (tmp_path / "model.safetensors.index.json").write_text(text)
        with pytest.raises(UserError, match="a shard is a file of the same folder"):
            open_folder(tmp_path)


def test_tensors_that_an_index_has_twice_or_a_shard_lacks(tmp_path):
    tensors = random_tensors(BERT)
    names = sorted(tensors)
    write_folder(tmp_path, BERT)
    index = tmp_path / "model.safetensors.index.json"
    entries = write_shards(tmp_path, tensors, [names[:5], names[4:]])
    with pytest.raises(UserError, match=f"holds the tensor {names[4]} twice: in model-0"):
        read(tmp_path)
    index.write_text('{"weight_map": {"a": "model-0.safetensors", "a": "model-1.safetensors"}}')
    with pytest.raises(UserError, match="lists 'a' twice"):
        read(tmp_path)
    write_shards(tmp_path, tensors, [names[:5], names[5:]])
    index.write_text(json.dumps({"weight_map": entries | {names[0]: "model-1.safetensors"}}))
    with pytest.raises(UserError, match=f"model-1.safetensors lacks the tensor {names[0]}, which"):
        read(tmp_path)
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(UserError, match="lacks model-1.safetensors, which"):
        read(tmp_path)
    index.write_text('{"weight_map": []}')
    with pytest.raises(UserError, match="has no weight_map"):
        read(tmp_path)


WORDS = "embeddings.word_embeddings.weight"
LAST = "encoder.layer.1.output.LayerNorm.bias"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({WORDS: np.zeros((14, 8), np.float32)}, rf"{WORDS} has the shape \(14, 8\), .* \(13, 8\)"),
        ({WORDS: None, LAST: None}, f"lacks weights .*: {WORDS}, {LAST}"),
        ({LAST: np.array([0] * 7 + [np.inf], np.float32)}, f"{LAST} holds numbers that are not"),
        ({LAST: np.full(8, 1e300)}, f"{LAST} holds numbers that are not finite"),
        ({LAST: np.zeros(8, np.int8)}, f"holds {LAST} as I8: weights are F64, F32, F16, BF16"),
        ({"encoder.layer.2.x": np.zeros(1, np.float32)}, "layer.2.x, .* num_hidden_layers = 2"),
        ({f"bert.{LAST}": np.zeros(8, np.float32)}, f"holds the tensor {LAST} twice"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, change, said):
    tensors = {k: v for k, v in (random_tensors(BERT) | change).items() if v is not None}
    write_folder(tmp_path, BERT, tensors)
    with pytest.raises(UserError, match=said):
        read(tmp_path)
    write_folder(tmp_path, {**BERT, "type_vocab_size": 0}, random_tensors(BERT))
    with pytest.raises(UserError, match="token_type_embeddings.weight, .* type_vocab_size = 0"):
        read(tmp_path)


def test_folders_without_what_they_need(tmp_path):
    with pytest.raises(UserError, match="There is no folder .*nowhere: a pretrained encoder"):
        open_folder(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"has no config.json"):
        open_folder(tmp_path)
    write_folder(tmp_path, BERT)
    with pytest.raises(UserError, match="has no weights: they would be model.safetensors"):
        open_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="a pickle, which is not read.*save_pretrained"):
        open_folder(tmp_path)
    write_folder(tmp_path, BERT, random_tensors(BERT))
    assert open_folder(tmp_path).tokenizer == ""
    with pytest.raises(UserError, match="has no tokenizer: .*AutoTokenizer"):
        open_folder(tmp_path).require_tokenizer()
    (tmp_path / "config.json").write_text('{"model_type": ')
    with pytest.raises(UserError, match=r"config.json cannot be read: .*"):
        open_folder(tmp_path)


def test_the_digest_is_of_configuration_weights_and_tokenizer_wherever_they_lie(tmp_path):
    here = tmp_path / "here"
    write_folder(here, BERT, random_tensors(BERT))
    (here / "tokenizer.json").write_text("{}")
    assert open_folder(here).require_tokenizer() == "{}"
    shutil.copytree(here, tmp_path / "there")
    (tmp_path / "there" / "README.md").write_text("more")
    first = open_folder(here).digest
    assert first == open_folder(tmp_path / "there").digest and len(first) == 64
    found = {first}
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        content = (here / name).read_bytes()
        (here / name).write_bytes(content + b" ")
        found.add(open_folder(here).digest)
        (here / name).write_bytes(content)
    assert len(found) == 4 and open_folder(here).digest == first


def test_a_vocabulary_stands_for_a_tokenizer(tmp_path):
    write_folder(tmp_path, BERT, random_tensors(BERT))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nword\n")
    first = open_folder(tmp_path)
    digest = first.digest
    assert json.loads(first.require_tokenizer())["model"]["vocab"]["word"] == 4
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    second = open_folder(tmp_path)
    assert digest != second.digest
    assert json.loads(second.tokenizer)["normalizer"]["lowercase"] is False


# --- config.json ---


def test_an_architecture_survives_json():
    for config in CONFIGS.values():
        a = architecture(config)
        assert Architecture.from_dict(json.loads(json.dumps(dataclasses.asdict(a)))) == a
        assert len({a, architecture(config)}) == 1


def test_older_and_newer_keys_of_modernbert_say_the_same():
    newer = {k: v for k, v in MODERN.items() if not k.startswith(("global", "local_rope"))}
    newer["layer_types"] = ["full_attention", "sliding_attention", "full_attention"]
    newer["rope_parameters"] = {
        "full_attention": {"rope_type": "default", "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20},
    }
    assert architecture(newer) == architecture(MODERN)
    assert architecture(MODERN).modern.local == (False, True, False)
    assert architecture({**MODERN, "local_rope_theta": None}).modern.local_base == 500.0


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ([], "holds no JSON object"),
        ({}, "model_type is missing: .*bert, roberta, xlm-roberta, modernbert, deberta-v2"),
        ({"model_type": "gpt2"}, "model_type is 'gpt2': .* one of bert, roberta"),
        ({"model_type": ["bert"]}, r"model_type is \['bert'\]"),
        ({**BERT, "hidden_size": None}, "lacks hidden_size: a whole number from 1 to 65536"),
        ({**BERT, "hidden_size": -8}, "hidden_size = -8: must be a whole number from 1"),
        ({**BERT, "vocab_size": 10**12}, "vocab_size = 1000000000000: must be a whole"),
        ({**BERT, "vocab_size": 1e12}, r"vocab_size = 1000000000000.0: must be a whole"),
        ({**BERT, "num_hidden_layers": True}, "num_hidden_layers = True: must be a whole"),
        ({**BERT, "num_attention_heads": 3}, "num_attention_heads = 3: must divide hidden_size"),
        ({**BERT, "layer_norm_eps": "x" * 99}, "layer_norm_eps = 'x{59}…: must be a number"),
        ({**BERT, "hidden_dropout_prob": 1.0}, "hidden_dropout_prob = 1.0: must be a number"),
        ({**BERT, "hidden_act": "swish"}, "hidden_act = 'swish': is not computed here; gelu"),
        ({**BERT, "position_embedding_type": "relative_key"}, "is not computed here, only absol"),
        ({**BERT, "is_decoder": True}, "is_decoder = True: is not computed here, only false"),
        ({**BERT, "pad_token_id": 13}, "pad_token_id = 13: must be a whole number from 0 to 12"),
        ({**ROBERTA, "max_position_embeddings": 2}, "must be more than pad_token_id"),
        ({**MODERN, "num_attention_heads": 8}, "must leave heads of an even size, not 1"),
        ({**MODERN, "layer_types": ["full_attention"]}, "must say of each of 3 layers"),
        ({**MODERN, "layer_types": [[], 1, None]}, "must say of each of 3 layers"),
        ({**MODERN, "rope_parameters": {"full_attention": 5}}, "must hold full_attention"),
        ({**MODERN, "rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
         "rope_parameters.full_attention: rope_type = 'yarn': is not computed here"),
        ({**MODERN, "norm_bias": 1}, "norm_bias = 1: must be true or false"),
        ({**DEBERTA, "conv_kernel_size": 3}, "conv_kernel_size = 3: is not computed here"),
        ({**DEBERTA, "relative_attention": False}, "relative_attention = False: is not comp"),
        ({**DEBERTA, "pos_att_type": "p2p"}, "pos_att_type = 'p2p': must name c2p, p2c or"),
        ({**DEBERTA, "pos_att_type": None}, "pos_att_type = None: must name"),
        ({**DEBERTA, "position_buckets": 1}, "position_buckets = 1: must be 2 to 20, or -1"),
        ({**DEBERTA, "norm_rel_ebd": "rms"}, "norm_rel_ebd = 'rms': is not computed here"),
        ({**DEBERTA, "embedding_size": 4}, "embedding_size = 4: is not computed here, only 8"),
    ],
)
def test_a_config_that_is_refused(config, said):
    with pytest.raises(UserError, match=f"^F/config.json.*{said}") as caught:
        read_architecture(config, "F/config.json")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


# --- damaged files ---

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
KEYS = {k for config in CONFIGS.values() for k in config} | {"layer_types", "rope_parameters"}


@given(
    config=st.sampled_from(list(CONFIGS.values())),
    changes=st.dictionaries(st.sampled_from(sorted(KEYS)), JSON, min_size=1, max_size=3),
)
@settings(max_examples=120, deadline=None, database=None)
def test_any_value_in_a_config_is_read_or_refused_in_a_sentence(config, changes):
    try:
        found = read_architecture(config | changes, "config.json")
    except UserError as error:
        assert str(error).count("\n") == 0 and len(str(error)) < 400
    else:
        assert Architecture.from_dict(json.loads(json.dumps(dataclasses.asdict(found)))) == found


@pytest.fixture(scope="module")
def one_folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("pretrained")
    write_folder(path, BERT, random_tensors(BERT))
    return path, (path / "model.safetensors").read_bytes()


HOSTILE = [
    b"",
    b"\x00" * 7,
    b"\x00" * 16,
    b"\xff" * 64,
    (2**40).to_bytes(8, "little") + b"{}",
    *(
        len(text).to_bytes(8, "little") + text + bytes(64)
        for text in (
            b"[]",
            b'"x"',
            b"{",
            b"[" * 100_000,
            b'{"x": 1}',
            b'{"embeddings.x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 64]}}',
            b'{"embeddings.x": {"dtype": "F32", "shape": [9999999999], "data_offsets": [0, 64]}}',
            b'{"embeddings.x": {"dtype": "F32", "shape": [16], "data_offsets": [64, 0]}}',
            b'{"embeddings.x": {"dtype": "F32", "shape": [16], "data_offsets": [-64, 0]}}',
            b'{"embeddings.x": {"dtype": "F32", "shape": "ab", "data_offsets": null}}',
            b'{"embeddings.x": {"dtype": "Q5", "shape": [16], "data_offsets": [0, 64]}}',
            b'{"embeddings.x": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]},'
            b' "embeddings.x": {"dtype": "F32", "shape": [8], "data_offsets": [32, 64]}}',
        )
    ),
]


def test_hostile_headers(one_folder):
    path, content = one_folder
    for hostile in (*HOSTILE, content[:-1], content[: len(content) // 2], content[:5]):
        (path / "model.safetensors").write_bytes(hostile)
        with pytest.raises(UserError, match=r"model.safetensors cannot be read: |lacks weights"):
            read(path)


@given(
    flips=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
    in_header=st.booleans(),
    end=st.floats(0.5, 1.5),
)
@settings(max_examples=100, deadline=None, database=None)
def test_damaged_weights_are_read_or_refused_in_a_sentence(one_folder, flips, in_header, end):
    path, content = one_folder
    damaged = bytearray(content)
    length = 8 + int.from_bytes(content[:8], "little") if in_header else len(content)
    for where, value in flips:
        damaged[math.floor(where * (length - 1))] = value
    (path / "model.safetensors").write_bytes(damaged[: math.ceil(end * len(damaged))])
    try:
        found = read(path)
    except UserError as error:
        assert str(error).count("\n") == 0
    else:
        assert all(np.isfinite(one).all() for one in found.values())


# --- references ---


def test_the_check_says_how_far_a_folder_is_from_its_reference(tmp_path, capsys):
    tensors = random_tensors(ROBERTA)
    write_folder(tmp_path, ROBERTA, tensors)
    assert check_pretrained.main([]) == 2
    assert check_pretrained.main([str(tmp_path)]) == 2
    mask = MASK[:1]
    layers = encode(ROBERTA, tensors, IDS[0], SEGMENTS[0] * 0)
    outputs = {f"hidden_{i}": one[None].astype(np.float32) for i, one in enumerate(layers[:-1])}
    arrays = {"ids": IDS[:1], "mask": mask, "last_hidden_state": layers[-1][None], **outputs}
    np.savez(tmp_path / "reference.npz", **arrays)
    capsys.readouterr()
    assert check_pretrained.main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("hidden_0", "hidden_1", "hidden_2", "last_hidden_state"))
    outputs["hidden_1"][0, 3, 2] += 1e-3
    np.savez(tmp_path / "reference.npz", **arrays)
    assert check_pretrained.main([str(tmp_path)]) == 1
    assert "hidden_1 1.0e-03" in capsys.readouterr().out
    outputs["hidden_1"][0, 3, 2] = np.nan
    np.savez(tmp_path / "reference.npz", **arrays)
    assert check_pretrained.main([str(tmp_path), str(tmp_path / "nowhere")]) == 2
    assert "nan" in capsys.readouterr().out


def test_every_layer_agrees_with_the_references(shared_data: pathlib.Path):
    references = sorted(shared_data.parent.glob("pretrained/*/reference.npz"))
    folders = [
        one.parent
        for one in references
        if json.loads((one.parent / "config.json").read_text())["model_type"] in KINDS
    ]
    if not folders:
        pytest.skip("no ../shared/pretrained beside this checkout")
    for folder in folders:
        differences = check_pretrained.check(os.fspath(folder))
        assert max(differences.values()) < 1e-5, folder
