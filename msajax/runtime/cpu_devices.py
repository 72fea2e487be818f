"""Chooses how many virtual CPU devices a run has, before JAX starts: it cannot change them after.

Random seeds on devices of their own use all cores where the products of one seed are too small to.
"""

import logging
import os

import jax

from msajax.config import Config, MeshConfig
from msajax.errors import UserError

logger = logging.getLogger(__name__)

OTHERWISE = 1  # the automatic number where none of its exceptions holds
_UNSET = -1  # JAX's own value
_number_set = _UNSET  # by a run of this process


def automatic(config: Config) -> int:
    """Returns how many devices a run takes at its first start, if nobody names a number."""
    platforms = jax.config.jax_platforms or "cpu"  # whatever else JAX finds is used in their place
    if jax.distributed.is_initialized() or config.mesh.mode == "pmap" or platforms != "cpu":
        return 1
    return OTHERWISE


def choose(config: Config, recorded: int | None) -> None:
    """Sets the number of virtual CPU devices of a run, unless its surroundings have set one.

    A run that goes on takes the number of its start again, also on fewer cores: other numbers of
    devices round otherwise. Where JAX finds accelerators, the run uses those.

    Args:
        config: the experiment, whose `mesh.cpu_devices` counts if it is not 0.
        recorded: the number with which the run was started before, if it was.

    Raises:
        UserError: if JAX has started with another number than `mesh.cpu_devices`.
    """
    if config.mesh.cpu_devices:
        set_asked(config.mesh)
    elif not (jax.distributed.is_initialized() or _is_named()):
        number = recorded or automatic(config)
        there = _set(number)
        if there != number:
            logger.info(
                "JAX has started already: the run takes its %d CPU device(s), not %d.",
                there,
                number,
            )


def set_asked(mesh: MeshConfig) -> None:
    """Sets the number that the configuration asks for, if it does.

    Raises:
        UserError: if JAX has started with another one.
    """
    number = mesh.cpu_devices
    if number and (there := _set(number)) != number:
        raise UserError(
            f"mesh.cpu_devices = {number} comes too late: JAX has started in this process, with "
            f"{there} CPU device(s). Take 0 or {there}, or start the run in a new process."
        )


def _set(number: int) -> int:
    """Sets the number of CPU devices; returns the number that counts."""
    global _number_set
    try:
        jax.config.update("jax_num_cpu_devices", number)
        _number_set = number
    except RuntimeError:  # JAX has started, perhaps in a notebook
        on_cpu = jax.default_backend() == "cpu"
        return jax.local_device_count() if on_cpu else number  # which changes nothing there
    return number


def _is_named() -> bool:
    """Says whether the environment, or a program around the run, names a number."""
    flags = os.environ.get("XLA_FLAGS", "")
    by_others = jax.config.jax_num_cpu_devices not in (_UNSET, _number_set)
    return "xla_force_host_platform_device_count" in flags or by_others
