"""MulT: computed again with NumPy, a sample at a time without any padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from crossmodal_numpy import (
    built,
    check_learns,
    check_scores,
    encoder,
    number,
    positioned,
    projected,
    refined,
)
from layer_formulas import dense

from msajax.errors import UserError
from msajax.models.peers.crossmodal import sinusoids, windows
from msajax.models.peers.settings import MultSettings
from msajax.spec import CorpusSpec

SIZES = {"d_model": 6, "num_heads": 3, "num_layers": 2}


def score_of(sample, params, own):
    """The score of one sample `{modality: [T, d]}`, of which some may have no step."""
    names, streams, last = list(sample), {}, []
    for m, x in sample.items():
        size = getattr(own, f"{m}_kernel")
        streams[m] = projected(x, params[f"{m}_projection"]["kernel"], size)
    pairs = [(m, other) for m in names for other in names if other != m]
    found = {}
    for i, (m, other) in enumerate(pairs):
        read, weights = positioned(streams[other], own), number(params["between"], i)
        found[m, other] = encoder(positioned(streams[m], own), read, weights, own)
    for i, m in enumerate(names):
        x = np.concatenate([found[m, n] for n in names if n != m] or [streams[m]], axis=1)
        weights = number(params["memory"], i)
        x = encoder(positioned(x, own), None, weights, own) if len(x) else np.zeros((1, x.shape[1]))
        last.append(x[-1])
    return dense(params["regression"], refined(np.concatenate(last), params, "post"))


@pytest.mark.parametrize(
    ("own", "widths", "lengths"),
    [
        # Two of the encoders between modalities have the same shapes; text is absent once, video is
        # shorter than its kernel once.
        (
            MultSettings(**SIZES, positions=True, text_kernel=3, audio_kernel=1, video_kernel=2),
            {"text": 4, "audio": 3, "video": 6},
            {"text": (7, 3, 0, 5), "audio": (5, 1, 4, 2), "video": (8, 1, 6, 5)},
        ),
        (
            MultSettings(d_model=5, num_heads=1, num_layers=1, positions=True, causal_mask=False,
                         text_kernel=2, audio_kernel=1),
            {"text": 3, "audio": 5},
            {"text": (6, 4), "audio": (4, 0)},
        ),
        (
            MultSettings(d_model=4, num_heads=2, num_layers=1, text_kernel=1),
            {"text": 3},
            {"text": (5, 2)},
        ),
    ],
)  # fmt: skip
def test_a_padded_batch_scores_as_each_sample_alone_does(own, widths, lengths):
    longest = tuple(max(of) for of in lengths.values())
    spec = CorpusSpec(tuple(widths), tuple(widths.values()), longest)
    module, params, features, masks, found = check_scores("mult", own, spec, lengths, score_of)
    behind = ((0, 0), (0, 3))  # more padding changes nothing
    features = {m: np.pad(x, (*behind, (0, 0)), constant_values=9) for m, x in features.items()}
    masks = {m: np.pad(mask, behind) for m, mask in masks.items()}
    again = jax.jit(module.apply)({"params": params}, features, masks).score
    np.testing.assert_allclose(again, found, rtol=1e-5, atol=1e-5)


def test_every_parameter_learns_and_absent_modalities_leave_gradients_finite():
    own = MultSettings(**SIZES | {"num_layers": 1}, positions=True)
    spec = CorpusSpec(("text", "face"), (4, 3), (6, 7))
    lengths = {"text": (6, 0, 0, 6), "face": (7, 0, 7, 0)}
    module, params, features, masks = built("mult", own, spec, lengths)

    def loss(params, key):
        rngs = {"dropout": key}
        scores = module.apply({"params": params}, features, masks, train=True, rngs=rngs).score
        return jnp.square(scores).sum()

    check_learns(jax.jit(jax.grad(loss))(params, jax.random.key(0)), "between", "memory")


def test_positions_have_sines_first_and_an_odd_width_ends_in_zeros():
    table = sinusoids(4, 7)
    np.testing.assert_allclose(table[1, :3], np.sin(2 * 100.0 ** -np.arange(3)), rtol=1e-6)
    np.testing.assert_allclose(table[1, 3:6], np.cos(2 * 100.0 ** -np.arange(3)), rtol=1e-6)
    assert not table[:, 6].any()


def test_windows_lie_between_the_first_and_the_last_valid_step():
    mask = np.array([[int(x) for x in row] for row in
                     ("11111", "11100", "01110", "11000", "00000", "10111")], bool)  # fmt: skip
    x = np.arange(30.0).reshape(6, 5, 1)
    joined, counts = windows(jnp.asarray(x), jnp.asarray(mask), 3)
    expected = [[1, 1, 1], [1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]]
    np.testing.assert_array_equal(counts, np.array(expected, bool))
    np.testing.assert_array_equal(joined[0], [[0, 1, 2], [1, 2, 3], [2, 3, 4]])
    short, counts = windows(jnp.asarray(x[:, :2]), jnp.asarray(mask[:, :2]), 3)
    np.testing.assert_array_equal(short[1], [[5, 6, 0]])
    np.testing.assert_array_equal(counts[:, 0], [True, True, True, True, False, True])


def test_heads_must_divide_the_width():
    with pytest.raises(UserError, match=r"model.mult.num_heads = 4: must divide .*d_model = 6"):
        MultSettings(d_model=6, num_heads=4)


def test_classes_have_a_score_each():
    spec = CorpusSpec(("text",), (3,), (4,), "classification", ("a", "b", "c"))
    own = MultSettings(d_model=4, num_heads=2, num_layers=1)
    module, params, features, masks = built("mult", own, spec, {"text": (4, 2)})
    assert jax.eval_shape(module.apply, {"params": params}, features, masks).score.shape == (2, 3)
