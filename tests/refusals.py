"""The sentence with which something is refused."""

import re
from collections.abc import Callable, Iterator

import pytest

from msajax.errors import UserError


def sentence(error: BaseException) -> str:
    """The message of an error, which must be one line that ends as a sentence does."""
    message = str(error)
    assert re.fullmatch(r"[^\n]{10,600}[^.]\.", message), message
    return message


def refusal(call: Callable, *arguments, **options) -> str:
    """The sentence with which a call is refused."""
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    return sentence(caught.value)


def places(tree, path: tuple = ()) -> Iterator[tuple]:
    """The way to every value in a tree of containers."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    for key in keys:
        yield (*path, key)
        if isinstance(tree[key], dict | list | tuple):
            yield from places(tree[key], (*path, key))


def replaced(tree, path: tuple, change: Callable):
    """A tree with the value at a place changed; the original stays as it is."""
    if not path:
        return change(tree)
    copied = dict(tree) if isinstance(tree, dict) else list(tree)
    copied[path[0]] = replaced(tree[path[0]], path[1:], change)
    return tuple(copied) if isinstance(tree, tuple) else copied
