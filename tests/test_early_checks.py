"""Wrong commands of every mode: one line, nothing left behind, and JAX is not loaded for it."""

import json
import pathlib
import re
import shlex

import numpy as np
import pytest
from made_runs import make_run
from survivors import ROOT, python
from tiny import tiny_config

from msajax.announce import SECONDS
from msajax.config import known_keys, reading
from msajax.config.identity import NUMERICS
from msajax.inference.description import FORMAT_VERSION, content_digest

# Each command in a fork of a process that has not loaded JAX: what it says, its code, what it left.
COMMANDS = """
import json, os, sys
import msajax.main
msajax.announce.SECONDS = 1e9
for line in sys.stdin:
    child = os.fork()
    if not child:
        os.dup2(os.open("../err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        sys.argv = ["msajax", *json.loads(line)]
        code = 99
        try:
            msajax.main.run()
        except SystemExit as end:
            code = end.code
        sys.stderr.flush()
        os._exit(98 if "jax" in sys.modules else code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([code, open("../err").read()]), flush=True)
"""

WRONG = """
--config.data.path=corpsu.npz --workdir=new  # no corpus at corpsu.npz; did you mean corpus.npz?
--config.data.path=corpus.npz --workdir=corpus.npz  # is a file; it must be a folder
--config.data.path=corpus.npz --workdir=corpus.npz/run  # cannot be written: Not a directory
--config.data.path=corpus.npz --workdir=/proc/run  # The workdir /proc/run cannot be written
--config.data.path=corpus.npz --workdir=/dev/null  # The workdir /dev/null is a file
--config.data.path=corpus.npz --workdir=other  # 'notes' but no config.json
--config.data.path=corpus.npz --workdir=runs/ta/bundle  # is a bundle.*did you mean runs/ta?
--config.data.path=corpus.npz --workdir=new --profile=corpus.npz/t  # cannot be written: Not a dir
--config.data.path=corpus.npz --workdir=new --config.data.glove_path=no.txt  # no file at no.txt
--config.data.path=corpus.npz --workdir=new --config.model.init_from=runs/ta  # mean runs/ta/bundle?
--config.data.path=corpus.npz --workdir=new --config.model.text_encoder=no  # no folder no: a pre
--config.data.path=all.npz --workdir=new --config.data.text=words  # has no raw_text in train.
--mode=ablate --config.data.path=nothing --workdir=new  # There is no corpus at nothing.
--mode=sweep --config.data.path=nothing --workdir=new  # There is no corpus at nothing.
--config=configs/mosii.py --workdir=new  # file configs/mosii.py; did you mean configs/mosi.py?
--config=mosi --workdir=new  # no configuration file mosi; did you mean configs/mosi.py?
--mode=sweep --config.data.path=corpus.npz --workdir=new  # sweep needs --config=FILE, a Python
--mode=predict --bundle=runs/ta --input=corpus.npz --output=p.csv  # did you mean runs/ta/bundle?
--mode=predict --bundle=runs/taa/bundle --input=corpus.npz --output=p.csv  # mean runs/ta/bundle?
--mode=predict --bundle=runs/ta/bundle --input=corpsu.npz --output=p.csv  # did you mean corpus.npz?
--mode=predict --bundle=runs/ta/bundle --input=corpus.npz --output=no/p.csv  # no folder no
--mode=predict --bundle=runs/ta/bundle --input=corpus.npz --output=/proc/p.csv  # cannot be written
--mode=predict --bundle=runs/ta/bundle --input=corpus.npz --output=p.csv --split=train  # 'train'
--mode=explain --bundle=runs/ta/bundle --input=corpus.npz --output=p.html --split=valid  # 'valid'
--mode=explain --bundle=runs/ta/bundle --input=corpus.npz --output=p.csv  # must end in .html
--mode=explain --workdir=runs/taa  # no such folder; did you mean runs/ta?
--mode=evaluate --workdir=other  # holds no run that has ended
--mode=evaluate --workdir=runs/ta/bundle  # It is a bundle; did you mean runs/ta?
--mode=evaluate --workdir=runs/ta --output=no/r.json  # there is no folder no
--mode=robustness --workdir=runs/ta  # The corpus of this run is no longer at
--mode=generate --bundle=runs/ta --input=text  # did you mean runs/ta/bundle?
--mode=generate --bundle=runs/ta/bundle --input=text --output=no/t  # there is no folder no
--mode=export --bundle=runs/ta --output=exported  # did you mean runs/ta/bundle?
--mode=export --bundle=runs/ta/bundle --output=/proc/e  # cannot be written
--mode=embed --input=corpus.npz --config.model.text_encoder=bert --output=e.npz  # no folder bert
--mode=extract --input=clips.csv --output=c.npz  # clips.csv cannot be read
--mode=extract --input=corpus.npz --output=c.npz  # is no CSV in UTF-8
--mode=predict --bundle=runs/ta/bundle --input=clip.mp4 --output=p.csv  # There is no file clip.mp4
--mode=convert --input=corpus.npz --output=/proc/c.npz  # cannot be written
--mode=inspect --input=corpsu.npz  # did you mean corpus.npz?
--mode=inspect --config.data.path=corpus  # There is no corpus at corpus; did you mean corpus.npz?
--mode=compare runs/ta runs/taa  # no run and no file runs/taa; did you mean runs/ta?
--mode=compare runs/ta rnus/ta  # no run and no file rnus/ta; did you mean runs/ta?
--mode=compare runs/ta runs/ta2 --figures=/proc/f  # cannot be written
--mode=table runs/ta runs/taa  # no run and no file runs/taa; did you mean runs/ta?
--mode=report --workdir=runs/ta --figures=/proc/f  # cannot be written
--mode=report --workdir=other  # holds no run that has ended
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> pathlib.Path:
    """A folder with a corpus, a test split alone, a run whose corpus has gone, and a stranger."""
    place = tmp_path_factory.mktemp("early") / "here"
    place.mkdir()
    rng = np.random.default_rng(0)
    arrays = {"text": rng.normal(size=(4, 5, 6)), "label": np.zeros(4), "id": list("abcd")}
    np.savez(place / "corpus.npz", **{f"test/{name}": x for name, x in arrays.items()})
    splits = [(split, name) for split in ("train", "valid", "test") for name in arrays]
    every = {f"{s}/{n}": [s + i for i in "abcd"] if n == "id" else arrays[n] for s, n in splits}
    np.savez(place / "all.npz", **every)
    make_run(place / "runs" / "ta", "sentiment")
    (place / "configs").mkdir()
    (place / "configs" / "mosi.py").touch()
    (place / "other").mkdir()
    (place / "other" / "notes").touch()
    (place / "runs" / "ta" / "run.json").write_text('{"corpus": {"path": "/gone.npz"}}')
    model = {"name": "sequence_level", "module": "", "file": "", "file_sha256": ""}
    content = {"format_version": FORMAT_VERSION, "numerics": NUMERICS, "model": model}
    content |= {"msajax": "", "config": tiny_config().to_dict()}
    content = json.loads(json.dumps(content))
    bundle = place / "runs" / "ta" / "bundle"
    bundle.mkdir(exist_ok=True)
    (bundle / "bundle.json").write_text(json.dumps(content | {"sha256": content_digest(content)}))
    return place


def test_a_wrong_command_is_refused_before_jax_is_loaded_and_leaves_nothing(place):
    asked = [line.split("  # ") for line in WRONG.strip().splitlines()]
    lines = "".join(json.dumps(shlex.split(command)) + "\n" for command, _ in asked)
    before = sorted(place.rglob("*"))
    environment = {"PATH": "", "PYTHONPATH": str(ROOT)}
    done = python("-c", COMMANDS, cwd=place, env=environment, input=lines)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for (command, expected), (code, said) in zip(asked, answers, strict=True):
        assert code == 2, f"{command}: {code}: {said}"  # 98: JAX was loaded
        pattern = ".*".join(map(re.escape, expected.split(".*")))
        assert re.fullmatch(f"error: .*{pattern}.*\n", said), f"{command}: {said}"
    assert sorted(place.rglob("*")) == before


def test_importing_msajax_help_and_a_mistyped_flag_load_no_jax():
    code = """
import importlib, pkgutil, sys
import msajax
assert "jax" not in sys.modules, "import msajax"
import msajax.cli, msajax.main
for argv, expected in ((["--help"], 0), (["--wrokdir=run"], 2), (["--config.train.lr=1"], 2)):
    sys.argv = ["msajax", *argv]
    try:
        msajax.main.run()
    except SystemExit as end:
        assert end.code == expected, argv
    assert "jax" not in sys.modules, argv
for mode in pkgutil.iter_modules(msajax.cli.__path__):
    importlib.import_module(f"msajax.cli.{mode.name}")
    assert "jax" not in sys.modules, mode.name
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


ANNOUNCED = """
import logging, sys, threading, time
from msajax import announce
announce.SECONDS, said = 0.2, threading.Semaphore(0)
class Handler(logging.StreamHandler):
    def emit(self, record):
        super().emit(record)
        said.release()
logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[Handler(sys.stdout)])
announce.now("not yet")
began = time.monotonic()
with announce._changed:  # nothing is said in between, however slow this process is
    announce.begin("first")
    announce.now("second")
said.acquire()
assert time.monotonic() - began >= 0.2
time.sleep(0.3)
with announce._changed:
    announce.now("third")
    announce.now()
time.sleep(0.3)
announce.now("fourth")
said.acquire()
"""


def test_announcements_of_a_silent_command():
    assert SECONDS < 2
    assert python("-c", ANNOUNCED).stdout.splitlines() == ["second ...", "fourth ..."]


def test_every_key_has_a_meaning_in_help():
    found = list(reading.meanings())
    assert sorted(known_keys()) == sorted(key for key, _, _ in found)
    assert [key for key, _, text in found if len(text) < 5] == []
    (epochs,) = [meaning for meaning in found if meaning[0] == "train.epochs"]
    assert epochs == ("train.epochs", 100, "most passes over the training split")


@pytest.mark.parametrize("name", ["JAX_NUM_CPU_DEVICES", "JAX_ENABLE_X64"])
def test_a_variable_that_jax_does_not_take_is_named(name):
    code = "from msajax.cli.early_checks import load_jax; load_jax()"
    *_, said = python("-c", code, env={"PATH": "", name: "abc"}).stderr.splitlines()
    assert f"UserError: JAX cannot be loaded: it does not take {name} = 'abc'" in said
