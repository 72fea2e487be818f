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
from tiny import tiny_config

from msajax import __version__
from msajax.config import known_keys
from msajax.corpus.formats import open_corpus

ROOT = pathlib.Path(__file__).resolve().parent.parent

# With these, the two seeds stop at different epochs, both after the pause, and the rate is reduced.
SETTINGS = {
    "train__epochs": 7,
    "train__patience": 2,
    "optim__plateau_patience": 1,
    "optim__learning_rate": 0.01,
    "data__synthetic__lengths": (2, 1),  # fewer programs
}
PAUSE = 3


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Answer]


def run(*arguments) -> Answer:
    """The real command, in a new process."""
    done = subprocess.run(
        [sys.executable, "-m", "msajax.main", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"JAX_TRANSFER_GUARD": "disallow"},  # nothing moves unasked
        capture_output=True,
        text=True,
        timeout=1800,
    )
    return Answer(done.returncode, done.stdout, calm(done.stderr))


def calm(said: str) -> str:
    """What a command says but for what it does just now, which a busy machine makes it say."""
    return re.sub(r"(?m)^[\d:]+ .* [.]{3}\n", "", said)


@pytest.fixture(scope="module")
def command(forks) -> Command:
    """The same program for many command lines; every one in a fork of its own."""

    def ask(*arguments) -> Answer:
        done = forks.run(*arguments)
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
    """Runs a command that must be refused without a trace in `tmp_path`; returns its message."""

    def ask(*arguments) -> str:
        before = files(tmp_path)
        message = one_line(command(*arguments))
        assert files(tmp_path) == before
        return message

    return ask


@pytest.fixture(scope="module")
def experiment(tmp_path_factory) -> pathlib.Path:
    """The tiny run as an experiment file."""
    path = tmp_path_factory.mktemp("configs") / "tiny_run.py"
    return survivors.write_experiment(path, **SETTINGS)


@pytest.fixture(scope="module")
def whole(experiment, tmp_path_factory) -> tuple[pathlib.Path, Answer]:
    """The folder of a run without interruption, and what the command said."""
    folder = tmp_path_factory.mktemp("runs") / "made" / "by the command"
    answer = run("--config", experiment, "--workdir", folder)
    assert answer.code == 0, answer.err
    return folder, answer


@pytest.fixture(scope="module")
def paused(experiment, command, tmp_path_factory) -> tuple[pathlib.Path, Answer]:
    """The folder of a run that was asked to stop, and what the command said."""
    folder = tmp_path_factory.mktemp("paused") / "run"
    answer = command("--config", experiment, "--workdir", folder, f"--stop_after_epochs={PAUSE}")
    return folder, answer


@pytest.fixture(scope="module")
def arrays() -> Mapping[str, np.ndarray]:
    """The tiny corpus as the arrays of a native archive."""
    synthetic = open_corpus("synthetic", tiny_config().data)
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


def write(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> pathlib.Path:
    np.savez(path, **arrays)
    return path


# --- the real process ---


@pytest.mark.parametrize("flag", ["--help", "-h", "--helpfull"])
def test_help_explains_every_mode_flag_and_key_and_exits_0(flag, command):
    answer = run(flag) if flag == "--help" else command(flag)
    assert (answer.code, answer.err) == (0, "")
    modes = ("train", "evaluate", "predict", "inspect")
    flags = ("--config", "--workdir", "--input", "--output", "--bundle", "--split")
    for word in (*modes, *flags, "--stop_after_epochs", *known_keys()):
        assert word in answer.out


def test_version_exits_0():
    assert run("--version") == Answer(0, f"msajax {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--no_such_flag=1"], "no_such_flag"),
        (["--config.model.model_dimm=8"], "model.model_dimm.*model.model_dim"),
    ],
)
def test_the_real_process_refuses_in_one_line(arguments, expected, tmp_path):
    message = one_line(run(*arguments, "--workdir", tmp_path / "run"))
    assert re.search(expected, message)
    assert files(tmp_path) == {}


# --- mistakes on the command line ---


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--wrokdir=x"], "no flag --wrokdir: did you mean --workdir[?]"),
        (["--epochs=1"], "no flag --epochs: did you mean --config.train.epochs[?]"),
        (["--lr=1"], "did you mean --config.optim.learning_rate[?]"),
        (["--learning_rat=1"], "did you mean --config.optim.learning_rate[?]"),
        (["--name=x"], "did you mean --config.model.name or --config.optim.name[?]"),
        (["--config.train.epoch=3"], "'train.epoch'.*'train.epochs'"),
        (["--config.optim.learning_rat", "1e-3"], "'optim.learning_rat'.*'optim.learning_rate'"),
        (["--noconfig.model.bidirectional"], "'model.bidirectional'.*bidirectional_fusion'"),
        (["--config.modle.ff_dim=8"], "'modle.ff_dim'.*'model.ff_dim'"),
        (["--config.model=3"], "'model'"),
        (["--config.train.epochs=abc"], "train.epochs=abc: must be a whole number[.]$"),
        (["--config.train.epochs=1.5"], "train.epochs=1.5: must be a whole number[.]$"),
        (["--config.train.epochs=[1]"], "train.epochs=.1.: must be a whole number[.]$"),
        (["--config.train.epochs"], "train.epochs"),
        (["--config.optim.learning_rate=fast"], "learning_rate=fast: must be a number[.]$"),
        (["--config.model.bidirectional_fusion=maybe"], "=maybe: must be true or false[.]$"),
        (["--config.model.num_heads=3"], "model.num_heads = 3: must divide model.model_dim = 8"),
        (["--config.model.dropout_rate=1"], "model.dropout_rate = 1.0"),
        (["--config.train.seeds=0"], "train.seeds = 0"),
        (["--config.optim.learning_rate=nan"], "optim.learning_rate = nan"),
        (["--config.train.loss=l2"], "train.loss = 'l2' does not suit regression: choose l1"),
        (["--mode=tran"], "mode=tran"),
        (["--split=tset"], "split=tset"),
        (["--stop_after_epochs=0"], "stop_after_epochs=0"),
        (["--stop_after_epochs=soon"], "stop_after_epochs=soon: must be a whole number[.]$"),
        (["--join_seconds=inf"], "--join_seconds=inf must be from 1 to 86400"),
        (["--join_seconds=nan"], "--join_seconds=nan must be from 1 to 86400"),
        (["stray"], "'stray' is not a flag"),
        (["--", "--version"], "'--version' is not a flag"),
        (["--config.data.path="], r"data.path is empty.*--config.data.path="),
        (["--config.model.heads=2"], "'model.heads': did you mean 'model.num_heads'"),
        (
            ["--config.model.modalities=text", "audio"],
            "'audio' stands alone: names are separated by commas, as in "
            "--config.model.modalities=a,b",
        ),
        (["--config.model.modalities=text audio"], "'text audio': names are separated by commas"),
        (["--config.model.modalities=[text,audio]"], "names are separated by commas"),
    ],
)
def test_a_mistake_in_a_flag_is_named(arguments, expected, refused, experiment, tmp_path):
    message = refused("--workdir", tmp_path / "run", "--config", experiment, *arguments)
    assert re.search(expected, message), message


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "--workdir"),
        (["--workdir="], "--workdir"),
        (["--mode=predict"], "--bundle"),
        (["--mode=predict", "--bundle=b"], "--input"),
        (["--mode=predict", "--bundle=b", "--input=i"], "--output"),
        (["--mode=predict", "--input=i", "--output=o"], "--bundle"),
        (["--mode=evaluate"], "one of --workdir=RUN and --input=predictions.csv.\n"),
        (["--mode=evaluate", "--workdir=w", "--input=i"], "not both"),
    ],
)
def test_a_mode_names_the_flag_that_it_needs(arguments, expected, refused, experiment):
    assert expected in refused("--config", experiment, *arguments)


# --- experiment files ---


@pytest.mark.parametrize("override", [[], ["--config.train.seeds=2"]], ids=["", "override"])
@pytest.mark.parametrize("name", ["absent.py", "absent.py:smoke", "."])
def test_a_missing_experiment_file_is_named(name, override, refused, tmp_path):
    path = f"{tmp_path}/{name}"
    message = refused("--config", path, *override, "--workdir", tmp_path / "run")
    assert message == f"error: There is no configuration file {path.split(':')[0]}.\n"


def test_an_experiment_file_without_its_suffix_is_guessed(refused, tmp_path):
    path = ROOT / "configs" / "mosi"
    message = refused(f"--config={path}", "--workdir", tmp_path / "run")
    assert message.endswith(f"There is no configuration file {path}; did you mean {path}.py?\n")


def test_a_corpus_in_place_of_an_experiment_file_is_told_where_it_goes(refused, arrays, tmp_path):
    path = write(tmp_path / "corpus.npz", arrays)
    message = refused(f"--config={path}", "--workdir", tmp_path / "run")
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
    path = tmp_path / "broken.py"
    path.write_text(
        "import sys\nfrom ml_collections import ConfigDict\nfrom msajax import Config, UserError\n"
        "from msajax.config import default_config\n\n"
        f"def get_config():\n    config = default_config()\n    {body}\n    return config\n"
    )
    message = refused(f"--config={path}", f"--workdir={tmp_path / 'run'}")
    assert re.search(expected, message), message


@pytest.mark.parametrize("value", ["None", "3"])
def test_an_override_of_what_is_no_configuration_is_one_line(value, refused, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(f"def get_config():\n    return {value}\n")
    message = refused(f"--config={path}", "--config.train.seeds=2", f"--workdir={tmp_path / 'run'}")
    assert NOT_A_CONFIG in message


@pytest.mark.parametrize(
    ("text", "expected"), [("x = \n", "SyntaxError"), ("x = 1\n", "get_config"), ("\0", "null")]
)
def test_a_file_that_is_no_experiment_is_one_line(text, expected, refused, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(text)
    assert expected in refused(f"--config={path}", f"--workdir={tmp_path / 'run'}")


def test_an_unknown_argument_of_an_experiment_names_the_known_one(refused, tmp_path):
    message = refused(
        f"--config={ROOT / 'configs' / 'synthetic.py'}:smok", f"--workdir={tmp_path / 'run'}"
    )
    assert re.search("'smok' is unknown.*'smoke'", message)


# --- corpora ---


def truncated(path, arrays):
    content = write(path, arrays).read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


def flipped(path, arrays):
    content = bytearray(write(path, arrays).read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path, arrays: None, "There is no corpus at"),
        (lambda path, arrays: path.mkdir(), "is not a corpus: expected"),
        (lambda path, arrays: path.write_bytes(b""), "is not a corpus"),
        (lambda path, arrays: path.write_text("id,label\n1,2\n"), "is not a corpus"),
        (truncated, "damaged or not an .npz archive"),
        (flipped, "damaged"),
    ],
    ids=["absent", "folder", "empty", "text", "truncated", "flipped"],
)
@pytest.mark.parametrize("mode", ["train", "predict", "inspect"])
def test_a_file_that_is_no_corpus_is_refused(
    mode, make, expected, refused, experiment, arrays, whole, tmp_path
):
    path = tmp_path / "corpus.npz"
    make(path, arrays)
    where = {
        "train": [f"--config.data.path={path}", f"--workdir={tmp_path / 'run'}"],
        "predict": [f"--input={path}", f"--bundle={whole[0]}/bundle", f"--output={tmp_path}/p.csv"],
        "inspect": [f"--input={path}", f"--output={tmp_path / 'report.json'}"],
    }
    message = refused("--config", experiment, f"--mode={mode}", *where[mode])
    assert expected in message and str(path) in message


def without(*names):
    return lambda arrays: {k: x for k, x in arrays.items() if not k.startswith(names)}


def changed(name, change):
    return lambda arrays: dict(arrays) | {name: change(arrays[name])}


def poisoned(labels):
    return np.where(np.arange(len(labels)) == 3, np.nan, labels)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (without("valid/"), "has no split 'valid'; it has train, test"),
        (without("test/"), "has no split 'test'; it has train, valid"),
        (without("train/label"), "split 'train' has no labels"),
        (without("test/label"), "split 'test' has no labels"),
        (without("valid/id"), "valid/id is missing"),
        (without(""), "holds no split"),
        (changed("test/label", poisoned), "1 label.*'test' are not finite.*'test0000_3'"),
        (changed("valid/label", lambda x: x[:7]), "valid/label has 7 rows, but valid/id has 20"),
        (changed("train/text_mask", lambda x: x[:9]), r"train/text_mask.*\(9, 5\).*\(44, 5\)"),
        (changed("valid/label", lambda x: x[:, None] * [1, 2]), "1 in train, 2 in valid"),
        (changed("train/raw_text", lambda x: x.astype(object)), "train/raw_text.*pickle"),
        (changed("test/id", lambda x: np.arange(20)), r"test/id is int64.*strings"),
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
    message = refused(
        "--config", experiment, f"--config.data.path={path}", f"--workdir={tmp_path / 'run'}"
    )
    assert re.search(expected, message), message


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("model.modalities=('text','smell')", "model.modalities names 'smell'.* text, audio"),
        ("model.modalities=text,smell", "model.modalities names 'smell'.* text, audio"),
        ("model.anchor=smell", "model.anchor = 'smell'.* text, audio"),
        ("data.standardize=('smell',)", "data.standardize names 'smell'.* text, audio"),
        ("model.max_len=1", "longer than the model's 1 steps.*model.max_len"),
    ],
)
def test_a_setting_that_does_not_fit_the_corpus_is_named(
    setting, expected, refused, experiment, tmp_path
):
    message = refused(
        "--config", experiment, f"--config.{setting}", f"--workdir={tmp_path / 'run'}"
    )
    assert re.search(expected, message), message


@pytest.mark.parametrize("mode", ["evaluate", "convert"])
def test_a_reader_that_goes_early_is_no_error(mode, whole, tmp_path):
    asked = {"evaluate": ["--workdir", whole[0]], "convert": ["--input=synthetic"]}[mode]
    output = tmp_path / "output"
    with subprocess.Popen(
        [sys.executable, "-m", "msajax.main", f"--mode={mode}", *asked, "--output", output],
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


@pytest.mark.parametrize("mode", ["train", "predict", "evaluate", "inspect"])
def test_devices_that_are_not_there_are_one_line(mode, experiment, whole, tmp_path):
    asked = {
        "train": ["--config", experiment, "--workdir", tmp_path / "run"],
        "predict": ["--bundle", whole[0] / "bundle", "--input=synthetic"],
    }
    asked["predict"] += ["--output", tmp_path / "p"]
    asked |= {"evaluate": ["--workdir", whole[0]], "inspect": ["--config", experiment]}
    done = subprocess.run(
        [sys.executable, "-m", "msajax.main", f"--mode={mode}", *map(str, asked[mode])],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "rocket"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    *_, line = done.stderr.splitlines()
    said = "error: JAX cannot use the devices that JAX_PLATFORMS='rocket' asks for ("
    assert line.startswith(said), line
    assert "Traceback" not in done.stderr and list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize("workdir", ["a_file", "a_file/run", "/proc/run", "/dev/null"])
def test_a_workdir_that_cannot_be_written_is_refused(workdir, refused, experiment, tmp_path):
    (tmp_path / "a_file").write_text("mine")
    path = tmp_path / workdir
    if not path.parent.exists():
        pytest.skip(f"no {path.parent} on this system")
    message = refused("--config", experiment, "--workdir", path)
    reason = "is a file" if path.exists() and not path.is_dir() else "cannot be written"
    assert f"The workdir {path} {reason}" in message


@pytest.mark.parametrize("mine", ["bundle/mine.txt", "metrics.jsonl", "results.json", "notes"])
def test_a_folder_that_is_not_empty_and_no_runs_is_refused_and_kept(
    mine, refused, experiment, tmp_path
):
    (tmp_path / "run" / mine).parent.mkdir(parents=True)
    (tmp_path / "run" / mine).write_text("mine")
    message = refused("--config", experiment, "--workdir", tmp_path / "run")
    assert "no config.json, so it is no run's folder" in message


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["--input=x"], "input"),
        (["--split=test"], "split"),
        (["--mode=predict", "--workdir=x"], "workdir"),
        (["--mode=inspect", "--stop_after_epochs=1"], "stop_after_epochs"),
        (["--mode=evaluate", "--bundle=x"], "bundle"),
    ],
)
def test_a_flag_that_the_mode_would_ignore_is_refused(arguments, flag, refused):
    assert f"does not read --{flag}" in refused(*arguments)


@pytest.mark.parametrize("name", ["profile", "config.data.path", "config.data.glove_path"])
def test_a_url_is_no_path(name, refused, experiment, tmp_path):
    flags = {"workdir": tmp_path / "run", name: "gs://bucket/run"}
    message = refused("--config", experiment, *(f"--{k}={v}" for k, v in flags.items()))
    assert f"{name.removeprefix('config.')}" in message and "mount the bucket" in message
    assert not (tmp_path / "run").exists()
    assert not (ROOT / "gs:").exists()


def test_a_prediction_never_replaces_its_own_corpus(whole, refused, arrays, tmp_path):
    corpus = write(tmp_path / "corpus.npz", arrays)
    message = refused(
        *("--mode=predict", "--bundle", whole[0] / "bundle", "--input", corpus),
        *("--output", tmp_path / "." / "corpus.npz"),
    )
    assert "is the corpus itself" in message


@pytest.mark.parametrize("mode", ["inspect", "evaluate"])
def test_a_report_never_replaces_what_it_is_about(mode, whole, refused, arrays, tmp_path):
    if mode == "inspect":
        source = write(tmp_path / "corpus.npz", arrays)
    else:
        source = tmp_path / "scores.csv"
        shutil.copy(whole[0] / "predictions" / "test.csv", source)
    message = refused(f"--mode={mode}", "--input", source, "--output", source)
    assert f"{source} is the input itself" in message
    (tmp_path / "notes.txt").write_text("mine")
    message = refused(f"--mode={mode}", "--input", source, "--output", tmp_path / "notes.txt")
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


def test_a_prediction_never_replaces_a_part_of_what_it_reads(whole, refused, tmp_path):
    bundle = tmp_path / "bundle"
    shutil.copytree(whole[0] / "bundle", bundle)
    (tmp_path / "corpus").mkdir()
    for output, what in ((tmp_path / "corpus" / "y_test.h5", "corpus"), (bundle, "bundle")):
        message = refused(
            *("--mode=predict", "--bundle", bundle, "--input", tmp_path / "corpus"),
            *("--output", output),
        )
        assert f"lies inside the {what} " in message


@pytest.mark.parametrize("state", ["whole", "paused"])
def test_the_workdir_of_another_configuration_is_refused_with_both_sides(
    state, request, refused, experiment, tmp_path
):
    shutil.copytree(request.getfixturevalue(state)[0], tmp_path / "run")
    message = refused(
        *("--config", experiment, "--workdir", tmp_path / "run"),
        *("--config.train.seeds=3", "--config.optim.learning_rate=0.5"),
    )
    assert "train.seeds: 2 there, 3 here" in message
    assert "optim.learning_rate: 0.01 there, 0.5 here" in message
    assert message.count(" there, ") == 2


def test_the_workdir_of_another_corpus_is_refused_with_both_digests(
    whole, refused, experiment, arrays, tmp_path
):
    shutil.copytree(whole[0], tmp_path / "run")
    path = write(tmp_path / "corpus.npz", arrays)
    message = refused(
        "--config", experiment, f"--config.data.path={path}", "--workdir", tmp_path / "run"
    )
    stored = json.loads((whole[0] / "run.json").read_text())["corpus"]["digest"]
    digests = (stored, open_corpus(path).digest)
    assert "corpus digest: {!r} there, {!r} here".format(*digests) in message
    assert message.count(" there, ") == 1


def test_a_missing_bundle_is_refused(refused, tmp_path):
    message = refused(
        *("--mode=predict", "--bundle", tmp_path / "absent", "--input=synthetic"),
        *("--output", tmp_path / "predictions.csv"),
    )
    assert f"There is no bundle at {tmp_path / 'absent'}" in message


@pytest.mark.parametrize("output", ["a_folder", "absent/predictions.csv", "a_file/predictions.csv"])
def test_predictions_that_cannot_be_written_leave_nothing(output, whole, refused, tmp_path):
    (tmp_path / "a_folder").mkdir()
    (tmp_path / "a_file").write_text("mine")
    message = refused(
        *("--mode=predict", "--bundle", whole[0] / "bundle", "--input=synthetic"),
        *("--split=test", "--output", tmp_path / output),
    )
    assert f"{tmp_path / output} cannot be written" in message


@pytest.mark.parametrize("output", ["a_folder", "absent/report.json"])
def test_a_report_that_cannot_be_written_leaves_nothing(output, whole, refused, tmp_path):
    (tmp_path / "a_folder").mkdir()
    message = refused(
        *("--mode=evaluate", "--input", whole[0] / "predictions" / "test.csv"),
        *("--output", tmp_path / output),
    )
    assert f"{tmp_path / output} cannot be written" in message


def test_evaluate_refuses_a_run_that_has_not_ended(paused, refused, tmp_path):
    for folder in (paused[0], tmp_path / "absent"):
        message = refused("--mode=evaluate", "--workdir", folder)
        assert f"{folder} holds no run that has ended" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "cannot be read as CSV"),
        ("", "is empty: expected columns such as id, label and score"),
        ("label,score\n", "holds no prediction"),
        ("label\n1\n", "has no column 'score'"),
        ("label,score\n1,2\n,2\n", "row 2: label is ''"),
        ("label,score\n1,nan\n", "row 1: score is 'nan'"),
    ],
)
def test_evaluate_refuses_a_file_that_holds_no_scored_labels(text, expected, refused, tmp_path):
    path = tmp_path / "predictions.csv"
    if text is not None:
        path.write_text(text)
    message = refused("--mode=evaluate", "--input", path, "--output", tmp_path / "report.json")
    assert expected in message and str(path) in message


def test_numbers_that_are_no_longer_finite_exit_3_with_one_line(
    command, experiment, arrays, tmp_path
):
    # As far from the median as float32 reaches, on both sides: the sum of a batch is infinite.
    signs = np.resize([1.0, 0.0, -1.0], arrays["train/label"].shape)
    huge = changed("train/label", lambda x: 3e38 * signs)(arrays)
    path = write(tmp_path / "corpus.npz", huge)
    answer = command(
        "--config", experiment, f"--config.data.path={path}", "--workdir", tmp_path / "run"
    )
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
    epochs = [re.search(r" epoch (\d+)/7  train loss (\S+) ", line) for line in lines]
    epochs = [found for found in epochs if found]
    assert [int(found[1]) for found in epochs] == sorted({line["epoch"] for line in metrics})
    mean = np.mean([line["train_loss"] for line in metrics if line["epoch"] == 1])
    assert epochs[0][2] == f"{mean:.4f}"


def test_a_paused_run_exits_75_and_has_no_results_yet(paused):
    folder, answer = paused
    assert answer.code == 75, answer.err
    assert re.fullmatch("Paused.* the same command continues.*\n", answer.out)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 1, 2, 2, 3, 3]
    assert not any((folder / n).exists() for n in ("results.json", "predictions", "bundle"))


def without_clock(folder: pathlib.Path) -> tuple[dict, list[dict]]:
    results = json.loads((folder / "results.json").read_text())
    assert results["timing"].pop("train_seconds") > 0
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line.pop("seconds") >= 0 for line in lines)
    return results, lines


def test_a_finished_folder_prints_the_stored_results_and_changes_no_file(
    whole, command, experiment
):
    folder, first = whole

    def state():
        return files(folder), {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}

    before = state()
    answer = command("--config", experiment, "--workdir", folder)
    assert (answer.code, answer.out) == (0, first.out)
    assert state() == before
    # What is free to change does not make it another run.
    free = ("train.checkpoint_every_seconds=1", "train.compile_cache=off", "train.seed_axis=vmap")
    flags = [f"--config.{setting}" for setting in free]
    again = command("--config", experiment, "--workdir", folder, "--stop_after_epochs=1", *flags)
    assert (again.code, again.out) == (0, first.out)
    assert state() == before


def test_evaluate_measures_a_run_anew(whole, command, tmp_path):
    folder, _ = whole
    answer = command(
        "--mode=evaluate", "--workdir", folder, "--split=valid", "--output", tmp_path / "r.json"
    )
    assert answer.code == 0, answer.err
    report = json.loads((tmp_path / "r.json").read_text())
    stored = json.loads((folder / "results.json").read_text())["valid"]
    assert report["metrics"]["mae"]["seeds"] == pytest.approx(stored["mae"]["seeds"], abs=1e-6)
    assert report["largest_difference"] < 1e-6
    assert "20 samples" in answer.out and f"{stored['mae']['mean']:.3f}" in answer.out


def test_evaluate_measures_a_file_of_predictions(whole, command, tmp_path):
    folder, _ = whole
    asked = ("--input", folder / "predictions/test.csv", "--output", tmp_path / "r")
    for _ in range(2):  # its own report is replaced
        answer = command("--mode=evaluate", *asked)
        assert (answer.code, answer.err) == (0, "")
    report = json.loads((tmp_path / "r").read_text())
    stored = json.loads((folder / "results.json").read_text())
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
    longer = dict(arrays) | {
        f"test/{m}{mask}": np.repeat(arrays[f"test/{m}{mask}"], 2, axis=1)
        for m in ("text", "audio")
        for mask in ("", "_mask")
    }
    output = tmp_path / "p.csv"
    asked = ("--mode=predict", "--bundle", whole[0] / "bundle", "--split=test", "--output", output)
    corpus = write(tmp_path / "longer.npz", longer)
    message = one_line(command(*asked, "--input", corpus))
    assert "longer than the model's 2 steps" in message and "--config.data.truncate=" in message
    assert not output.exists()
    output.write_text("of somebody")
    message = one_line(command(*asked, "--input", corpus, "--config.data.truncate=first"))
    assert "is there already and holds no predictions" in message
    assert output.read_text() == "of somebody"
    output.write_text("id,label,score\n")
    answer = command(*asked, "--input", corpus, "--config.data.truncate=first")
    said = f"20 predictions: {output}, in place of the file that was there\n"
    assert (answer.code, answer.out) == (0, said)
    assert output.read_text().startswith("id,label,score,")


def test_inspect_prints_and_writes_the_facts_of_a_corpus(command, arrays, experiment, tmp_path):
    path = write(tmp_path / "corpus.npz", arrays)
    for _ in range(2):  # its own report is replaced
        answer = command("--mode=inspect", "--input", path, "--output", tmp_path / "report.json")
        assert (answer.code, answer.err) == (0, "")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["sizes"] == {"train": 44, "valid": 20, "test": 20}
    assert report["digest"] in answer.out and "44 train, 20 valid, 20 test" in answer.out


def test_inspect_without_a_corpus_prints_and_writes_the_cost_of_a_model(
    command, experiment, tmp_path
):
    answer = command("--mode=inspect", "--config", experiment, "--output", tmp_path / "cost.json")
    assert (answer.code, answer.err) == (0, "")
    report = json.loads((tmp_path / "cost.json").read_text())
    assert f"{report['flops']:,}" in answer.out and f"{report['xla_flops']:,.0f}" in answer.out
    assert f"{report['parameters']['total']:,}" in answer.out
    assert report["sizes"] == {
        "text": {"steps": 2, "features": 6},
        "audio": {"steps": 1, "features": 5},
    }


def test_overrides_are_read_as_the_documents_write_them(command, experiment, tmp_path):
    overrides = "text.input_dropout=0.3,audio.mixer=gru"
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert f"--config.model.overrides={overrides}" in page
    answer = command(
        *("--mode=inspect", "--config", experiment, "--output", tmp_path / "cost.json"),
        *("--config.model.n_layers_mod=1", f"--config.model.overrides={overrides}"),
    )
    assert (answer.code, answer.err) == (0, "")
    stages = json.loads((tmp_path / "cost.json").read_text())["stages"]
    parts = {(row["stage"], row["part"]) for row in stages}
    assert ("audio_encoder", "recurrence") in parts and ("text_encoder", "recurrence") not in parts


def test_the_experiment_file_may_stand_anywhere_and_without_one_the_defaults_hold(
    command, experiment, tmp_path
):
    def parameters(*arguments) -> tuple[int, list[str]]:
        answer = command("--mode=inspect", "--output", tmp_path / "cost.json", *arguments)
        assert (answer.code, answer.err) == (0, "")
        report = json.loads((tmp_path / "cost.json").read_text())
        return report["parameters"]["total"], list(report["sizes"])

    first = parameters("--config", experiment, "--config.model.ff_dim=8")
    assert parameters("--config.model.ff_dim=8", f"--config={experiment}") == first
    # Source 002's count for its own three modalities, with 20 steps.
    assert parameters("--config.data.path=synthetic") == (1_130_372, ["text", "audio", "video"])


def test_a_tilde_is_the_home_folder(experiment, arrays, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "corpus.npz", arrays)
    shutil.copy(experiment, tmp_path / "mine.py")
    answer = run("--mode=convert", "--config=~/mine.py", "--input=~/corpus.npz", "--output=~/c")
    assert answer == Answer(0, f"Converted: {tmp_path / 'c'}\n", "")
    assert (tmp_path / "c" / "corpus.json").exists()


def test_every_mode_works_from_another_folder(whole, forks):
    asked = "--mode=evaluate", "--input=test.csv"
    answer = forks.run(*asked, folder=whole[0] / "predictions")
    assert (answer.returncode, calm(answer.stderr)) == (0, "")
    assert "20 samples" in answer.stdout


def test_a_profile_that_cannot_be_written_leaves_no_run(refused, experiment, tmp_path):
    (tmp_path / "file").write_text("mine")
    folder, trace = tmp_path / "run", tmp_path / "file" / "trace"
    message = refused("--config", experiment, "--workdir", folder, f"--profile={trace}")
    assert f"{trace} cannot be written: Not a directory" in message
    assert not folder.exists()


def test_profile_leaves_a_trace_and_changes_no_result(whole, command, experiment, tmp_path):
    folder = tmp_path / "run"
    trace = folder / "trace" / "first"  # there before the run is
    answer = command("--config", experiment, "--workdir", folder, "--profile", trace)
    assert answer.code == 0, answer.err
    assert re.search(r"Profile of \d+ dispatches: .*/trace/first", answer.err)
    assert list(trace.rglob("*.xplane.pb"))
    assert without_clock(folder) == without_clock(whole[0])


def test_sizes_of_the_embedded_corpus_can_be_set(command):
    done = command("--mode=inspect", "--input=synthetic", "--config.data.synthetic.train=44")
    assert "44 train" in done.out
