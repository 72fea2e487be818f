"""Opens folders of pretrained text encoders, in the layout of the Hugging Face hub."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import safetensors

from msajax.encoders.architecture import Architecture
from msajax.encoders.tokens import json_of_vocabulary
from msajax.errors import UserError, first_line
from msajax.files import read_json

# All that a folder is read for; weights that are pickles stay where they are.
_FILES = ["config.json", "vocab.txt", "tokenizer*.json", "*.safetensors", "*.index.json"]


def fetch(name: str) -> str:
    """Returns the folder of a hub's name, as google-bert/bert-base-uncased, fetching what it lacks.

    A name that is a folder is returned as it is, and nothing is fetched.

    Raises:
        UserError: if it cannot be fetched, or what fetches it is not installed.
    """
    if os.path.isdir(name):
        return name
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError(
            "--download needs huggingface_hub: pip install -r requirements-text.txt."
        ) from error
    try:
        return huggingface_hub.snapshot_download(name, allow_patterns=_FILES)
    except Exception as error:  # of the library, of the network, of the disk: many kinds
        raise UserError(
            f"--download: {name} cannot be fetched from the Hugging Face hub: "
            f"{first_line(error).rstrip('.')}. With a folder of that model, model.text_encoder "
            "needs no network."
        ) from error


_CONFIG, _TOKENIZER, _VOCABULARY = "config.json", "tokenizer.json", "vocab.txt"
_TOKENIZER_SETTINGS = "tokenizer_config.json"


@dataclasses.dataclass(frozen=True)
class Folder:
    """Holds what is known of a folder with a pretrained text encoder.

    Attributes:
        path: where it is.
        architecture: what its config.json says.
    """

    path: str
    architecture: Architecture

    @functools.cached_property
    def digest(self) -> str:
        """The sha256 of the configuration, the weights and the tokenizer, wherever they lie."""
        names = [_CONFIG, *weight_files(self.path)]
        if self._has(_TOKENIZER):
            names.append(_TOKENIZER)
        elif self._has(_VOCABULARY):
            names += [_VOCABULARY, *[_TOKENIZER_SETTINGS] * self._has(_TOKENIZER_SETTINGS)]
        digest = hashlib.sha256()
        for name in names:
            path = os.path.join(self.path, name)
            try:
                with open(path, "rb") as file:
                    one = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror}.") from error
            digest.update(f"{name} {one}\n".encode())
        return digest.hexdigest()

    @functools.cached_property
    def tokenizer(self) -> str:
        """The text of a tokenizer.json, made of vocab.txt if need be; "" if there is neither."""
        if self._has(_TOKENIZER):
            return _text(os.path.join(self.path, _TOKENIZER))
        if not self._has(_VOCABULARY):
            return ""
        path, settings = os.path.join(self.path, _VOCABULARY), {}
        if self._has(_TOKENIZER_SETTINGS):
            settings = read_json(os.path.join(self.path, _TOKENIZER_SETTINGS))
        return json_of_vocabulary(_text(path), settings, path)

    def require_tokenizer(self) -> str:
        """Returns the text of a tokenizer.json; raises `UserError` if the folder has none."""
        if not self.tokenizer:
            raise UserError(
                f"{self.path} has no tokenizer: it would be {_TOKENIZER} or {_VOCABULARY}; where "
                "transformers is installed, this command writes the first: python -c \"from "
                f"transformers import AutoTokenizer as A; A.from_pretrained({self.path!r})"
                f".save_pretrained({self.path!r})\"."
            )
        return self.tokenizer

    def tensors(self) -> dict[str, np.ndarray]:
        """Reads the weights of the encoder as float32, by the names of the architecture.

        Raises:
            UserError: see `weights.read_tensors`.
        """
        return read_tensors(self.path)

    def _has(self, name: str) -> bool:
        return os.path.isfile(os.path.join(self.path, name))


def open_folder(path: str | os.PathLike) -> Folder:
    """Opens a folder of a pretrained text encoder; its weights are read when they are asked for.

    Raises:
        UserError: if there is no folder, or no config.json of a known encoder, or no weights.
    """
    path = os.path.expanduser(path)
    if not os.path.isdir(path):
        raise UserError(
            f"There is no folder {path}: a pretrained text encoder is a folder with {_CONFIG}, "
            "model.safetensors and a tokenizer; --download fetches a name on the Hugging Face hub."
        )
    config = os.path.join(path, _CONFIG)
    if not os.path.isfile(config):
        raise UserError(f"{path} has no {_CONFIG}: it is no folder of a pretrained text encoder.")
    folder = Folder(path, Architecture.read(read_json(config), config))
    weight_files(path)
    return folder


def _text(path: str) -> str:
    """Reads a text file."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error


SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_LONGEST_HEADER = 100_000_000  # bytes; safetensors has the same bound

# A model that was saved with a task's head has its encoder under such a name.
_PREFIX = re.compile(r"(bert|roberta|deberta|model)\.")
# All else is a pooler or the head of a task. Positions and segments are no weights there.
_NO_WEIGHT = r"(?!position_ids|token_type_ids)"
_OF_AN_ENCODER = re.compile(rf"(embeddings|encoder|layers|final_norm)\.{_NO_WEIGHT}")
_FLOATS = ("F64", "F32", "F16", "BF16")


def weight_files(folder: str) -> dict[str, frozenset[str]]:
    """Finds the files of a folder's weights.

    Returns:
        The name of each file, and which tensors the index of shards says are in it; of a single
        file none.

    Raises:
        UserError: if there is none, if it is a pickle, or if the index is damaged or names what is
            no plain file of the folder.
    """
    if os.path.isfile(os.path.join(folder, SINGLE)):
        return {SINGLE: frozenset()}
    if os.path.isfile(os.path.join(folder, INDEX)):
        return _shards(folder)
    if any(os.path.isfile(os.path.join(folder, name)) for name in _PICKLES):
        raise UserError(
            f"{folder} has its weights as {_PICKLES[0]}, a pickle, which is not read: where "
            "PyTorch and transformers are installed, this writes them as safetensors: python -c "
            f'"from transformers import AutoModel as A; A.from_pretrained({folder!r})'
            f'.save_pretrained({folder!r})".'
        )
    raise UserError(f"{folder} has no weights: they would be {SINGLE}, or shards and {INDEX}.")


def read_tensors(folder: str) -> dict[str, np.ndarray]:
    """Reads the tensors of a folder's encoder as float32, without poolers and heads.

    Names are those of an encoder that was saved alone, in today's spelling: what a task's head
    prefixes is taken off, and the `gamma` and `beta` of old norms are `weight` and `bias`.

    Raises:
        UserError: if a file is missing or damaged, if a tensor is missing, stored twice, or of
            another type than floats of 16, 32 or 64 bits, or if a number is not finite.
    """
    tensors: dict[str, np.ndarray] = {}
    stored: dict[str, str] = {}  # the file of each tensor
    for file, listed in weight_files(folder).items():
        path = os.path.join(folder, file)
        with _opened(path) as (entries, reader):
            for name in sorted(listed - entries.keys()):
                raise UserError(f"{path} lacks the tensor {name}, which {INDEX} says is in it.")
            for full_name, entry in entries.items():
                name = _plain(full_name)
                if name in stored:
                    raise UserError(
                        f"{folder} holds the tensor {name} twice: in {stored[name]} and in {file}."
                    )
                stored[name] = file
                if _OF_AN_ENCODER.match(name):
                    tensors[name] = _float32(path, reader, full_name, entry)
    return tensors


def _shards(folder: str) -> dict[str, frozenset[str]]:
    """Reads which shards the index names, and which tensors it says are in each."""
    path = os.path.join(folder, INDEX)
    content = _parsed(path, lambda file: file.read())
    found = content.get("weight_map") if isinstance(content, dict) else None
    if not (isinstance(found, dict) and found and all(isinstance(v, str) for v in found.values())):
        raise UserError(f"{path} has no weight_map, which would name the file of each tensor.")
    shards: dict[str, set[str]] = {}
    for name, file in found.items():
        shards.setdefault(file, set()).add(name)
    for file in shards:
        _require_plain(folder, file)
    return {file: frozenset(names) for file, names in sorted(shards.items())}


def _require_plain(folder: str, file: str) -> None:
    """Refuses a shard that is no file of the folder itself, by its name or through a link."""
    index = os.path.join(folder, INDEX)
    if not re.fullmatch(r"[\w-][\w. -]*\.safetensors", file):
        raise UserError(
            f"{index} names the file {file[:80]!r}: a shard is a file of the same folder, whose "
            "plain name ends in .safetensors."
        )
    path = os.path.join(folder, file)
    if not os.path.isfile(path):
        raise UserError(f"{folder} lacks {file}, which {INDEX} names.")
    inside = [os.path.realpath(folder)]
    snapshots = os.path.dirname(inside[0])
    if os.path.basename(snapshots) == "snapshots":  # the hub's cache: its files are links to blobs
        inside.append(os.path.join(os.path.dirname(snapshots), "blobs"))
    if os.path.dirname(os.path.realpath(path)) not in inside:
        raise UserError(f"{path} is a link out of the folder: put the file itself there.")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Opens a safetensors file: its header by tensor, and the library's reader of it.

    Raises:
        UserError: if it is damaged.
    """
    entries = _parsed(path, _header)
    if not isinstance(entries, dict):
        raise UserError(f"{path} cannot be read: its header is no JSON object.")
    entries.pop("__metadata__", None)
    try:
        with safetensors.safe_open(path, framework="numpy") as reader:
            # The library checks that every tensor lies within the file, and that none overlap.
            yield entries, reader
    except UserError:
        raise
    except (OSError, ValueError, LookupError, safetensors.SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {first_line(error)}.") from error


def _header(file: Any) -> bytes:
    """Reads the header of a safetensors file, whose length its first eight bytes say."""
    length = int.from_bytes(file.read(8), "little")
    left = os.fstat(file.fileno()).st_size - 8
    if not 0 < length <= min(left, _LONGEST_HEADER):
        raise ValueError(
            f"it is truncated or no safetensors file: its header would have {length} of "
            f"{max(left, 0)} bytes"
        )
    return file.read(length)


def _parsed(path: str, read: Any) -> Any:
    """Parses what `read` takes out of a file as JSON in which every key occurs once."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"it lists {key[:80]!r} twice")
            found[key] = value
        return found

    try:
        with open(path, "rb") as file:
            return json.loads(read(file), object_pairs_hook=once)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {first_line(error)}.") from error


def _plain(name: str) -> str:
    """Returns the name of a tensor in an encoder that was saved alone, in today's spelling."""
    name = _PREFIX.sub("", name, count=1) if _PREFIX.match(name) else name
    if name.endswith(("LayerNorm.gamma", "LayerNorm.beta")):
        return name.replace(".gamma", ".weight").replace(".beta", ".bias")
    return name


def _float32(path: str, reader: Any, name: str, entry: Any) -> np.ndarray:
    """Reads one tensor as float32."""
    kind = entry["dtype"]
    if kind not in _FLOATS:
        raise UserError(f"{path} holds {name} as {kind}: weights are {', '.join(_FLOATS)}.")
    if kind == "BF16":  # the upper half of a float32, and no type of numpy
        begin, end = entry["data_offsets"]
        with open(path, "rb") as file:
            header = int.from_bytes(file.read(8), "little")
            file.seek(header + begin, os.SEEK_CUR)
            bits = np.frombuffer(file.read(end - begin), "<u2").astype(np.uint32)
        array = (bits << 16).view(np.float32).reshape(entry["shape"])
    else:
        with np.errstate(over="ignore"):  # what overflows is refused below
            array = reader.get_tensor(name).astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        raise UserError(f"{path}: the tensor {name} holds numbers that are not finite.")
    return array


class Source(NamedTuple):
    """Says where a parameter comes from.

    Attributes:
        name: of the tensor.
        shape: of the tensor as it is stored.
        read: makes the parameter of the tensor.
    """

    name: str
    shape: tuple[int, ...]
    read: Callable[[np.ndarray], np.ndarray]


_SEGMENTS = "embeddings.token_type_embeddings.weight"

Sources = dict[str, Source]  # by the path of the parameter, joined by /


def affine(
    path: str, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], *, bias: bool = True
) -> Sources:
    """Maps an affine map, which is stored as `[O, I]`, to an `AffineLayer` of these sizes."""
    written = math.prod(outputs)
    found = {
        f"{path}/kernel": Source(
            f"{name}.weight",
            (written, math.prod(inputs)),
            lambda weight: weight.T.reshape(*inputs, *outputs),
        )
    }
    if bias:
        of_bias = Source(f"{name}.bias", (written,), lambda one: one.reshape(outputs))
        found[f"{path}/bias"] = of_bias
    return found


def norm(path: str, name: str, width: int, *, bias: bool = True) -> Sources:
    """Maps a layer norm."""
    names = {"scale": "weight", "bias": "bias"} if bias else {"scale": "weight"}
    return {f"{path}/{k}": Source(f"{name}.{v}", (width,), np.asarray) for k, v in names.items()}


def table(path: str, name: str, rows: int, width: int, *, first: int = 0) -> Sources:
    """Maps an embedding table of `rows` rows after `first` that no step ever reads."""
    shape = (first + rows, width)
    return {f"{path}/embedding": Source(f"{name}.weight", shape, lambda one: one[first:])}


def read_parameters(
    sources: Sources, tensors: Mapping[str, np.ndarray], where: str
) -> dict[str, np.ndarray]:
    """Makes parameters of tensors.

    Args:
        sources: what each parameter is made of.
        tensors: by name.
        where: what messages call them.

    Returns:
        A float32 array for each path.

    Raises:
        UserError: for a tensor that is missing, of another shape, or of a layer too many.
    """
    names = {source.name: source for source in sources.values()}
    missing = [name for name in names if name not in tensors]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise UserError(
            f"{where} lacks weights that its config.json asks for: {', '.join(missing[:3])}{more}."
        )
    for name, source in names.items():
        if tensors[name].shape != source.shape:
            raise UserError(
                f"{where}: the tensor {name} has the shape {tensors[name].shape}, and config.json "
                f"asks for {source.shape}."
            )
    if _SEGMENTS in tensors and _SEGMENTS not in names:
        raise UserError(
            f"{where} holds the tensor {_SEGMENTS}, but its config.json says type_vocab_size = 0."
        )
    deepest = max(map(_layer, names))
    for name in tensors:
        if _layer(name) > deepest:
            raise UserError(
                f"{where} holds the tensor {name}, but its config.json says num_hidden_layers = "
                f"{deepest + 1}."
            )
    return {
        path: np.ascontiguousarray(source.read(tensors[source.name]), np.float32)
        for path, source in sources.items()
    }


def _layer(name: str) -> int:
    """Returns the number of the layer that a tensor belongs to, or -1."""
    found = re.match(r"(?:encoder\.layer|layers)\.(\d{1,6})\.", name)
    return int(found[1]) if found else -1
