"""Lists the models that a configuration can name, and lets users add their own.

A model has an entry, perhaps with settings of its own, and declares a `msajax.Model`. Those of this
package are in `models/table.py`; nothing here imports JAX.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import inspect
import logging
import os
import sys
import typing
from collections.abc import Collection
from typing import Any

from msajax.checks import Settings
from msajax.errors import UserError, user_failure, user_line
from msajax.models.table import MODELS, RegisteredModel
from msajax.tasks import TASKS

logger = logging.getLogger(__name__)


_MODELS = dict(MODELS)
# Settings of `model.*` that the rest of the program reads, whatever the model is.
OF_EVERY_MODEL = ("name", "task", "init_from", "modalities", "own")
RESERVED: set[str] = set()  # settings of `model.*`, which `model.py` adds: no model has such a name


def is_own(name: str) -> bool:
    """Says whether a model is of this package: one from outside may read what has changed since."""
    return not _MODELS[name].origin


def register_model(
    name: str,
    model: Any,
    settings: type[Settings] | None = None,
    task: str = "",
    reads: Collection[str] | None = None,
) -> None:
    """Makes a model of your own known as `model.name = name`.

    A file that is read twice registers its models twice; the last one counts.

    Args:
        name: letters, digits and _, after a letter.
        model: a `msajax.Model`, or a linen module alone, which takes `(config, spec)`.
        settings: a frozen dataclass over `msajax.Settings` whose fields have defaults: the keys
            `model.<name>.*`. The module finds it as `config.own`.
        task: the only task that the model is for; "" for whichever the labels ask for.
        reads: names of the settings of `model.*` that it reads, as `("model_dim",)`: any other one
            is refused when it is set. None allows all.

    Raises:
        UserError: naming the line that calls it, for a name that is taken by this package or cannot
            be a key, and for a model, settings, a task or keys that are none.
    """
    here = f"{user_line()}register_model"
    if not isinstance(name, str):
        raise UserError(f"{here}: the name {name!r} must be text.")
    known = _MODELS.get(name)
    is_key = name.isascii() and name.isidentifier()
    if not is_key or name in RESERVED or (known and not known.origin):
        raise UserError(
            f"{here}: the name {name!r} cannot be used: choose letters, digits and _, and "
            "none that a model or a setting of msajax has."
        )
    # A declaration was checked when it was made. Nothing here imports JAX; who has made one has.
    contract = sys.modules.get("msajax.models.contract")
    if contract is not None and isinstance(model, contract.Model):
        _require_use(model.module, here)
    else:
        require_module(model, here, "a msajax.Model or a flax.linen.Module")
        _require_use(model, here)
    if settings is not None and not _are_settings(settings):
        raise UserError(
            f"{here}: the settings of {name!r} must be a frozen dataclass that inherits "
            "from msajax.Settings, and whose fields have defaults and are int, float, str, bool or "
            "tuples of one of these."
        )
    if task != "" and task not in tuple(TASKS):
        raise UserError(f"{here}: task = {task!r} must be one of {', '.join(TASKS)}.")
    unknown = sorted(set(reads or ()) - RESERVED) if not isinstance(reads, str) else [reads]
    if unknown:
        raise UserError(f"{here}: reads names {unknown[0]!r}, which is no setting of model.*.")
    caller = inspect.currentframe().f_back  # by its file: nobody may be able to import its module
    origin, digest = caller.f_code.co_filename, ""
    with contextlib.suppress(OSError), open(origin, "rb") as file:  # a notebook's cell is no file
        digest = hashlib.sha256(file.read()).hexdigest()
    read = None if reads is None else tuple(reads)
    _MODELS[name] = RegisteredModel(
        "", settings, read, task, declared=model, origin=origin, digest=digest
    )


def require_module(module: Any, where: str, wanted: str = "a flax.linen.Module") -> None:
    """Raises `UserError` for what is no class of linen modules, an instance of one too.

    The message begins with `where`, and says what is `wanted`.
    """
    linen = sys.modules.get("flax.linen")  # there if this is a module
    if linen is not None and isinstance(module, linen.Module):
        raise UserError(
            f"{where}: the module is an instance of {type(module).__name__}: give the class, which "
            "is built with (config, spec)."
        )
    if linen is None or not (isinstance(module, type) and issubclass(module, linen.Module)):
        raise UserError(f"{where}: the module = {module!r} must be {wanted}.")


def _require_use(module: Any, where: str) -> None:
    """Refuses modules that are not built with `(config, spec)` or not called as models are."""
    own = [f for f in dataclasses.fields(module) if f.init and f.name not in ("parent", "name")]
    missing = dataclasses.MISSING
    if len(own) < 2 or any(f.default is f.default_factory is missing for f in own[2:]):
        raise UserError(
            f"{where}: the module {module.__name__} must have two attributes to begin with, config "
            "and spec, and none after them without a default."
        )
    try:
        inspect.signature(module.__call__).bind(None, {}, {}, train=True)
    except TypeError as error:
        raise UserError(
            f"{where}: the call of the module {module.__name__} must take (features, masks, *, "
            "train=False)."
        ) from error


def _are_settings(settings: Any) -> bool:
    if not (isinstance(settings, type) and issubclass(settings, Settings)):
        return False
    parameters = getattr(settings, "__dataclass_params__", None)
    fields = dataclasses.fields(settings) if parameters else ()
    missing = dataclasses.MISSING
    with_default = (f.default is not missing or f.default_factory is not missing for f in fields)
    try:
        kinds = [typing.get_type_hints(settings)[f.name] for f in fields]
    except NameError:
        return False
    plain = all(k in (int, float, str, bool) or typing.get_origin(k) is tuple for k in kinds)
    return bool(parameters and parameters.frozen and all(with_default) and plain)


def registered() -> dict[str, RegisteredModel]:
    """Returns every model that can be named."""
    return dict(_MODELS)


def load_models_from(path: str) -> None:
    """Runs a Python file of the user's that registers models; raises `UserError` if it fails."""
    if not os.path.isfile(path):
        raise UserError(f"--models={path}: there is no such file.")
    path = os.path.abspath(path)  # as tracebacks name it
    spec = importlib.util.spec_from_file_location("msajax_models_of_user", path)
    try:
        if spec is None or spec.loader is None:
            raise ImportError("it is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise UserError(f"--models={path}{user_failure(path, error)}") from error


def warn_of_other_source(name: str, digest: str, what: str) -> None:
    """Warns if the file that registers a model is another one than when `what` was made with it.

    The file then had this digest; "" if there was none.
    """
    here = _MODELS[name]
    if digest and here.digest and digest != here.digest:
        logger.warning(
            "%s is not as it was when %s was made: if the model %r computes something else now, "
            "its numbers are no longer those.",
            here.origin,
            what,
            name,
        )


def is_registered(name: str) -> bool:
    """Says whether a model of that name is registered."""
    return name in _MODELS
