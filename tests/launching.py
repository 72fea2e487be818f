"""Launch files run as their headers say, on stand-ins for the programs of a cluster.

A stand-in writes what it was called with into a log and does what the real program would: `ssh` and
`gcloud` hand their command to a shell, `srun` starts tasks with Slurm's environment, `kubectl`
keeps what it is given. In place of Python stands a program that exits as it is told, or waits for a
signal; the tests of whole runs use the real one.
"""

import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECONDS = 1800  # no test waits longer for anything, also on a busy machine
# The files that start several processes of one run.
SCRIPTS = ["processes.sh", "ssh.sh", "slurm.sh", "tpu_pod.sh"]
MANIFESTS = ["kubernetes_gpu.yaml", "kubernetes_tpu.yaml"]

# Every stand-in: `log NAME WORD...` writes a line, `$HERE` is the folder of stand-ins and log.
HEAD = r"""#!/usr/bin/env bash
HERE=$(dirname "$0")
log() { printf -v line '%s\037' "$@"; printf '%s\n' "${line//$'\n'/$'\036'}" >>"$HERE/log"; }
"""
STAND_INS = {
    # CODES: what the processes exit with, in their order. Without it they wait for a signal.
    "python": r"""
if [[ $1 == -c ]]; then exec "$REAL_PYTHON" "$@"; fi
id=${SLURM_PROCID:-${WORKER:-${JOB_COMPLETION_INDEX:-}}}
for word in "$@"; do if [[ $word == --process_id=* ]]; then id=${word#*=}; fi; done
for name in TERM INT; do trap "log signal $id $name; exit 75" "$name"; done
log python "$id" "$PWD" "${JAX_LOCAL_DEVICE_IDS:-}" "$@"
codes=(${CODES:-})
if ((${#codes[@]})); then exit "${codes[id]}"; fi
while true; do sleep 0.05; done
""",
    "ssh": r"""
log ssh "$@"
cd "$HOME" && exec sh -c "${*: -1}"
""",
    "gcloud": r"""
log gcloud "$@"
for word in "$@"; do if [[ $word == --command=* ]]; then command=${word#*=}; fi; done
for WORKER in 0 1; do (mkdir -p "$HOME/$WORKER"; export WORKER HOME=$HOME/$WORKER
  cd "$HOME" && exec sh -c "$command") & pids+=($!); done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=${code/#0/$?}; done
exit "$code"
""",
    "sbatch": r"""
while [[ $1 == --* ]]; do log sbatch "$1"; shift; done
exec bash "$@"
""",
    "srun": r"""
while [[ $1 == --* ]]; do log srun "$1"; shift; done
forward() { kill -s TERM "${pids[@]}"; again=yes; }
trap forward TERM
log step "$$"
for ((task = 0; task < SLURM_NTASKS; task++)); do
  SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_STEP_NODELIST=localhost "$@" & pids+=($!)
done
worst=0
for task in "${!pids[@]}"; do
  again=yes
  while [[ $again ]]; do again=; code=0; wait "${pids[task]}" || code=$?; done
  if ((code)); then echo "srun: error: localhost: task $task: Exited with exit code $code" >&2; fi
  if ((code > worst)); then worst=$code; fi
done
exit "$worst"
""",
    "scontrol": 'log scontrol "$@"',
    "getent": 'log getent "$@"',
    "kubectl": 'log kubectl "$@"; cat >"$HERE/applied.yaml"',
    "envsubst": "exec \"$REAL_PYTHON\" -c 'import os, re, sys; print(re.sub(r\"\\$\\{(\\w+)\\}\","
    ' lambda m: os.environ.get(m[1], ""), sys.stdin.read()), end="")\'',
}


def load_file(path: pathlib.Path):
    """A file of Python, which is in no package, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def header(name: str) -> list[str]:
    """The comment that a launch file begins with, line by line, without its marks."""
    lines = (ROOT / "launch" / name).read_text(encoding="utf-8").splitlines()
    lines = lines[1:] if lines[0].startswith("#!") else lines
    end = next(i for i, line in enumerate(lines) if line != "#" and not line.startswith("# "))
    return [line[2:] for line in lines[:end]]


def example(name: str) -> str:
    """The command that the header of a launch file shows."""
    lines = header(name)
    first = next(i for i, line in enumerate(lines) if line.startswith("  "))
    return "\n".join(lines[first : lines.index("", first)])


def parameters(name: str) -> set[str]:
    """What the header explains, by name."""
    return {m[1] for line in header(name) if (m := re.match(r"([A-Z][A-Z_]+)  ", line))}


class Cluster:
    """A folder of stand-ins, their log, and the environment in which they are found first."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        (folder / "home").mkdir()
        for name, text in STAND_INS.items():
            path = folder / name
            path.write_text(HEAD + text, encoding="utf-8")
            path.chmod(0o755)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        self.environment = inherited | {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "REAL_PYTHON": sys.executable,
            "MSAJAX_PYTHON": str(folder / "python"),
            "SLURM_SUBMIT_DIR": str(ROOT),
            "SLURM_JOB_ID": "7",
            "SLURM_NTASKS": "2",
        }

    def start(self, command: str, *arguments: str, **environment: str) -> subprocess.Popen:
        """Runs a command of bash from the project's folder; what it says goes into `said`."""
        with (self.folder / "said").open("w", encoding="utf-8") as said:
            return subprocess.Popen(
                ["bash", "-c", f'{command} "$@"', "bash", *arguments],
                cwd=ROOT,
                env=self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, command: str, *arguments: str, **environment: str) -> int:
        """The exit code of a command that ends by itself."""
        return self.end(self.start(command, *arguments, **environment))

    def end(self, process: subprocess.Popen) -> int:
        """The exit code of a started command, after which nothing of it may be left running."""
        try:
            code = process.wait(SECONDS)
            deadline = time.monotonic() + SECONDS / 10
            while (left := session_of(process)) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert not left, self.said()
            return code
        finally:
            kill(process)

    def log(self, name: str) -> list[list[str]]:
        """What the stand-in of this name has written, a list of words for every call."""
        path = self.folder / "log"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = text.split("\n")[:-1]  # not by what stands for line ends inside a word
        calls = [line.replace("\036", "\n").split("\037")[:-1] for line in lines]
        return [call[1:] for call in calls if call[0] == name]

    def said(self) -> str:
        return (self.folder / "said").read_text(encoding="utf-8")

    def wait_for(self, happened: Callable[[], object], process: subprocess.Popen) -> None:
        """Returns when something has happened; fails if it cannot any more."""
        deadline = time.monotonic() + SECONDS
        while not happened():
            ended = process.poll() is not None and not happened()
            if ended or time.monotonic() > deadline:
                kill(process)
                raise AssertionError(self.said())
            time.sleep(0.02)


def session_of(process: subprocess.Popen) -> list[int]:
    """The processes that a started command has left, whatever groups they are in."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if fields[3] == str(process.pid) and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def kill(process: subprocess.Popen) -> None:
    """Ends a command and everything that it has started."""
    for pid in session_of(process):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait(SECONDS)


def print_flags() -> None:
    """The flags that a command line sets, read by the program's own parser."""
    from absl.flags import FLAGS

    from msajax.cli import flags

    flags.parse_flags(sys.argv)
    flags.refuse_strangers()
    flags.options()
    found = [flag for flags in FLAGS.flags_by_module_dict().values() for flag in flags]
    given = {f.name: str(FLAGS[f.name].value) for f in found if f.present and f.name != "config"}
    print(json.dumps(given))
