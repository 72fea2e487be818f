"""Knows which kind of device a program is made for: what is fast on CPUs is slow on others."""

import contextlib
import contextvars
from collections.abc import Iterator

import jax

_PLATFORM = contextvars.ContextVar("platform", default="")


@contextlib.contextmanager
def made_for(platform: str) -> Iterator[None]:
    """Traces programs for cpu, gpu or tpu, though no such device need be there."""
    token = _PLATFORM.set(platform)
    try:
        yield
    finally:
        _PLATFORM.reset(token)


def platform() -> str:
    """Returns what programs are made for: JAX's own choice, unless `made_for` says it."""
    return _PLATFORM.get() or jax.default_backend()


def is_for_cpu() -> bool:
    """Tells whether programs are made for CPUs."""
    return platform() == "cpu"
