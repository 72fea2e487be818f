"""Dense arrays from what pickles hold."""

import numpy as np
import pytest

from msajax.corpus.formats.pickled import as_array
from msajax.errors import UserError


def objects(*items) -> np.ndarray:
    return np.fromiter(items, object, len(items))


def test_equal_shapes_become_one_dense_array():
    for value, wanted in (
        (np.float64(2.5), np.array(2.5)),
        ([1, 2.5, True], np.array([1.0, 2.5, 1.0])),
        ([True, False], np.array([True, False])),
        ([-(2**63), 2**63 - 1], np.array([-(2**63), 2**63 - 1])),
        ([1, np.float32(2)], np.array([1.0, 2.0])),
        ([np.float32([1, 2]), np.float32([3, 4])], np.float32([[1, 2], [3, 4]])),
        (objects(np.zeros((2, 3)), np.ones((2, 3))), np.stack([np.zeros((2, 3)), np.ones((2, 3))])),
        (objects(np.float32([1, 2])).reshape(()), np.float32([1, 2])),
        (objects([1], [2], [3], [4]).reshape(2, 2), np.array([[[1], [2]], [[3], [4]]])),
        ([objects(1, 2), [3, 4]], np.array([[1, 2], [3, 4]])),
        ([], np.zeros(0)),
        (np.zeros((0, 4), object), np.zeros((0, 4))),
    ):
        np.testing.assert_array_equal(as_array(value, "x.pkl: train/audio"), wanted, strict=True)


def test_what_is_not_dense_is_refused():
    for value, reason in (
        ([[1, 2], [3]], r"arrays of the shapes \(1,\) and \(2,\); expected equal shapes\. .*"),
        (objects(np.zeros(2), np.zeros((2, 1))), r"arrays of the shapes \(2,\) and \(2, 1\); .*"),
        (["a", "b"], "a str where numbers are expected"),
        ([1, None], "a NoneType where numbers are expected"),
        (np.array(["a"]), "a ndarray where numbers are expected"),
        *((bad, "an integer that does not fit into 64 bits")
          for bad in ([2**64], [2**63, -1], [10**400, 0.5])),
    ):
        with pytest.raises(UserError, match=rf"^x\.pkl: train/audio holds {reason}\.$"):
            as_array(value, "x.pkl: train/audio")
