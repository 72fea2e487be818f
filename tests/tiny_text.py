"""Tokenizers and text encoders of a few pieces, made here."""

import dataclasses
import json
import pathlib

import numpy as np
import safetensors.numpy
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from msajax.encoders.architecture import Architecture
from msajax.encoders.table import read_architecture
from msajax.encoders.tokens import json_of_vocabulary
from msajax.errors import UserError

PIECES = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "good", "film", "##s", "##ed", "un", "##good"),
    *("!", "'", "é", "你", "##b"),
)
"""Token ids are their places: [CLS] is 2, [SEP] 3, a 4, b 5, good 6, film 7, ##s 8 …"""

WORDPIECE = json_of_vocabulary("\n".join(PIECES) + "\n", {}, "vocab.txt")


def byte_level() -> str:
    """A tokenizer as RoBERTa's, whose pieces hold the space before a word: "Ġa" is not "a"."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "<pad>", "</s>"]
    merges = [("Ġ", "a"), ("Ġ", "b"), ("Ġa", "b"), ("a", "b"), ("g", "o"), ("go", "o")]
    pieces = [*special, *letters, *map("".join, merges)]
    made = tokenizers.Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
    made.add_special_tokens(special)
    return made.to_str()


def unigram() -> str:
    """A tokenizer as XLM-R's and DeBERTa-v3's, which marks where words begin."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    scores = {"▁": -2, "▁a": -1, "a": -3, "b": -3, "▁ab": -2.5, "good": -2, "▁good": -1, "o": -4}
    pieces = [*((piece, 0.0) for piece in special), *scores.items()]
    made = tokenizers.Tokenizer(models.Unigram(pieces, 3, False))
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    made.add_special_tokens(special)
    return made.to_str()


TOKENIZERS = {"wordpiece": WORDPIECE, "byte level": byte_level(), "unigram": unigram()}


def altered(**changes) -> str:
    """The content of a tokenizer.json with some of its entries replaced."""
    return json.dumps(json.loads(WORDPIECE) | changes)


CONTENT = {
    "model_type": "bert",
    "vocab_size": len(PIECES),
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
}
"""The config.json of a BERT of width 8 for these pieces."""


def architecture(**changes) -> Architecture:
    """That BERT, with some of the settings replaced."""
    return read_architecture(CONTENT | changes, "config.json")


@dataclasses.dataclass(frozen=True)
class Encoder:
    """What an opened folder says of an encoder, without a folder."""

    architecture: Architecture = architecture()
    path: str = "FOLDER"
    tokenizer: str = WORDPIECE
    digest: str = "0" * 64

    def require_tokenizer(self) -> str:
        if not self.tokenizer:
            raise UserError("FOLDER has no tokenizer.")
        return self.tokenizer


def write_folder(folder: pathlib.Path, seed: int = 0, **changes) -> str:
    """Writes the folder of a BERT of width 8 with random weights; returns its path."""
    a, rng = architecture(**changes), np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}

    def add(name: str, *shape: int) -> None:
        tensors[name] = rng.normal(size=shape).astype(np.float32) * 0.3

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = 1 + rng.normal(size=a.width).astype(np.float32) * 0.1
        add(f"{name}.bias", a.width)

    def dense(name: str, inner: int, outer: int) -> None:
        add(f"{name}.weight", outer, inner)
        add(f"{name}.bias", outer)

    rows = {"word": a.vocabulary, "position": a.positions, "token_type": a.segments}
    for name, size in rows.items():
        add(f"embeddings.{name}_embeddings.weight", size, a.width)
    norm("embeddings.LayerNorm")
    for layer in (f"encoder.layer.{i}" for i in range(a.layers)):
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            dense(f"{layer}.attention.{name}", a.width, a.width)
        dense(f"{layer}.intermediate.dense", a.width, a.ff_dim)
        dense(f"{layer}.output.dense", a.ff_dim, a.width)
        norm(f"{layer}.attention.output.LayerNorm")
        norm(f"{layer}.output.LayerNorm")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONTENT | changes))
    (folder / "tokenizer.json").write_text(WORDPIECE)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return str(folder)
