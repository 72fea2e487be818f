"""Runs --mode=embed: writes a corpus whose text is the output of a pretrained encoder."""

from rich.console import Console

from msajax import announce
from msajax.cli.convert import require_new
from msajax.cli.early_checks import load_jax
from msajax.cli.options import Options
from msajax.config import Config
from msajax.corpus.corpus import Embedding
from msajax.corpus.demands import require_corpus
from msajax.corpus.formats import open_own_or_fold, save
from msajax.corpus.in_memory import with_text
from msajax.encoders.folder import open_folder
from msajax.errors import OK, UserError
from msajax.files import refuse_inside, require_writable


def run(options: Options, console: Console) -> int:
    """Embeds, and says where to; returns the exit code."""
    del console
    corpus, output = options.required("input", "output")
    embedding = embed(corpus, options.config, output)
    print(f"Embedded by {embedding.describe()}: {output}")
    return OK


def embed(path: str, config: Config, output: str) -> Embedding:
    """Writes any corpus with text features of `model.text_encoder` in place of its own text.

    Args:
        path: the corpus, which has transcripts.
        config: `model.text_encoder`, `text_pool`, `text_special`, `max_len`, and how the corpus is
            read.
        output: a native archive, if it ends in .npz, or a mapped folder; neither may be there.

    Raises:
        UserError: for whatever the user can set right.
    """
    model = config.model
    if not model.text_encoder:
        raise UserError("--mode=embed needs --config.model.text_encoder, the encoder's folder.")
    output = require_new(output)
    refuse_inside(output, path, "corpus")
    require_writable(output)
    require_corpus(path)
    folder = open_folder(model.text_encoder)
    corpus = open_own_or_fold(path, config.reading)
    corpus.verify()
    load_jax()
    from msajax.inference.embed import Embedder, embedding_of
    from msajax.runtime import devices

    devices.configure_jax(config.train)
    devices.require_devices()
    embedding = embedding_of(
        folder,
        pool=model.text_pool,
        special=model.text_special,
        max_len=model.max_len,
        truncate=config.data.truncate,
    )
    announce.now("Embedding")
    save(with_text(corpus, Embedder(folder, embedding), embedding), output)
    return embedding
