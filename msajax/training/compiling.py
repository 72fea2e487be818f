"""Has the programs of a run compiled in the background, in the order in which it needs them."""

import functools
from typing import NamedTuple

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from msajax.inference.scoring import EvaluationBatches, Predict
from msajax.preparation.batches import epoch_order, in_passes
from msajax.runtime.compile import Compilers
from msajax.runtime.devices import deal
from msajax.training.feed import Feed
from msajax.training.programs import Programs, make_programs
from msajax.training.run import Run
from msajax.training.state import RunState

INIT, VALIDATION = "init", "validation"  # names of programs; those of steps have their quarter's


class OnDevices(NamedTuple):
    """Holds what a run works with on the devices: of the splits, training and validation."""

    programs: Programs
    feed: Feed
    predict: Predict
    valid: EvaluationBatches


def put_on_devices(run: Run) -> OnDevices:
    """Builds the programs of a run, and puts its data on the devices; nothing is compiled yet."""
    memory = run.model.memory
    at_first = memory.begin(run.train.labels, run.spec) if memory else {}
    shared = run.layout.put(unflatten_dict(run.shared, sep="/"))  # once, for both programs
    programs = make_programs(run.recipe, run.rates, run.spec, run.layout, at_first, shared)
    parts, for_rows = run.config.train.accumulation_steps, run.layout.for_rows
    return OnDevices(
        programs=programs,
        feed=Feed(run.train, run.spec, programs, run.layout, parts),
        predict=Predict(programs.predict, for_rows.put(shared)),
        valid=EvaluationBatches(run.valid, run.spec, for_rows),
    )


def compile_ahead(
    run: Run, compilers: Compilers, there: OnDevices, state: RunState | None, pause_at: int
) -> None:
    """Gives the programs of a run to its compilers, in the order in which it needs them.

    They are traced for the shapes, types and shardings of the arrays that they will be called with.
    A program that is called with others is compiled by the call, as if it were not compiled here.

    Args:
        state: the state that the run goes on from; None before its first step.
        pause_at: the epoch after which it pauses.
    """
    epoch, step = (0, 0) if state is None else (int(state.selection.epoch), int(state.epoch.step))
    programs, feed, add = there.programs, there.feed, compilers.add
    seeds = len(run.seeds)
    slots = len(deal(np.zeros(seeds, bool), run.layout).seeds)
    dealt, variables = programs.state(slots), programs.state(seeds).variables
    added: set[int] = set()

    def add_steps(quarters: np.ndarray) -> None:
        for quarter in dict.fromkeys(quarters.tolist()):
            if quarter not in added:
                added.add(quarter)
                batches = feed.shapes(quarter, slots, run.config.train.batch_size)
                add(quarter, functools.partial(programs.lower_steps, dealt, batches))
                if feed.corpus is not None:
                    rows = (batches.row, batches.row_weight)
                    lower = programs.gather.lower
                    add(quarter, functools.partial(lower, quarter, feed.corpus, *rows))

    quarters = _quarters_of_epoch(run, epoch)[step:]
    add_steps(quarters[:1])
    if state is None:
        add(INIT, functools.partial(programs.lower_init, seeds))
    improved = run.layout.state_shapes(jax.ShapeDtypeStruct((seeds,), np.bool_))
    keep = functools.partial(programs.keep.lower, variables, variables, improved)
    add(VALIDATION if state is not None else INIT, keep)
    add_steps(quarters)
    of_rows = run.layout.for_rows.state_shapes(variables)
    for batch in there.valid.of_each_shape():
        rows = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), batch[1:]
        )
        add(VALIDATION, functools.partial(there.predict.lower, of_rows, *rows))
    if epoch + 1 < min(pause_at, run.config.train.epochs):
        # What is left of this epoch, or the share of it that stages take, may need fewer quarters.
        add_steps(_quarters_of_epoch(run, epoch + 1))
        add_steps(np.unique(run.quarters))


def _quarters_of_epoch(run: Run, epoch: int) -> np.ndarray:
    """Returns the length quarter of every step of an epoch, which is that of every seed."""
    order = epoch_order(
        run.seeds[0], epoch, quarters=run.quarters, batch_size=run.config.train.batch_size
    )
    return in_passes(order, run.passes).quarters
