"""Opens folders of pretrained encoders, in the layout of the Hugging Face hub."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import safetensors

from msajax.encoders.table import KINDS, AnyArchitecture, read_architecture
from msajax.encoders.tokens import json_of_vocabulary
from msajax.errors import UserError, first_line, reading
from msajax.files import digest_of, meant, read_json

_CONFIG, _TOKENIZER, _VOCABULARY = "config.json", "tokenizer.json", "vocab.txt"
_TOKENIZER_SETTINGS, _PREPROCESSOR = "tokenizer_config.json", "preprocessor_config.json"
# All that a folder is read for; weights that are pickles stay where they are.
_FILES = [
    "config.json",
    "preprocessor_config.json",
    "vocab.txt",
    "tokenizer*.json",
    "*.safetensors",
    "*.index.json",
]
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_LONGEST_HEADER = 100_000_000  # bytes; safetensors has the same bound

# The layer behind the first piece, as BERT's own pretraining and some heads have it.
POOLER = re.compile(r"pooler\.dense\.")
# A weight that is stored as its length and its direction, in the newer and the older names.
_LENGTH = (".parametrizations.weight.original0", ".weight_g")
_DIRECTION = (".parametrizations.weight.original1", ".weight_v")
_FLOATS = ("F64", "F32", "F16", "BF16")


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
            f"{first_line(error).rstrip('.')}. With a folder of that model, model.encoders "
            "needs no network."
        ) from error


@dataclasses.dataclass(frozen=True)
class Folder:
    """Holds what is known of a folder with a pretrained encoder."""

    path: str
    architecture: AnyArchitecture

    @functools.cached_property
    def digest(self) -> str:
        """The sha256 of the configuration, the weights and the tokenizer, wherever they lie."""
        names = [_CONFIG, *weight_files(self.path)]
        if self.architecture.reads == "waveform" and self._has(_PREPROCESSOR):
            names.append(_PREPROCESSOR)
        if self._has(_TOKENIZER):
            names.append(_TOKENIZER)
        elif self._has(_VOCABULARY):
            names += [_VOCABULARY, *[_TOKENIZER_SETTINGS] * self._has(_TOKENIZER_SETTINGS)]
        digest = hashlib.sha256()
        for name in names:
            path = os.path.join(self.path, name)
            with reading(path):
                digest.update(f"{name} {digest_of(path)}\n".encode())
        return digest.hexdigest()

    @functools.cached_property
    def tokenizer(self) -> str:
        """The text of a tokenizer.json, made of vocab.txt if need be; "" if there is neither."""
        if self._has(_TOKENIZER):
            return _read_text(os.path.join(self.path, _TOKENIZER))
        if not self._has(_VOCABULARY):
            return ""
        path, settings = os.path.join(self.path, _VOCABULARY), {}
        if self._has(_TOKENIZER_SETTINGS):
            settings = read_json(os.path.join(self.path, _TOKENIZER_SETTINGS))
        return json_of_vocabulary(_read_text(path), settings, path)

    def require_tokenizer(self) -> str:
        """Returns the text of a tokenizer.json; raises `UserError` if the folder has none."""
        if not self.tokenizer:
            raise UserError(
                f"{self.path} has no tokenizer: it would be {_TOKENIZER} or {_VOCABULARY}; where "
                'transformers is installed, this command writes the first: python -c "from '
                f"transformers import AutoTokenizer as A; A.from_pretrained({self.path!r})"
                f'.save_pretrained({self.path!r})".'
            )
        return self.tokenizer

    def check_weights(self) -> None:
        """Raises `UserError` for files of weights that are damaged or cut short."""
        for name in weight_files(self.path):
            with _open_weights(os.path.join(self.path, name)):
                pass

    def tensors(self, wanted: re.Pattern | None = None) -> dict[str, np.ndarray]:
        """Reads the tensors of the encoder as float32, without poolers and heads; or other ones.

        Names are those of an encoder that was saved alone, in today's spelling: what a task's head
        prefixes is taken off, and the `gamma` and `beta` of old norms are `weight` and `bias`.

        Raises:
            UserError: if a file is missing or damaged, if a tensor is missing, stored twice, or of
                another type than floats of 16, 32 or 64 bits, or if a number is not finite.
        """
        kind = KINDS[self.architecture.kind]
        tensors: dict[str, np.ndarray] = {}
        stored: dict[str, str] = {}  # the file of each tensor
        for file, listed in weight_files(self.path).items():
            path = os.path.join(self.path, file)
            with _open_weights(path) as (entries, reader):
                for name in sorted(listed - entries.keys()):
                    raise UserError(f"{path} lacks the tensor {name}, which {INDEX} says is in it.")
                for full_name, entry in entries.items():
                    name = full_name.removeprefix(f"{kind.prefix}.")
                    if name.endswith(("LayerNorm.gamma", "LayerNorm.beta")):
                        name = name.replace(".gamma", ".weight").replace(".beta", ".bias")
                    if name in stored:
                        raise UserError(
                            f"{self.path} holds the tensor {name} twice: in {stored[name]} and in "
                            f"{file}."
                        )
                    stored[name] = file
                    if wanted.match(name) if wanted else kind.holds(name):
                        tensors[name] = _float32(path, reader, full_name, entry)
        return _multiplied(tensors)

    def _has(self, name: str) -> bool:
        return os.path.isfile(os.path.join(self.path, name))


def _multiplied(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Makes weights of lengths and directions; what does not fit stays as it is, and is missed."""
    found = dict(tensors)
    for length, direction in zip(_LENGTH, _DIRECTION, strict=True):
        for name in [name for name in tensors if name.endswith(length)]:
            of = name.removesuffix(length)
            g, v = tensors[name], tensors.get(of + direction)
            if v is None or g.ndim != v.ndim:
                continue
            if any(one not in (1, size) for one, size in zip(g.shape, v.shape, strict=True)):
                continue
            axes = tuple(axis for axis, size in enumerate(g.shape) if size == 1)
            norm = np.sqrt(np.square(v, dtype=np.float64).sum(axes, keepdims=True))
            del found[name], found[of + direction]
            found[f"{of}.weight"] = (g * (v / np.maximum(norm, 1e-300))).astype(np.float32)
    return found


def open_folder(path: str | os.PathLike) -> Folder:
    """Opens an encoder's folder, not yet its weights; raises `UserError` if it is not one."""
    path = os.path.expanduser(path)
    if not os.path.isdir(path):
        expected = (
            f": a pretrained encoder is a folder with {_CONFIG}, model.safetensors and, of text, a "
            "tokenizer; --download fetches a name on the Hugging Face hub."
        )
        raise UserError(f"There is no folder {path}{meant(path) or expected}")
    config = os.path.join(path, _CONFIG)
    if not os.path.isfile(config):
        raise UserError(f"{path} has no {_CONFIG}: it is no folder of a pretrained encoder.")
    architecture = read_architecture(read_json(config), config)
    preprocessor = os.path.join(path, _PREPROCESSOR)
    if architecture.reads == "waveform" and os.path.isfile(preprocessor):
        architecture = architecture.with_preprocessor(read_json(preprocessor), preprocessor)
    weight_files(path)
    return Folder(path, architecture)


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error


def weight_files(folder: str) -> dict[str, frozenset[str]]:
    """Finds the files of a folder's weights.

    Returns:
        By the name of each file the tensors that the index of shards says are in it; none for a
        single file.

    Raises:
        UserError: if there is none, if it is a pickle, or if the index is damaged or names what is
            no plain file of the folder.
    """
    if os.path.isfile(os.path.join(folder, SINGLE)):
        return {SINGLE: frozenset()}
    index = os.path.join(folder, INDEX)
    if not os.path.isfile(index):
        if any(os.path.isfile(os.path.join(folder, name)) for name in _PICKLES):
            raise UserError(
                f"{folder} has its weights as {_PICKLES[0]}, a pickle, which is not read: where "
                "PyTorch and transformers are installed, this writes them as safetensors: python "
                f'-c "from transformers import AutoModel as A; A.from_pretrained({folder!r})'
                f'.save_pretrained({folder!r})".'
            )
        raise UserError(f"{folder} has no weights: they would be {SINGLE}, or shards and {INDEX}.")

    content = _parsed(index, lambda file: file.read())
    found = content.get("weight_map") if isinstance(content, dict) else None
    if not (isinstance(found, dict) and found and all(isinstance(v, str) for v in found.values())):
        raise UserError(f"{index} has no weight_map, which would name the file of each tensor.")
    shards: dict[str, set[str]] = {}
    for name, file in found.items():
        shards.setdefault(file, set()).add(name)

    # A shard is a file of the folder itself, by its name and not through a link.
    inside = [os.path.realpath(folder)]
    snapshots = os.path.dirname(inside[0])
    if os.path.basename(snapshots) == "snapshots":  # the hub's cache: its files are links to blobs
        inside.append(os.path.join(os.path.dirname(snapshots), "blobs"))
    for file in shards:
        if not re.fullmatch(r"[\w-][\w. -]*\.safetensors", file):
            raise UserError(
                f"{index} names the file {file[:80]!r}: a shard is a file of the same folder, "
                "whose plain name ends in .safetensors."
            )
        path = os.path.join(folder, file)
        if not os.path.isfile(path):
            raise UserError(f"{folder} lacks {file}, which {INDEX} names.")
        if os.path.dirname(os.path.realpath(path)) not in inside:
            raise UserError(f"{path} is a link out of the folder: put the file itself there.")
    return {file: frozenset(names) for file, names in sorted(shards.items())}


@contextlib.contextmanager
def _open_weights(path: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Opens a safetensors file: its header by tensor, and the library's reader of it."""
    entries = _parsed(path, _read_header)
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


def _read_header(file: Any) -> bytes:
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


def _float32(path: str, reader: Any, name: str, entry: Any) -> np.ndarray:
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
