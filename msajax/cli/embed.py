"""Runs --mode=embed: writes a corpus with features that pretrained encoders make."""

from rich.console import Console

from msajax import announce
from msajax.cli.convert import require_new
from msajax.cli.early_checks import load_jax
from msajax.cli.options import Options
from msajax.config import Config
from msajax.corpus.corpus import Embedding
from msajax.corpus.demands import require_corpus
from msajax.corpus.formats import open_own_or_fold, save
from msajax.corpus.in_memory import with_embedded
from msajax.encoders.folder import open_folder
from msajax.errors import OK, UserError
from msajax.files import refuse_inside, require_writable
from msajax.preparation.fit import require_suited


def run(options: Options, console: Console) -> int:
    """Embeds, and says where to; returns the exit code."""
    del console
    corpus, output = options.required("input", "output")
    made = "; ".join(one.describe() for one in embed(corpus, options.config, output))
    print(f"Embedded by {made}: {output}")
    return OK


def embed(path: str, config: Config, output: str) -> list[Embedding]:
    """Writes any corpus with features that pretrained encoders make of its text or its sound.

    Args:
        path: the corpus, which has transcripts.
        config: `model.encoders` and `model.text_encoder`; of text `text_pool`, `text_special`,
            `max_len`; and how the corpus is read.
        output: a native archive, if it ends in .npz, or a mapped folder; neither may be there.

    Raises:
        UserError: for whatever the user can set right.
    """
    model = config.model
    if not model.encoder_folders:
        raise UserError(
            "--mode=embed needs the folder of an encoder: --config.model.text_encoder=FOLDER, or "
            "--config.model.encoders=MODALITY=FOLDER."
        )
    output = require_new(output)
    refuse_inside(output, path, "corpus")
    require_writable(output)
    require_corpus(path)
    folders = {m: open_folder(folder) for m, folder in model.encoder_folders.items()}
    require_suited(folders)
    corpus = open_own_or_fold(path, config.reading)
    corpus.verify()
    load_jax()
    from msajax.inference.embed import embedding_of, make_embedder
    from msajax.runtime import devices

    devices.configure_jax(config.train)
    devices.require_devices()
    embeddings = []
    for m, folder in folders.items():
        of_text = {}
        if m == "text":
            of_text = {"pool": model.text_pool, "special": model.text_special}
            of_text |= {"max_len": model.max_len, "truncate": config.data.truncate}
        embeddings.append(embedding_of(folder, modality=m, **of_text))
    announce.now("Embedding")
    for embedding in embeddings:
        corpus = with_embedded(
            corpus, make_embedder(folders[embedding.modality], embedding), embedding
        )
    save(corpus, output)
    return embeddings
