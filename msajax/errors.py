"""The ways in which a run may end early without a bug in the program."""


class UserError(ValueError):
    """A mistake in the flags, the configuration, the data or the files: one sentence, exit code 2.

    The message says what was wrong, where, and what would be right.
    """


class NonFiniteError(ArithmeticError):
    """The loss of every random seed is no longer a finite number: exit code 3."""
