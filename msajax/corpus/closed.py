"""Closes the test split of a corpus, for what must not even look at it."""

from msajax.corpus.corpus import Corpus, Split


class ClosedCorpus(Corpus):
    """Holds a corpus whose test split cannot be read, whoever asks."""

    def __init__(self, corpus: Corpus) -> None:
        """Takes over what opening found."""
        self.__dict__.update(vars(corpus))

    def split(self, name: str) -> Split:
        """Reads one split.

        Raises:
            RuntimeError: for test, which would be a bug: it ends the program.
        """
        if name == "test":
            raise RuntimeError("A trial of a sweep asked for the test split.")
        return super().split(name)
