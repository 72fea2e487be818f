"""The sentence with which something is refused."""

import re
from collections.abc import Callable

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
