"""Models of one parameter or two, whose steps can be written down, and a step on a tiny split."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from tiny import rates_of

from msajax.config import Config, OptimConfig, TrainConfig
from msajax.models.build import build_model, declared, parameter_shapes
from msajax.models.contract import Model, Prediction, init_variables
from msajax.preparation.batches import Batch
from msajax.spec import CorpusSpec
from msajax.training.objective import make_objective
from msajax.training.optimizers import make_optimizer
from msajax.training.step import Recipe, begin, train_step

SPEC = CorpusSpec(("text",), (3,), (1,))


class Layers(nn.Module):
    """A linear model in three layers, `embed`, `layer_0` and `layer_1`."""

    @nn.compact
    def __call__(self, features, masks, *, train=False):
        x = features["text"][:, 0]
        for name in ("embed", "layer_0", "layer_1"):
            x = nn.Dense(1 if name == "layer_1" else 3, name=name)(x)
        return Prediction(x, jnp.ones((len(x), 1)), {"twice": 2 * x})


def make_batch(rows=6, seed=0, first=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 1, 3)).astype(np.float32)
    y = rng.normal(size=(rows, 1)).astype(np.float32)
    return Batch(
        {"text": jnp.array(x)},
        {"text": jnp.ones((rows, 1), bool)},
        jnp.array(y),
        jnp.ones(rows),
        jnp.arange(first, first + rows),
    )


def make_recipe(optim=None, train=None, *, module=None, model=None, **more) -> Recipe:
    optim, train = optim or OptimConfig(), train or TrainConfig()
    module = module or Layers()
    model = model or Model(type(module))
    params, _ = jax.eval_shape(
        lambda: init_variables(module, model, SPEC, jax.random.key(0))
    )
    flat = jax.tree_util.tree_leaves_with_path(params)
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in flat]
    return Recipe(
        module=module,
        model=model,
        optimizer=make_optimizer(optim, paths),
        objective=make_objective(Config(train=train), model, "regression"),
        average=optim.average,
        **more,
    )


def recipe_of(config: Config, spec: CorpusSpec, **more) -> Recipe:
    """The recipe of a model of this package."""
    model = declared(config.model)
    return Recipe(
        module=build_model(config.model, spec),
        model=model,
        optimizer=make_optimizer(
            config.optim,
            parameter_shapes(config.model, spec),
            model.untrained_of(config.model, spec),
        ),
        objective=make_objective(config, model, spec.label_kind),
        **more,
    )


def steps(recipe: Recipe, batches, memory=None, spec=SPEC):
    """Runs steps; returns the state before the first one, every later one, and the metrics."""
    states, log = [begin(jnp.uint32(0), memory or {}, recipe, spec)], []
    step = jax.jit(lambda state, batch: train_step(state, batch, recipe, rates_of(recipe)))
    for batch in batches:
        state, metrics = step(states[-1], batch)
        states.append(state)
        log.append(metrics)
    return states, log
