"""Lists the kinds of pretrained encoders.

A kind is an entry here: the class that describes it, and the module of this folder that has its
`MODULE` and `sources`. Folders are opened by this table, so nothing here imports JAX.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from msajax.encoders.architecture import Architecture
from msajax.encoders.entries import Entries, shown
from msajax.encoders.speech_architecture import SpeechArchitecture
from msajax.errors import UserError

AnyArchitecture = Architecture | SpeechArchitecture
_NO_WEIGHTS = ("position_ids", "token_type_ids")  # which some models are saved with


class Kind(NamedTuple):
    """Says what belongs to a `model_type` of config.json.

    Attributes:
        architecture: reads config.json, and holds what a module must know.
        module: the module of this folder with `MODULE`, its linen module, and `sources`, which
            says which tensor each parameter is.
        prefix: the encoder's name in a model that was saved with a task's head.
        parts: beginnings of the names of the encoder's tensors, up to a dot; all else is a pooler
            or a head.
        keys: the names in config.json of keys that are read here by the names of BERT's, by those.
        usual: values of keys that config.json may lack, by the names of BERT's.
    """

    architecture: type[Architecture] | type[SpeechArchitecture]
    module: str
    prefix: str
    parts: tuple[str, ...] = ("embeddings", "encoder")
    keys: Mapping[str, str] = MappingProxyType({})
    usual: Mapping[str, Any] = MappingProxyType({})

    def holds(self, name: str) -> bool:
        """Says whether a tensor of this name, without the prefix, is a weight of the encoder."""
        first, _, rest = name.partition(".")
        return first in self.parts and not rest.startswith(_NO_WEIGHTS)


_OF_MODERN = ("embeddings", "layers", "final_norm")
_OF_SPEECH = ("feature_extractor", "feature_projection", "encoder", "masked_spec_embed")
KINDS: Mapping[str, Kind] = {
    "bert": Kind(Architecture, "bert", "bert"),
    "roberta": Kind(Architecture, "bert", "roberta"),
    "xlm-roberta": Kind(Architecture, "bert", "roberta"),
    "modernbert": Kind(Architecture, "modernbert", "model", _OF_MODERN),
    "deberta-v2": Kind(Architecture, "deberta", "deberta"),
    "wav2vec2": Kind(SpeechArchitecture, "speech", "wav2vec2", _OF_SPEECH),
    "hubert": Kind(SpeechArchitecture, "speech", "hubert", _OF_SPEECH),
    "wavlm": Kind(SpeechArchitecture, "speech", "wavlm", _OF_SPEECH),
}


def read_architecture(content: Any, where: str) -> AnyArchitecture:
    """Reads a config.json, called `where`; raises `UserError` for a kind or value not known."""
    if not isinstance(content, Mapping):
        raise UserError(f"{where} holds no JSON object: it is no config.json of an encoder.")
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in KINDS:
        said = shown(kind) if "model_type" in content else "missing"
        raise UserError(
            f"{where}: model_type is {said}: an encoder that can be read is one of "
            f"{', '.join(KINDS)}."
        )
    found = KINDS[kind]
    return found.architecture.read(Entries(content, where, found.keys, found.usual))


def architecture_from_dict(values: Mapping[str, Any]) -> AnyArchitecture:
    """Rebuilds an architecture from `dataclasses.asdict`, also after a trip through JSON."""
    return KINDS[values["kind"]].architecture.from_dict(values)
