"""Selection, early stopping and the plateau schedule against hand-worked and naive computations."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from msajax.config import OptimConfig, TrainConfig
from msajax.training.state import have_stopped, init_selection, learning_rate_scale, select


def follow(scores, train: TrainConfig, optim: OptimConfig):
    """Feeds one seed's scores, an epoch each, until it stops; returns every selection."""
    selection, history = init_selection(1), []
    for score in scores:
        if selection.stopped[0]:
            break
        selection = select(selection, np.array([score]), np.zeros(1, bool), train, optim)
        history.append(selection)
    return history


def test_scores_are_compared_in_float64():
    history = follow([1.0, 1.0 - 1e-12], TrainConfig(), OptimConfig())
    assert np.float32(1.0 - 1e-12) == np.float32(1.0)
    assert history[-1].best_epoch[0] == 2


def test_the_rate_halves_after_7_epochs_without_improvement_and_never_goes_under_the_minimum():
    history = follow([1.0] + [2.0] * 16, TrainConfig(patience=0), OptimConfig())
    assert [int(s.reductions[0]) for s in history] == [0] * 7 + [1] * 7 + [2] * 3
    selection = init_selection(3).replace(reductions=np.array([0, 2, 50]))
    optim = OptimConfig(learning_rate=1e-4, min_learning_rate=1e-6)
    scale = learning_rate_scale(selection, optim)
    assert scale.dtype == np.float32
    np.testing.assert_allclose(scale, [1.0, 0.25, 0.01], rtol=1e-6)
    for schedule in ("constant", "cosine"):  # which know no plateau
        optim = OptimConfig(schedule=schedule)
        history = follow([1.0] * 30, TrainConfig(patience=0), optim)
        assert history[-1].reductions[0] == 0
        assert learning_rate_scale(history[-1], optim)[0] == 1.0


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=1, max_size=40),
    st.integers(0, 6),
    st.integers(1, 5),
)
def test_every_seed_follows_the_rules_as_if_alone(scores, patience, plateau_patience):
    train = TrainConfig(patience=patience, epochs=30)
    optim = OptimConfig(plateau_patience=plateau_patience)
    selection = init_selection(2)
    for row in scores:
        if selection.stopped.all():
            break
        own = np.array(row, np.float64)
        selection = select(selection, own, np.zeros(2, bool), train, optim)

    for k in range(2):
        best, best_epoch, stale, plateau, cuts, stopped = np.inf, 0, 0, 0, 0, False
        for epoch, row in enumerate(scores, start=1):
            if stopped:
                break
            if row[k] < best:
                best, best_epoch, stale, plateau = row[k], epoch, 0, 0
            else:
                stale, plateau = stale + 1, plateau + 1
                if plateau == plateau_patience:
                    cuts, plateau = cuts + 1, 0
            stopped = 0 < patience <= stale or epoch == 30
        assert selection.best_score[k] == best
        assert selection.best_epoch[k] == best_epoch
        assert selection.reductions[k] == cuts
        assert selection.stopped[k] == stopped


def test_with_more_epochs_only_a_seed_that_still_has_patience_goes_on():
    selection = init_selection(3).replace(
        epoch=np.int64(5), stale_epochs=np.array([2, 1, 0]), failed_epoch=np.array([0, 0, 5])
    )
    for epochs, patience, stopped in (
        (5, 2, [True, True, True]),
        (6, 2, [True, False, True]),
        (6, 0, [False, False, True]),
    ):
        train = TrainConfig(epochs=epochs, patience=patience)
        assert have_stopped(selection, train).tolist() == stopped


def test_a_seed_that_fails_stops_in_its_epoch_and_does_not_improve():
    before = select(init_selection(2), np.ones(2), np.zeros(2, bool), TrainConfig(), OptimConfig())
    failed = np.array([False, True])
    after = select(before, np.array([0.5, 0.4]), failed, TrainConfig(), OptimConfig())
    assert after.failed_epoch.tolist() == [0, 2]
    assert after.stopped.tolist() == [False, True]
    assert after.best_epoch.tolist() == [2, 1]
    later = select(after, np.array([0.3, 0.3]), failed, TrainConfig(), OptimConfig())
    assert later.failed_epoch.tolist() == [0, 2]
