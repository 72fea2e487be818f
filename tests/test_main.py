"""The command line: exit codes, one-line refusals, and runs that continue in a new process.

A run is the real command in a process of its own. The many mistakes go to one process that has
imported the program and forks for every command line: a mistake then costs milliseconds instead of
the seconds that importing JAX takes.
"""

import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pytest
import survivors
from tiny import SMALLEST, tiny_config

from msajax import __version__
from msajax.config import DataConfig, known_keys
from msajax.corpus.formats import open_corpus

ROOT = pathlib.Path(__file__).resolve().parent.parent

EPOCHS, PAUSE = 4, 2


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Answer]


def calm(said: str) -> str:
    """What a command says but for what it does just now, which a busy machine makes it say."""
    return re.sub(r"(?m)^[\d:]+ .* [.]{3}\n", "", said)


def run(*arguments, **environment: str) -> Answer:
    """The real command, in a new process."""
    done = survivors.python("-m", "msajax.main", *arguments, env=os.environ | environment)
    return Answer(done.returncode, done.stdout, calm(done.stderr))


@pytest.fixture(scope="module")
def command(forks) -> Command:
    """The same program for many command lines; every one in a fork of its own."""

    def ask(*arguments, **settings) -> Answer:
        done = forks.run(*arguments, **settings)
        return Answer(done.returncode, done.stdout, done.stderr)

    return ask


def files(folder: pathlib.Path) -> dict[str, str]:
    """Every path below `folder`, with the digest of a file's content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in folder.rglob("*")
    }


def one_line(answer: Answer) -> str:
    """The message of a refusal that is as it must be."""
    assert answer.code == 2, answer
    assert answer.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", answer.err), answer.err
    assert "Traceback" not in answer.err
    return answer.err


@pytest.fixture
def refused(command, tmp_path) -> Command:
    """Runs a command in `tmp_path` that must leave no trace there; returns why it is refused."""

    def ask(*arguments) -> str:
        before = files(tmp_path)
        message = one_line(command(*arguments, folder=tmp_path))
        assert files(tmp_path) == before
        return message

    return ask


@pytest.fixture(scope="module")
def experiment(tmp_path_factory) -> pathlib.Path:
    """The tiny run as an experiment file."""
    path = tmp_path_factory.mktemp("configs") / "tiny_run.py"
    return survivors.write_experiment(path, data__synthetic__lengths=(2, 1))


@pytest.fixture(scope="module")
def smallest(tmp_path_factory) -> pathlib.Path:
    """The smallest run as an experiment file, to be trained."""
    path = tmp_path_factory.mktemp("configs") / "smallest.py"
    return survivors.write_experiment(path, **SMALLEST, train__epochs=EPOCHS)


@pytest.fixture(scope="module")
def whole(smallest, tmp_path_factory) -> tuple[pathlib.Path, Answer]:
    """The folder of a run without interruption, and what the command said."""
    folder = tmp_path_factory.mktemp("runs") / "made" / "by the command"
    asked = "--config", smallest, "--workdir", folder
    answer = run(*asked, JAX_TRANSFER_GUARD="disallow")  # nothing moves unasked
    assert answer.code == 0, answer.err
    return folder, answer


@pytest.fixture(scope="module")
def paused(smallest, command, tmp_path_factory) -> tuple[pathlib.Path, Answer]:
    """The folder of a run that was asked to stop, and what the command said."""
    folder = tmp_path_factory.mktemp("paused") / "run"
    answer = command("--config", smallest, "--workdir", folder, f"--stop_after_epochs={PAUSE}")
    return folder, answer


def arrays_of(**settings) -> dict[str, np.ndarray]:
    """The tiny corpus as the arrays of a native archive."""
    synthetic = open_corpus("synthetic", tiny_config(**settings).data)
    named = {}
    for name in synthetic.headers:
        split = synthetic.split(name)
        named |= {f"{name}/{m}": x for m, x in split.features.items()}
        named |= {f"{name}/{m}_mask": x for m, x in split.masks.items()}
        named |= {
            f"{name}/id": split.ids,
            f"{name}/label": split.labels[:, 0],
            f"{name}/raw_text": split.raw_text,
        }
    return named


@pytest.fixture(scope="module")
def arrays() -> Mapping[str, np.ndarray]:
    return arrays_of()


def write(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> pathlib.Path:
    np.savez(path, **arrays)
    return path


# --- the real process ---


@pytest.mark.parametrize("flag", ["--help", "-h", "--helpfull"])
def test_help_explains_every_mode_flag_and_key_and_exits_0(flag, command):
    answer = command(flag)
    assert (answer.code, answer.err) == (0, "")
    modes = ("train", "evaluate", "predict", "inspect")
    flags = ("--config", "--workdir", "--input", "--output", "--bundle", "--split")
    for word in (*modes, *flags, "--stop_after_epochs", *known_keys()):
        assert word in answer.out


def test_the_real_process_tells_its_version_and_refuses_in_one_line(tmp_path):
    assert run("--version") == Answer(0, f"msajax {__version__}\n", "")
    message = one_line(run("--config.model.model_dimm=8", "--workdir", tmp_path / "run"))
    assert re.search("model.model_dimm.*model.model_dim", message)
    assert files(tmp_path) == {}


# --- mistakes on the command line ---


# What each is refused with; --workdir and --config are given before it.
MISTAKES = r"""
--wrokdir=x  # no flag --wrokdir: did you mean --workdir[?]
--epochs=1  # no flag --epochs: did you mean --config.train.epochs[?]
--lr=1  # did you mean --config.optim.learning_rate[?]
--learning_rat=1  # did you mean --config.optim.learning_rate[?]
--name=x  # did you mean --config.model.name or --config.optim.name[?]
--config.train.epoch=3  # 'train.epoch'.*'train.epochs'
--config.optim.learning_rat 1e-3  # 'optim.learning_rat'.*'optim.learning_rate'
--noconfig.model.bidirectional  # 'model.bidirectional'.*bidirectional_fusion'
--config.model=3  # 'model'
--config.train.epochs=abc  # train.epochs=abc: must be a whole number[.]$
--config.train.epochs=1.5  # train.epochs=1.5: must be a whole number[.]$
--config.train.epochs  # train.epochs
--config.optim.learning_rate=fast  # learning_rate=fast: must be a number[.]$
--config.model.bidirectional_fusion=maybe  # =maybe: must be true or false[.]$
--config.model.num_heads=3  # model.num_heads = 3: must divide model.model_dim = 8
--config.train.loss=l2  # train.loss = 'l2' does not suit regression: choose l1
--mode=tran  # mode=tran
--split=tset  # split=tset
--stop_after_epochs=0  # stop_after_epochs=0
--stop_after_epochs=soon  # stop_after_epochs=soon: must be a whole number[.]$
--join_seconds=inf  # --join_seconds=inf must be from 1 to 86400
--join_seconds=nan  # --join_seconds=nan must be from 1 to 86400
stray  # 'stray' is not a flag
-- --version  # '--version' is not a flag
--config.data.path=  # data.path is empty.*--config.data.path=
--config.model.modalities=text audio  # 'audio' stands alone: .* commas, as in --[a-z.]*=a,b
'--config.model.modalities=text audio'  # 'text audio': names are separated by commas
--config.model.modalities=[text,audio]  # names are separated by commas
"--config.model.modalities=('text','smell')"  # model.modalities names 'smell'.* text, audio
--config.model.modalities=text,smell  # model.modalities names 'smell'.* text, audio
--config.model.anchor=smell  # model.anchor = 'smell'.* text, audio
"--config.data.standardize=('smell',)"  # data.standardize names 'smell'.* text, audio
--config.model.max_len=1  # longer than the model's 1 steps.*model.max_len
--profile=gs://bucket/run  # profile.*mount the bucket
--config.data.path=gs://bucket/run  # data.path.*mount the bucket
--config.data.glove_path=gs://bucket/run  # data.glove_path.*mount the bucket
--profile=file/trace  # file/trace cannot be written: Not a directory
--workdir=  # --workdir
--input=x  # does not read --input
--split=test  # does not read --split
--mode=predict  # does not read --workdir
"""
OF_OTHER_MODES = """
--mode=predict  # --bundle
--mode=predict --bundle=b  # --input
--mode=predict --bundle=b --input=i  # --output
--mode=predict --input=i --output=o  # --bundle
--mode=evaluate  # one of --workdir=RUN and --input=predictions.csv.$
--mode=evaluate --workdir=w --input=i  # not both
--mode=inspect --stop_after_epochs=1  # does not read --stop_after_epochs
--mode=evaluate --bundle=x  # does not read --bundle
"""


@pytest.mark.parametrize("mistake", MISTAKES.strip().splitlines())
def test_a_mistake_in_a_flag_is_named(mistake, refused, experiment, tmp_path):
    (tmp_path / "file").touch()
    arguments, expected = mistake.split("  # ")
    asked = "--workdir=run", f"--config={experiment}", *shlex.split(arguments)
    assert re.search(expected, message := refused(*asked)), message


@pytest.mark.parametrize("mistake", OF_OTHER_MODES.strip().splitlines())
def test_a_mode_names_the_flag_that_it_needs_or_would_ignore(mistake, refused, experiment):
    arguments, expected = mistake.split("  # ")
    asked = "--config", experiment, *shlex.split(arguments)
    assert re.search(expected, message := refused(*asked)), message


# --- experiment files ---


@pytest.mark.parametrize(
    ("name", "override"),
    [("absent.py", []), ("absent.py:smoke", ["--config.train.seeds=2"]), (".", [])],
)
def test_a_missing_experiment_file_is_named(name, override, refused, tmp_path):
    path = f"{tmp_path}/{name}"
    message = refused("--config", path, *override, "--workdir=run")
    assert message == f"error: There is no configuration file {path.split(':')[0]}.\n"


def test_a_corpus_in_place_of_an_experiment_file_is_told_where_it_goes(refused, arrays, tmp_path):
    path = write(tmp_path / "corpus.npz", arrays)
    message = refused(f"--config={path}", "--workdir=run")
    assert message.endswith(f"a corpus goes to --config.data.path={path}.\n")


NOT_A_CONFIG = "must return a ConfigDict"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise ValueError('first line\\nsecond line')", "ValueError: first line second line"),
        ("raise RuntimeError('no luck')", "RuntimeError: no luck"),
        ("raise UserError('a clear sentence.')", r"\.py: a clear sentence\."),
        ("open('/absent/widths.json')", "/absent/widths.json"),
        ("import no_such_module", "no_such_module"),
        ("sys.exit(0)", "SystemExit"),
        ("config.model.model_dmi = 3", "'model_dmi'.*'model.model_dim'"),
        ("config.model.model_dim = 'wide'", "model_dim"),
        ("config.train.epochs = -1", "train.epochs = -1"),
        ("return None", NOT_A_CONFIG),
        ("return 3", NOT_A_CONFIG),
        ("return {'train': {'epochs': 3}}", NOT_A_CONFIG),
        ("return Config()", NOT_A_CONFIG),
        ("return ConfigDict({'train': {'epoch': 3}})", "'train.epoch'.*'train.epochs'"),
        ("return ConfigDict({'train': 3})", "'train'"),
    ],
)
def test_an_experiment_file_that_fails_is_one_line(body, expected, refused, tmp_path):
    (tmp_path / "broken.py").write_text(
        "import sys\nfrom ml_collections import ConfigDict\nfrom msajax import Config, UserError\n"
        "from msajax.config import default_config\n\n"
        f"def get_config():\n    config = default_config()\n    {body}\n    return config\n"
    )
    asked = "--config=broken.py", "--workdir=run"
    assert re.search(expected, message := refused(*asked)), message
    if body in ("return None", "return 3"):
        assert NOT_A_CONFIG in refused(*asked, "--config.train.seeds=2")


def test_a_file_that_is_no_experiment_and_an_unknown_argument_of_one_are_one_line(
    refused, tmp_path
):
    path = tmp_path / "broken.py"
    for text, expected in (("x = \n", "SyntaxError"), ("x = 1\n", "get_config"), ("\0", "null")):
        path.write_text(text)
        assert expected in refused(f"--config={path}", "--workdir=run")
    message = refused(f"--config={ROOT}/configs/synthetic.py:smok", "--workdir=run")
    assert re.search("'smok' is unknown.*'smoke'", message)


# --- corpora ---


@pytest.mark.parametrize(
    ("mode", "make", "expected"),
    [
        ("train", lambda path: None, "There is no corpus at"),
        ("predict", lambda path: path.mkdir(), "is not a corpus: expected"),
        ("inspect", lambda path: path.write_bytes(b""), "is not a corpus"),
        ("train", lambda path: path.write_text("id,label\n1,2\n"), "is not a corpus"),
    ],
)
def test_a_file_that_is_no_corpus_is_refused(
    mode, make, expected, refused, experiment, whole, tmp_path
):
    path = tmp_path / "corpus.npz"
    make(path)
    where = {
        "train": [f"--config.data.path={path}", "--workdir=run"],
        "predict": [f"--input={path}", f"--bundle={whole[0]}/bundle", "--output=p.csv"],
        "inspect": [f"--input={path}", "--output=report.json"],
    }
    message = refused("--config", experiment, f"--mode={mode}", *where[mode])
    assert expected in message and str(path) in message


def without(*names):
    return lambda arrays: {k: x for k, x in arrays.items() if not k.startswith(names)}


def changed(name, change):
    return lambda arrays: dict(arrays) | {name: change(arrays[name])}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (without("valid/"), "has no split 'valid'; it has train, test"),
        (without("test/"), "has no split 'test'; it has train, valid"),
        (without("train/label"), "split 'train' has no labels"),
        (without("test/label"), "split 'test' has no labels"),
        (changed("test/label", lambda x: x + np.nan), "20 label.*'test' are not finite"),
        (changed("valid/label", lambda x: x[:, None] * [1, 2]), "1 in train, 2 in valid"),
        (
            lambda arrays: without("test/text_mask")(
                changed("test/text", lambda x: np.ones((20, 9, 6)))(arrays)
            ),
            "'text' are longer than the model's 5 steps.*'test0000_0' with 9",
        ),
        (changed("test/text", lambda x: x[:, :, :3]), "test/text is 3 wide, but train/text is 6"),
    ],
)
def test_a_corpus_that_does_not_fit_together_is_refused_before_anything_is_written(
    change, expected, refused, experiment, arrays, tmp_path
):
    path = write(tmp_path / "corpus.npz", change(arrays))
    message = refused("--config", experiment, f"--config.data.path={path}", "--workdir=run")
    assert re.search(expected, message), message


def test_a_reader_that_goes_early_is_no_error(whole, tmp_path):
    output, asked = tmp_path / "output", ["--mode=evaluate", "--workdir", whole[0]]
    with subprocess.Popen(
        [sys.executable, "-m", "msajax.main", *asked, "--output", output],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},  # every line meets the reader
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.close()
        said = calm(process.stderr.read())
    assert (process.returncode, said) == (0, "")
    assert output.exists()


def test_devices_that_are_not_there_are_one_line(experiment, whole, tmp_path):
    predict = "--mode=predict", "--bundle", whole[0] / "bundle", "--input=synthetic"
    without = survivors.Forks(JAX_PLATFORMS="rocket")
    for asked in (
        ["--config", experiment, "--workdir", tmp_path / "run"],
        [*predict, "--output", tmp_path / "p"],
    ):
        answer = without.run(*asked)
        assert (answer.returncode, answer.stdout) == (2, "")
        said = "error: JAX cannot use the devices that JAX_PLATFORMS='rocket' asks for ("
        assert answer.stderr.splitlines()[-1].startswith(said), answer.stderr
        assert "Traceback" not in answer.stderr and list(tmp_path.iterdir()) == []
    without.close()


REFUSED = "error: --mode=evaluate does not read --bundle; see --help.\n"


@pytest.mark.parametrize(
    ("arguments", "streams", "code", "said"),
    [
        ("--mode=evaluate --bundle=x", ">&-", 2, REFUSED),
        ("--mode=evaluate --bundle=x", "<&- >&- 2>&-", 2, ""),
        ("--mode=evaluate --bundle=x", "2>/dev/full", 2, ""),
        ("--version", ">&-", 0, ""),
        (
            *("--mode=evaluate --input={0}", ">/dev/full", 2),
            "error: Standard output cannot be written: No space left on device.\n",
        ),
    ],
)
def test_a_stream_that_cannot_be_written_is_no_bug(arguments, streams, code, said, whole):
    arguments = arguments.format(shlex.quote(str(whole[0] / "predictions" / "test.csv")))
    done = subprocess.run(
        ["bash", "-c", f"{shlex.quote(sys.executable)} -m msajax.main {arguments} {streams}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, calm(done.stderr)) == (code, said)


# --- folders and files ---


@pytest.mark.parametrize("mine", ["bundle/mine.txt", "metrics.jsonl", "results.json", "notes"])
def test_a_folder_that_is_not_empty_and_no_runs_is_refused_and_kept(
    mine, refused, experiment, tmp_path
):
    path = tmp_path / "run" / mine
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    message = refused("--config", experiment, "--workdir=run")
    assert "no config.json, so it is no run's folder" in message


def test_a_prediction_never_replaces_what_it_reads_nor_a_part_of_it(
    whole, refused, arrays, tmp_path
):
    corpus, folder, bundle = tmp_path / "corpus.npz", tmp_path / "corpus", tmp_path / "bundle"
    write(corpus, arrays)
    folder.mkdir()
    shutil.copytree(whole[0] / "bundle", bundle)
    for read, output, said in (
        (corpus, tmp_path / "." / "corpus.npz", "is the corpus itself"),
        (folder, folder / "y_test.h5", "lies inside the corpus "),
        (folder, bundle, "lies inside the bundle "),
    ):
        asked = "--mode=predict", "--bundle", bundle, "--input", read, "--output", output
        assert said in refused(*asked)


@pytest.mark.parametrize("mode", ["inspect", "evaluate"])
def test_a_report_never_replaces_what_it_is_about(mode, whole, refused, arrays, tmp_path):
    if mode == "inspect":
        source = write(tmp_path / "corpus.npz", arrays)
    else:
        source = tmp_path / "scores.csv"
        shutil.copy(whole[0] / "predictions" / "test.csv", source)
    message = refused(f"--mode={mode}", "--input", source, "--output", source)
    assert f"{source} is the input itself" in message
    mine = tmp_path / "notes.json"
    for content in ("mine", '["samples"]', (whole[0] / "results.json").read_text()):
        mine.write_text(content)
        message = refused(f"--mode={mode}", "--input", source, "--output", mine)
        said = f"{mine} is there already and holds no report of --mode={mode}: choose another name."
        assert said in message


@pytest.mark.parametrize("mode", ["evaluate", "inspect", "compare", "predict", "sweep"])
@pytest.mark.parametrize("name", ["results.json", "bundle/mine.csv"])
def test_nothing_is_written_into_the_folder_of_any_run(mode, name, whole, refused, tmp_path):
    folder, predictions = tmp_path / "run", whole[0] / "predictions" / "test.csv"
    shutil.copytree(whole[0], folder)
    asked = {
        "evaluate": ["--input", predictions],
        "inspect": [],
        "compare": [predictions, predictions],
        "predict": ["--bundle", whole[0] / "bundle", "--input", tmp_path / "corpus.npz"],
        "sweep": ["--workdir", tmp_path / "sweep"],
    }[mode]
    message = refused(f"--mode={mode}", *asked, "--output", folder / name)
    said = f"--output={folder / name} lies in the folder of a run, {folder}: choose another place."
    assert said in message


@pytest.mark.parametrize("state", ["whole", "paused"])
def test_the_workdir_of_another_configuration_is_refused_with_both_sides(
    state, request, refused, smallest
):
    folder = request.getfixturevalue(state)[0]
    before = files(folder)
    asked = "--config", smallest, "--workdir", folder, "--config.train.seeds=3"
    message = refused(*asked, "--config.optim.learning_rate=0.5")
    assert "train.seeds: 2 there, 3 here" in message
    assert "optim.learning_rate: 0.005 there, 0.5 here" in message
    assert message.count(" there, ") == 2
    assert files(folder) == before


def test_the_workdir_of_another_corpus_is_refused_with_both_digests(
    whole, refused, smallest, arrays, tmp_path
):
    shutil.copytree(whole[0], tmp_path / "run")
    path = write(tmp_path / "corpus.npz", arrays)
    message = refused("--config", smallest, f"--config.data.path={path}", "--workdir=run")
    stored = json.loads((whole[0] / "run.json").read_text())["corpus"]["digest"]
    digests = (stored, open_corpus(path).digest)
    assert "corpus digest: {!r} there, {!r} here".format(*digests) in message
    assert message.count(" there, ") == 1


def test_an_output_that_cannot_be_written_leaves_nothing(whole, refused, tmp_path):
    (tmp_path / "a_folder").mkdir()
    (tmp_path / "a_file").write_text("mine")
    predict = "--mode=predict", "--bundle", whole[0] / "bundle", "--input=synthetic", "--split=test"
    evaluate = "--mode=evaluate", "--input", whole[0] / "predictions" / "test.csv"
    for asked in (predict, evaluate):
        for output in ("a_folder", "absent/report.json", "a_file/predictions.csv"):
            message = refused(*asked, "--output", tmp_path / output)
            assert f"{tmp_path / output} cannot be written" in message


def test_evaluate_refuses_a_run_that_has_not_ended_and_what_holds_no_scored_labels(
    paused, refused, tmp_path
):
    for folder in (paused[0], tmp_path / "absent"):
        message = refused("--mode=evaluate", "--workdir", folder)
        assert f"{folder} holds no run that has ended" in message
    path = tmp_path / "predictions.csv"  # all that may be wrong with one: test_predictions.py
    for text, expected in ((None, "cannot be read as CSV"), ("", "is empty: expected columns such"),
                           ("label,score\n1,nan\n", "row 1: score is 'nan'")):  # fmt: skip
        if text is not None:
            path.write_text(text)
        message = refused("--mode=evaluate", "--input", path, "--output", tmp_path / "report.json")
        assert expected in message and str(path) in message


def test_numbers_that_are_no_longer_finite_exit_3_with_one_line(command, smallest, tmp_path):
    arrays = arrays_of(**SMALLEST)
    # As far from the median as float32 reaches, on both sides: the sum of a batch is infinite.
    arrays["train/label"] = 3e38 * np.resize([1.0, 0.0, -1.0], arrays["train/label"].shape)
    path = write(tmp_path / "corpus.npz", arrays)
    asked = "--config", smallest, f"--config.data.path={path}", "--workdir", tmp_path / "run"
    answer = command(*asked)
    assert answer.code == 3, answer.err
    errors = [line for line in answer.err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and "seed 0 in epoch" in errors[0], answer.err
    assert "Traceback" not in answer.err
    assert not (tmp_path / "run" / "results.json").exists()


# --- runs ---


def test_a_run_ends_with_its_results_and_the_path_of_its_folder(whole):
    folder, answer = whole
    results = json.loads((folder / "results.json").read_text())
    assert f"{results['model']['parameters']:,} parameters" in answer.out
    for name, values in results["test"].items():
        (row,) = [
            line for line in answer.out.splitlines() if line.startswith((f"{name} ↓", f"{name} ↑"))
        ]
        is_share = name.startswith(("acc", "f1"))
        for value in (values["mean"], values["ci95"][0]):
            assert (f"{100 * value:.1f}" if is_share else f"{value:.3f}") in row
    assert answer.out.endswith(f"Run folder: {folder}\n")


def test_a_log_that_is_no_terminal_gets_plain_lines(whole):
    folder, answer = whole
    lines = answer.err.splitlines()
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d [ -~]+", line) for line in lines), lines
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    epochs = [re.search(rf" epoch (\d+)/{EPOCHS}  train loss (\S+) ", line) for line in lines]
    epochs = [found for found in epochs if found]
    assert [int(found[1]) for found in epochs] == sorted({line["epoch"] for line in metrics})
    mean = np.mean([line["train_loss"] for line in metrics if line["epoch"] == 1])
    assert epochs[0][2] == f"{mean:.4f}"


def test_a_paused_run_exits_75_and_has_no_results_yet(paused):
    folder, answer = paused
    assert answer.code == 75, answer.err
    assert re.fullmatch("Paused.* the same command continues.*\n", answer.out)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 1, 2, 2]
    assert not any((folder / n).exists() for n in ("results.json", "predictions", "bundle"))


def without_clock(folder: pathlib.Path) -> tuple[dict, list[dict]]:
    results = json.loads((folder / "results.json").read_text())
    assert results["timing"].pop("train_seconds") > 0
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line.pop("seconds") >= 0 for line in lines)
    return results, lines


def test_a_finished_folder_prints_the_stored_results_and_changes_no_file(
    whole, command, smallest
):
    folder, first = whole

    def state():
        return files(folder), {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}

    before = state()
    # What is free to change does not make it another run.
    free = ("checkpoint_every_seconds=1", "compile_cache=off", "seed_axis=vmap")
    for more in ([], ["--stop_after_epochs=1", *(f"--config.train.{setting}" for setting in free)]):
        answer = command("--config", smallest, "--workdir", folder, *more)
        assert (answer.code, answer.out) == (0, first.out)
        assert state() == before


def test_evaluate_measures_a_run_or_a_file_of_predictions_anew(whole, command, tmp_path):
    folder, _ = whole
    stored = json.loads((folder / "results.json").read_text())
    asked = "--mode=evaluate", "--output", tmp_path / "r.json"
    answer = command(*asked, "--workdir", folder, "--split=valid")
    assert answer.code == 0, answer.err
    report, of_valid = json.loads((tmp_path / "r.json").read_text()), stored["valid"]["mae"]
    assert report["metrics"]["mae"]["seeds"] == pytest.approx(of_valid["seeds"], abs=1e-6)
    assert report["largest_difference"] < 1e-6
    assert "20 samples" in answer.out and f"{of_valid['mean']:.3f}" in answer.out
    for _ in range(2):  # its own report is replaced
        answer = command(*asked, "--input=test.csv", folder=folder / "predictions")
        assert (answer.code, answer.err) == (0, "")
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["ensemble"]["mae"] == pytest.approx(stored["test_ensemble"]["mae"], abs=1e-6)
    assert f"{stored['test']['mae']['mean']:.3f}" in answer.out


def test_predict_writes_the_rows_that_it_announces(whole, command, tmp_path):
    output = tmp_path / "p.csv"
    answer = command(
        *("--mode=predict", "--bundle", whole[0] / "bundle", "--input=synthetic"),
        *("--split=valid", "--output", output),
    )
    assert answer == Answer(0, f"20 predictions: {output}\n", "")
    assert output.read_bytes() == (whole[0] / "predictions" / "valid.csv").read_bytes()


def test_predict_cuts_if_it_is_asked_to_and_says_that_a_file_is_replaced(
    whole, command, arrays, tmp_path
):
    of_text = without(*(f"{split}/audio" for split in ("train", "valid", "test")))(arrays)
    output, corpus = tmp_path / "p.csv", write(tmp_path / "longer.npz", of_text)
    asked = "--mode=predict", "--bundle", whole[0] / "bundle", "--input", corpus, "--split=test"
    asked += "--output", output
    message = one_line(command(*asked))
    assert "longer than the model's 1 steps" in message and "--config.data.truncate=" in message
    assert not output.exists()
    output.write_text("of somebody")
    message = one_line(command(*asked, "--config.data.truncate=first"))
    assert "is there already and holds no predictions" in message
    assert output.read_text() == "of somebody"
    output.write_text("id,label,score\n")
    answer = command(*asked, "--config.data.truncate=first")
    said = f"20 predictions: {output}, in place of the file that was there\n"
    assert (answer.code, answer.out) == (0, said)
    assert output.read_text().startswith("id,label,score,")


def test_inspect_prints_and_writes_the_facts_of_a_corpus(command, arrays, tmp_path):
    path = write(tmp_path / "corpus.npz", arrays)
    for _ in range(2):  # its own report is replaced
        answer = command("--mode=inspect", "--input", path, "--output", tmp_path / "report.json")
        assert (answer.code, answer.err) == (0, "")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["sizes"] == {"train": 44, "valid": 20, "test": 20}
    assert report["digest"] in answer.out and "44 train, 20 valid, 20 test" in answer.out


def test_inspect_without_a_corpus_has_the_cost_of_a_model_and_overrides_are_as_documented(
    command, experiment, tmp_path
):
    overrides = "text.input_dropout=0.3,audio.mixer=gru"
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert f"--config.model.overrides={overrides}" in page
    answer = command(
        *("--mode=inspect", "--config", experiment, "--output", tmp_path / "cost.json"),
        *("--config.model.n_layers_mod=1", f"--config.model.overrides={overrides}"),
    )
    assert (answer.code, answer.err) == (0, "")
    report = json.loads((tmp_path / "cost.json").read_text())
    assert f"{report['flops']:,}" in answer.out and f"{report['xla_flops']:,.0f}" in answer.out
    assert f"{report['parameters']['total']:,}" in answer.out
    assert report["sizes"] == {
        "text": {"steps": 2, "features": 6},
        "audio": {"steps": 1, "features": 5},
    }
    parts = {(row["stage"], row["part"]) for row in report["stages"]}
    assert ("audio_encoder", "recurrence") in parts and ("text_encoder", "recurrence") not in parts


def test_the_experiment_file_may_stand_anywhere_and_without_one_the_defaults_hold(
    command, experiment, tmp_path
):
    def sizes(*arguments) -> str:
        answer = command("--mode=inspect", "--input=synthetic", *arguments, folder=tmp_path)
        assert (answer.code, answer.err) == (0, "")
        return re.search("(.*) train, (.*) valid", answer.out)[0]

    change = "--config.data.synthetic.valid=21"
    assert "44 train, 21 valid" in sizes("--config", experiment, change)
    assert "44 train, 21 valid" in sizes(change, f"--config={experiment}")
    assert f"{DataConfig().synthetic.train} train, 21 valid" in sizes(change)


def test_a_tilde_is_the_home_folder(command, experiment, arrays, tmp_path):
    write(tmp_path / "corpus.npz", arrays)
    shutil.copy(experiment, tmp_path / "mine.py")
    asked = "--mode=convert", "--config=~/mine.py", "--input=~/corpus.npz", "--output=~/c"
    answer = command(*asked, environment={"HOME": str(tmp_path)})
    assert answer == Answer(0, f"Converted: {tmp_path / 'c'}\n", "")
    assert (tmp_path / "c" / "corpus.json").exists()


def test_profile_leaves_a_trace_and_changes_no_result(whole, command, smallest, tmp_path):
    folder = tmp_path / "run"
    trace = folder / "trace" / "first"  # there before the run is
    answer = command("--config", smallest, "--workdir", folder, "--profile", trace)
    assert answer.code == 0, answer.err
    assert re.search(r"Profile of \d+ dispatches: .*/trace/first", answer.err)
    assert list(trace.rglob("*.xplane.pb"))
    assert without_clock(folder) == without_clock(whole[0])
