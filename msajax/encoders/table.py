"""Lists the kinds of pretrained encoders.

A kind is an entry here: the class that describes it, and the module of this folder that has its
`MODULE` and `sources`. Folders are opened by this table, so nothing here imports JAX.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from msajax.encoders.architecture import Architecture
from msajax.encoders.entries import Entries, shown
from msajax.encoders.speech_architecture import SpeechArchitecture
from msajax.errors import UserError

AnyArchitecture = Architecture | SpeechArchitecture


class Kind(NamedTuple):
    """Says what belongs to a `model_type` of config.json.

    Attributes:
        architecture: reads config.json, and holds what a module must know.
        module: the module of this folder with `MODULE`, its linen module, and `sources`, which
            says which tensor each parameter is.
    """

    architecture: type[Architecture] | type[SpeechArchitecture]
    module: str


KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), Kind(Architecture, "bert")),
    "modernbert": Kind(Architecture, "modernbert"),
    "deberta-v2": Kind(Architecture, "deberta"),
    **dict.fromkeys(("wav2vec2", "hubert", "wavlm"), Kind(SpeechArchitecture, "speech")),
}


def read_architecture(content: Any, where: str) -> AnyArchitecture:
    """Reads what a config.json says; messages call it `where`.

    Raises:
        UserError: if it is of no known kind, lacks a size, holds a value of the wrong type or size,
            or asks for what is not computed here.
    """
    if not isinstance(content, Mapping):
        raise UserError(f"{where} holds no JSON object: it is no config.json of an encoder.")
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in KINDS:
        said = shown(kind) if "model_type" in content else "missing"
        raise UserError(
            f"{where}: model_type is {said}: an encoder that can be read is one of "
            f"{', '.join(KINDS)}."
        )
    return KINDS[kind].architecture.read(Entries(content, where))


def architecture_from_dict(values: Mapping[str, Any]) -> AnyArchitecture:
    """Rebuilds an architecture from its `to_dict`, also after a trip through JSON."""
    return KINDS[values["kind"]].architecture.from_dict(values)
