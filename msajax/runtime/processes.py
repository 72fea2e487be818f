"""Lets the processes of one run meet, and agree on what all of them do.

Only the first process touches the run's folder, so that one file system with locks is enough. What
it reads there reaches the others through here. With a single process every function does its work
at once.
"""

import collections
import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from msajax.checks import differences
from msajax.errors import STOPPED, USER_ERROR, UserError, first_line
from msajax.runtime.signals import leave

logger = logging.getLogger(__name__)
T = TypeVar("T")
Tree = TypeVar("Tree")

HEARTBEAT_SECONDS = 30  # silence after which a process counts as lost
# Words in the errors of the libraries between processes that say that one of them has gone.
_LOST = ("gloo", "nccl", "connection", "coordination", "unavailable", "deadline", "heartbeat")


def join(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    timeout_seconds: float,
) -> None:
    """Meets the other processes of a run; must come before anything else that uses JAX.

    With None for the first three arguments the cluster's environment names them: Slurm, Kubernetes,
    Cloud TPU, Open MPI.

    Args:
        coordinator_address: host:port at which process 0 is reached.
        num_processes: processes of the run, this one included.
        process_id: this process, from 0.
        timeout_seconds: this process ends with exit code 2 if the others take longer.

    Raises:
        UserError: if no cluster's environment is found, or the processes do not fit together.
    """
    if coordinator_address is None:
        whom = "the processes that the cluster's environment names"
    else:
        whom = f"{num_processes} processes at {coordinator_address}, of which this is {process_id}"

    def give_up() -> None:
        # The library would end the process itself a little later, with a traceback.
        print(
            f"error: After {timeout_seconds:g} s not all have met of {whom}: is the address right, "
            "are all of them started, each with its own id and the same number of processes?",
            file=sys.stderr,
            flush=True,
        )
        os._exit(USER_ERROR)

    logger.info("Waiting for %s.", whom)
    timer = threading.Timer(timeout_seconds, give_up)
    timer.daemon = True
    timer.start()
    # The service would take SIGTERM from our own handler: no process would ever stop on request.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator_address,
            num_processes,
            process_id,
            initialization_timeout=int(timeout_seconds) + 60,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        raise UserError(f"Of {whom}, none could be met: {first_line(error)}") from error
    finally:
        timer.cancel()
    logger.info(
        "Process %d of %d, with %d of %d devices.",
        jax.process_index(),
        jax.process_count(),
        jax.local_device_count(),
        jax.device_count(),
    )
    _require_alike(num_processes)


def _require_alike(num_processes: int | None) -> None:
    """Raises `UserError` in all processes unless each has as many devices, and counts as many."""
    devices = collections.Counter(device.process_index for device in jax.devices())
    if len(set(devices.values())) > 1:
        counts = ", ".join(f"process {index} {n}" for index, n in sorted(devices.items()))
        if is_first():
            time.sleep(2)  # the others may still ask it who is there, and are aborted once it ends
        raise UserError(f"Every process must have as many devices as the others: {counts}.")
    told = multihost_utils.process_allgather(np.array(num_processes or jax.process_count()))
    for index, count in enumerate(np.ravel(told).tolist()):
        if count != jax.process_count():
            raise UserError(
                f"Process {index} was told --num_processes={count}, process 0 "
                f"{jax.process_count()}: every process must be told the same."
            )


def several() -> bool:
    """Returns whether the run has more processes than this one.

    A process alone does not make JAX start for that: how many CPU devices it has may still change.
    """
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first() -> bool:
    """Returns whether this process is the one that writes."""
    return not several() or jax.process_index() == 0


def largest(*numbers: float) -> list[float]:
    """Returns the largest of each number over all processes, as float32.

    Processes that decide by it decide alike. Otherwise each would wait for ever for another one in
    the next operation that they share.
    """
    if not several():
        return list(numbers)
    return np.max(multihost_utils.process_allgather(np.array(numbers)), axis=0).tolist()


def together(function: Callable[[], T]) -> T:
    """Calls a function in every process; raises in all of them what it raises in one."""
    if not several():
        return function()
    result, problem = None, ""
    try:
        result = function()
    except UserError as error:
        problem = str(error)
    for index, told in enumerate(_exchange(problem)):
        if told:
            raise UserError(f"Process {index}: {told}")
    return result


def of_first(function: Callable[[], T]) -> T:
    """Calls a function in the first process; all get its result, as JSON, or its `UserError`."""
    if not several():
        return function()
    result = together(lambda: function() if is_first() else None)
    return json.loads(_exchange(json.dumps(result))[0])


def require_same(values: Mapping[str, Any]) -> None:
    """Raises `UserError`, in all processes, unless all of them have the same values, by name."""
    if not several():
        return
    first, *others = map(json.loads, _exchange(json.dumps(values)))
    for index, found in enumerate(others, start=1):
        different = differences(found, first, "{key} = {here}, process 0 {there}")
        if different:
            raise UserError(
                f"Process {index} has {'; '.join(different)}: every process of a run needs the "
                "same."
            )


def share(tree: Tree) -> Tree:
    """Returns the first process's arrays in every process; others' give shapes and types alone."""
    if not several():
        return tree

    def send(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x)
        sent = multihost_utils.broadcast_one_to_all(np.atleast_1d(x).reshape(-1).view(np.uint8))
        # They are sent as bytes: JAX would round float64.
        return np.asarray(sent).view(x.dtype).reshape(x.shape)

    return jax.tree.map(send, tree)


@contextlib.contextmanager
def losses_noticed() -> Iterator[None]:
    """Ends this process with one sentence and exit code 75 when another one has gone.

    It ends at once: whatever would tidy up might wait for the lost process, and when that is the
    first one the library soon aborts this one (exit code 134), with a message of its own.
    """
    try:
        yield
    except UserError:
        raise
    except (ValueError, RuntimeError) as error:
        text = str(error).lower()
        if not several() or not any(word in text for word in _LOST):
            raise
        print(
            f"error: Process {jax.process_index()} of {jax.process_count()} has lost another one "
            f"({first_line(error)}): the run stops here, its last checkpoint is kept, and the "
            "same commands continue from it.",
            file=sys.stderr,
            flush=True,
        )
        leave(STOPPED)


def _exchange(text: str) -> list[str]:
    """Returns the texts of all processes, in the order of their numbers."""
    own = np.frombuffer(text.encode(), np.uint8)
    sizes = np.ravel(multihost_utils.process_allgather(np.array(own.size)))
    room = np.zeros(max(int(sizes.max()), 1), np.uint8)
    room[: own.size] = own
    rows = multihost_utils.process_allgather(room)
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes, strict=True)]
