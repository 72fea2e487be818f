"""Runs the modes that write a corpus: convert, embed and extract."""

from rich.console import Console

from msajax import announce
from msajax.cli.early_checks import load_jax
from msajax.cli.options import Options, named_columns
from msajax.config import Config, DataConfig
from msajax.corpus.corpus import Embedding
from msajax.corpus.demands import require_corpus, say_what_is_idle
from msajax.corpus.formats import open_own_or_fold, save
from msajax.corpus.in_memory import with_embedded
from msajax.encoders.folder import open_folder
from msajax.errors import OK, STOPPED, UserError
from msajax.files import refuse_inside, require_new, require_writable
from msajax.preparation.fit import require_suited
from msajax.runtime.signals import StopRequest


def run_convert(options: Options, console: Console) -> int:
    """Runs --mode=convert: writes any corpus as a native archive, or as a mapped folder."""
    del console
    corpus, output = options.required("input", "output")
    if options.config.model.encoder_folders:
        raise UserError("--mode=convert reads no pretrained encoder; --mode=embed does.")
    convert(corpus, options.config.data, output)
    print(f"Converted: {output}")
    return OK


def convert(path: str, data: DataConfig, output: str) -> None:
    """Writes any corpus as a native archive (`output` ends in .npz) or as a mapped folder.

    Raises `UserError` if the corpus cannot be read, or `output` is there or cannot be written.
    """
    output = require_new(output)
    refuse_inside(output, path, "corpus")
    require_writable(output)
    corpus = open_own_or_fold(path, data)
    corpus.verify()
    say_what_is_idle(corpus, Config(data=data), False)
    save(corpus, output)


def run_embed(options: Options, console: Console) -> int:
    """Runs --mode=embed: writes a corpus with features that pretrained encoders make."""
    del console
    corpus, output = options.required("input", "output")
    made = "; ".join(one.describe() for one in embed(corpus, options.config, output))
    print(f"Embedded by {made}: {output}")
    return OK


def embed(path: str, config: Config, output: str) -> list[Embedding]:
    """Writes any corpus with features that pretrained encoders make of its text or its sound.

    The model of the configuration names the encoders, and for text `text_pool`, `text_special` and
    `max_len`. The output is a native archive, if it ends in .npz, or a mapped folder, and new.
    Raises `UserError` for whatever the user can set right.
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
    from msajax.inference.embed import make_embedder
    from msajax.runtime import devices

    devices.configure_jax(config.train)
    devices.require_devices()
    embeddings = []
    for m, folder in folders.items():
        of_text = {}
        if m == "text":
            of_text = {"pool": model.text_pool, "special": model.text_special}
            of_text |= {"max_len": model.max_len, "truncate": config.data.truncate}
        a = folder.architecture
        embeddings.append(Embedding(folder.digest, a.kind, a.width, modality=m, **of_text))
    announce.now("Embedding")
    for embedding in embeddings:
        corpus = with_embedded(
            corpus, make_embedder(folders[embedding.modality], embedding), embedding
        )
    save(corpus, output)
    return embeddings


def run_extract(options: Options, console: Console) -> int:
    """Runs --mode=extract: makes a corpus of recordings."""
    del console
    table, output = options.required("input", "output")
    refuse_inside(output, table, "table")
    from msajax.recordings.extract import extract
    from msajax.recordings.measure import Stopped

    with StopRequest() as stop:
        stop.will_serve()
        try:
            extracted = extract(
                table,
                output,
                columns=named_columns(options["columns"]),
                steps=options["steps"] or "",
                audio=options["audio"],
                asr_model=options["asr_model"] or "",
                jobs=options["jobs"],
                should_stop=lambda: stop.requested,
            )
        except Stopped as error:
            print(f"{error}; the same command continues.")
            return STOPPED
    print(extracted)
    return OK
