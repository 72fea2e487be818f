"""The cluster launch files: what they start, what they do with signals and exit codes.

Their examples are run as they stand in their headers, on stand-ins for the programs of a cluster;
two of them also train, with real processes and real signals.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import jsonschema
import pytest
import survivors
import yaml
from kubernetes_schema import SCHEMAS
from launching import MANIFESTS, ROOT, SCRIPTS, SECONDS, Cluster, example, parameters
from tiny import SMALLEST

TRAINER = ["--config", "configs/mosi.py"]  # how every example's arguments begin
# Two processes of one run, started by each script: the command without the trainer's arguments.
PAIRS = {
    "processes.sh": "PROCESSES=2 bash launch/processes.sh",
    "ssh.sh": 'HOSTS="ada, eve" bash launch/ssh.sh', "slurm.sh": "sbatch --nodes=2 launch/slurm.sh",
    "tpu_pod.sh": "TPU=slice bash launch/tpu_pod.sh",
}


@pytest.fixture
def cluster(tmp_path) -> Cluster:
    return Cluster(tmp_path)


def python_calls(cluster: Cluster) -> list[list[str]]:
    """[process, folder, devices, argument, …] of every trainer, in the order of processes."""
    return sorted(cluster.log("python"))


@pytest.fixture(scope="module")
def flags_of(forks) -> Callable[[list[str]], dict[str, str]]:
    """Reads the flags that a trainer's command line sets."""

    def read(call: list[str]) -> dict[str, str]:
        assert call[:2] == ["-m", "msajax.main"]
        done = forks.run(*call[2:], program="launching:print_flags")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return read


# --- the files ---


@pytest.mark.parametrize("name", [*sorted(p.name for p in ROOT.glob("launch/*.sh")), "../.ci/run"])
def test_shellcheck_finds_nothing(name):
    program = shutil.which("shellcheck", path=str(pathlib.Path(sys.executable).parent))
    asked = [program, "-x", "--source-path=SCRIPTDIR", "--shell=bash", ROOT / "launch" / name]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", [*SCRIPTS, *MANIFESTS])
def test_the_header_explains_every_parameter_and_no_other_and_the_documents_show_its_command(name):
    text = (ROOT / "launch" / name).read_text(encoding="utf-8")
    code = "\n".join(line for line in text.splitlines() if not line.startswith("# "))
    read = set(re.findall(r"\$\{([A-Z][A-Z_]*)\b", code)) - {"BASH_SOURCE", "BASH_REMATCH"}
    read -= {"PIPESTATUS", "SLURM_SUBMIT_DIR", "SLURM_CPUS_PER_TASK", "SLURM_RESTART_COUNT"}
    assert parameters(name) - {"JAX_COORDINATOR_PORT"} == read
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    assert textwrap.dedent(example(name)) in page


# --- what is started ---


def test_processes_get_a_free_port_their_numbers_and_their_devices(cluster, flags_of):
    assert cluster.run(example("processes.sh"), DEVICES="2", CODES="0 0") == 0, cluster.said()
    calls = python_calls(cluster)
    assert [call[:3] for call in calls] == [["0", str(ROOT), "0,1"], ["1", str(ROOT), "2,3"]]
    given = [flags_of(call[3:]) for call in calls]
    addresses = {flags.pop("coordinator_address") for flags in given}
    assert len(addresses) == 1 and re.fullmatch(r"localhost:\d+", *addresses)
    of_both = {"num_processes": "2", "config.data.path": "corpus.npz", "workdir": "runs/mosi"}
    assert given == [of_both | {"process_id": str(process)} for process in range(2)]


def test_ssh_starts_a_process_on_every_host_that_meets_the_first_one(cluster, flags_of):
    command = example("ssh.sh") + " 'it'\\''s \"$HOME\" & more'"
    # A flag would refuse the word, which is there for the quoting alone.
    assert cluster.run(command, CODES="0 0 0", SSH_OPTIONS="-p 22 -i key") == 0, cluster.said()
    calls = sorted(cluster.log("ssh"), key=lambda call: call[-2])
    assert [call[-2] for call in calls] == ["ada", "bob", "eve"]
    assert all(call[-6:-2] == ["-p", "22", "-i", "key"] for call in calls)
    assert all("BatchMode=yes" in call for call in calls)
    for process, call in enumerate(python_calls(cluster)):
        assert call[:2] == [str(process), str(ROOT)] and call[-1] == "it's \"$HOME\" & more"
        assert flags_of(call[3:-1]) == {
            "coordinator_address": "ada:45655",
            "num_processes": "3",
            "process_id": str(process),
            "config.data.path": "/data/corpus.npz",
            "workdir": "/data/runs/mosi",
        }


@pytest.mark.parametrize("hosts", ["me@ada,me@bob", "me@ada\nme@bob\n", " me@ada  me@bob"])
def test_hosts_may_be_separated_by_commas_lines_and_spaces(cluster, hosts):
    environment = {"HOSTS": hosts, "COORDINATOR": "10.0.0.1", "PORT": "5", "CODES": "0 0"}
    assert cluster.run("bash launch/ssh.sh", *TRAINER, **environment) == 0, cluster.said()
    assert sorted(call[-2] for call in cluster.log("ssh")) == ["me@ada", "me@bob"]
    for call in python_calls(cluster):
        assert "--coordinator_address=10.0.0.1:5" in call


def test_slurm_starts_a_task_for_each_process_and_sbatch_options_stand_in_it(cluster, flags_of):
    assert cluster.run(example("slurm.sh"), CODES="0 0", SLURM_CPUS_PER_TASK="3") == 0
    assert ["--gpus-per-node=4"] in cluster.log("sbatch")
    assert cluster.log("srun") == [["--kill-on-bad-exit=0"], ["--wait=0"]]
    for call in python_calls(cluster):
        assert call[1] == str(ROOT)
        assert flags_of(call[3:]) == {
            "distributed": "True", "join_seconds": "300.0", "config.data.path": "/data/corpus.npz",
            "workdir": "/data/runs/mosi",
        }
    lines = (ROOT / "launch/slurm.sh").read_text(encoding="utf-8").splitlines()
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH ")]
    assert all(line.startswith("#") for line in lines[: options[-1]])  # sbatch reads no further
    given = {lines[i].removeprefix("#SBATCH ") for i in options}
    assert {"--requeue", "--signal=TERM@120", "--open-mode=append"} <= given


def test_a_tpu_pod_starts_the_same_command_on_all_workers(cluster, flags_of):
    for worker in "01":
        (cluster.folder / "home" / worker / "msajax").mkdir(parents=True)
    assert cluster.run(example("tpu_pod.sh"), PROJECT="mine", CODES="0 0") == 0, cluster.said()
    (call,) = cluster.log("gcloud")
    assert call[:5] == ["compute", "tpus", "tpu-vm", "ssh", "my-slice"]
    assert call[5:8] == ["--zone=us-east5-b", "--project=mine", "--worker=all"]
    for worker, call in enumerate(python_calls(cluster)):
        home = cluster.folder / "home" / str(worker)
        assert call[:2] == [str(worker), str(home / "msajax")]
        assert flags_of(call[3:]) == {
            "distributed": "True", "config.data.path": "/mnt/data/corpus.npz",
            "workdir": "/mnt/data/runs/mosi",
        }
        assert list(home.iterdir()) == [home / "msajax"]  # the note of its process is gone


# --- exit codes and signals ---


@pytest.mark.parametrize(
    ("script", "codes", "worst"),
    [("processes.sh", "0 75", 75), ("processes.sh", "75 2", 2), ("processes.sh", "137 1", 1),
     ("ssh.sh", "1 75", 1), ("ssh.sh", "75 75", 75), ("ssh.sh", "3 0", 3)],
)
def test_the_exit_code_says_most_about_what_went_wrong(cluster, script, codes, worst):
    folder = {"MSAJAX_FOLDER": str(ROOT)}
    assert cluster.run(PAIRS[script], *TRAINER, CODES=codes, **folder) == worst, cluster.said()


@pytest.mark.parametrize(
    ("script", "name"),
    [("processes.sh", "TERM"), ("processes.sh", "INT"), ("ssh.sh", "INT"), ("ssh.sh", "HUP"),
     ("tpu_pod.sh", "TERM"), ("tpu_pod.sh", "INT")],
)
def test_a_signal_reaches_every_process_once_and_is_waited_for(cluster, script, name):
    started = cluster.start(PAIRS[script], *TRAINER, MSAJAX_FOLDER=str(ROOT))
    cluster.wait_for(lambda: len(cluster.log("python")) == 2, started)
    if script == "tpu_pod.sh":
        notes = cluster.folder / "home"
        cluster.wait_for(lambda: len([*notes.glob("*/.msajax-*.pid")]) == 2, started)
    os.killpg(started.pid, getattr(signal, f"SIG{name}"))  # as a terminal does, to the whole group
    assert cluster.end(started) == 75, cluster.said()
    told = "INT" if name == "INT" else "TERM"
    assert sorted(cluster.log("signal")) == [["0", told], ["1", told]]


def test_a_lost_connection_stops_the_processes_of_ssh(cluster):
    started = cluster.start("exec env HOSTS=ada,eve bash launch/ssh.sh", *TRAINER)
    cluster.wait_for(lambda: len(cluster.log("python")) == 2, started)
    started.kill()
    assert cluster.end(started) == -signal.SIGKILL
    assert sorted(cluster.log("signal")) == [["0", "TERM"], ["1", "TERM"]]


@pytest.mark.parametrize(
    ("script", "environment", "expected"),
    [
        ("ssh.sh", {"HOSTS": " "}, "HOSTS names no host"),
        ("tpu_pod.sh", {}, "TPU names no TPU VM"),
        ("processes.sh", {"PROCESSES": "0"}, "PROCESSES and DEVICES are whole numbers from 1"),
        ("processes.sh", {"DEVICES": "x"}, "PROCESSES and DEVICES are whole numbers from 1"),
    ],
)
def test_a_wrong_parameter_is_one_line(cluster, script, environment, expected):
    assert cluster.run(f"bash launch/{script}", **environment) == 2
    assert re.fullmatch(f"error: {expected}.*\n", cluster.said())
    assert cluster.log("python") == []


@pytest.mark.parametrize(
    ("codes", "code", "environment", "requeued"),
    [
        ("75 75", 75, {"SLURM_RESTART_COUNT": "99"}, True),
        ("75 75", 75, {"SLURM_RESTART_COUNT": "100"}, False),
        ("75 75", 75, {"SLURM_RESTART_COUNT": "3", "MAX_REQUEUES": "3"}, False),
        ("0 0", 0, {}, False),
        ("75 2", 2, {}, False),  # of which srun gives back 75
        ("75 137", 137, {}, False),
    ],
)
def test_slurm_requeues_after_75_alone(cluster, codes, code, environment, requeued):
    found = cluster.run(PAIRS["slurm.sh"], *TRAINER, CODES=codes, **environment)
    assert found == code, cluster.said()
    assert cluster.log("scontrol") == ([["requeue", "7"]] if requeued else [])


def test_a_cancelled_slurm_job_stays_cancelled(cluster):
    started = cluster.start("exec sbatch launch/slurm.sh", *TRAINER)
    cluster.wait_for(lambda: len(cluster.log("python")) == 2, started)
    os.kill(started.pid, signal.SIGTERM)  # the shell of the job, before its tasks
    os.kill(int(cluster.log("step")[0][0]), signal.SIGTERM)
    assert cluster.end(started) == -signal.SIGTERM
    assert cluster.log("scontrol") == []


# --- Kubernetes ---


def applied(cluster: Cluster, name: str, command: str | None = None) -> dict[str, dict]:
    """What `kubectl apply` is given by the header's example, by kind."""
    assert cluster.run(command or example(name)) == 0, cluster.said()
    assert cluster.log("kubectl")[-1] == ["apply", "-f", "-"]
    text = (cluster.folder / "applied.yaml").read_text(encoding="utf-8")
    assert "${" not in text
    objects = list(yaml.safe_load_all(text))
    assert len({thing["kind"] for thing in objects}) == len(objects)
    return {thing["kind"]: thing for thing in objects}


def misspellings(thing: object) -> Iterator[object]:
    """The same object with one key misspelt, for every key that has a fixed name."""
    if isinstance(thing, dict):
        for key, value in thing.items():
            rest = {k: v for k, v in thing.items() if k != key}
            if "/" not in key:  # labels and annotations are whatever one likes
                yield rest | {f"{key}s": value}
            yield from (rest | {key: wrong} for wrong in misspellings(value))
    elif isinstance(thing, list):
        for i, value in enumerate(thing):
            yield from ([*thing[:i], wrong, *thing[i + 1 :]] for wrong in misspellings(value))


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_object_of_a_manifest_is_as_the_api_has_it_and_75_restarts_but_a_mistake_ends(
    cluster, name
):
    objects = applied(cluster, name)
    for kind, thing in objects.items():
        jsonschema.Draft202012Validator.check_schema(SCHEMAS[kind])
        schema = jsonschema.Draft202012Validator(SCHEMAS[kind])
        schema.validate(thing)
        assert not any(schema.is_valid(misspelt) for misspelt in misspellings(thing))
    spec = objects["JobSet"]["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    (trainer,) = pod["containers"]
    assert job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"]
    assert {m["name"] for m in trainer["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    (claim,) = [v for v in pod["volumes"] if "persistentVolumeClaim" in v]
    name_of_claim = objects["PersistentVolumeClaim"]["metadata"]["name"]
    assert claim["persistentVolumeClaim"]["claimName"] == name_of_claim
    assert objects["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    (rule,) = job["podFailurePolicy"]["rules"]
    on_exit = {"containerName": trainer["name"], "operator": "In", "values": [1, 2, 3]}
    assert (rule["action"], rule["onExitCodes"]) == ("FailJob", on_exit)
    (last,) = spec["failurePolicy"]["rules"]
    assert (last["action"], last["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert job["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"
    assert spec["failurePolicy"]["maxRestarts"] > 0


def test_gpu_pods_may_read_what_their_number_is_read_from(cluster):
    objects = applied(cluster, "kubernetes_gpu.yaml")
    pod = objects["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    account = objects["ServiceAccount"]["metadata"]["name"]
    assert pod["serviceAccountName"] == account
    assert objects["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert objects["RoleBinding"]["roleRef"]["name"] == objects["Role"]["metadata"]["name"]
    granted = {
        (group, resource, verb)
        for rule in objects["Role"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {("", "pods", "list"), ("batch", "jobs", "get")} <= granted


@pytest.mark.parametrize(
    ("name", "waits_for"),
    [("kubernetes_gpu.yaml", [["hosts", "mosi-train-0-0.mosi"]]), ("kubernetes_tpu.yaml", [])],
)
def test_the_command_of_a_pod_is_the_trainer(cluster, flags_of, name, waits_for):
    command = example(name).replace("corpus.npz", "'it is'.npz")
    job = applied(cluster, name, command)["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    (trainer,) = job["template"]["spec"]["containers"]
    words = shlex.join(trainer["command"] + trainer["args"])
    assert cluster.run(f"exec {words}", CODES="75", JOB_COMPLETION_INDEX="0") == 75, cluster.said()
    assert cluster.log("getent") == waits_for
    (call,) = python_calls(cluster)
    assert flags_of(call[3:]) == {
        "distributed": "True", "join_seconds": "900.0", "workdir": "/data/runs/mosi",
        "config.data.path": "/data/it is.npz",
    }


# --- whole runs ---

EPOCHS = 30  # so many that a signal after the first one comes before the last one


REAL = {"MSAJAX_PYTHON": sys.executable}


def free_job() -> str:
    """The id of a job whose port, as JAX derives it, is free on this machine."""
    for port in range(61440, 65536):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return str(port - 61440 + 4096)
    raise AssertionError("no port is free")


def test_a_slurm_job_saves_when_its_time_is_up_goes_back_and_ends_the_run(cluster, tmp_path):
    folder, job, experiment = tmp_path / "run", free_job(), tmp_path / "tiny_run.py"
    settings = {"train__epochs": EPOCHS, "train__patience": EPOCHS}
    survivors.write_experiment(experiment, **SMALLEST, **settings)
    command = [PAIRS["slurm.sh"], "--config", str(experiment), "--workdir", str(folder)]
    started = cluster.start(*command, **REAL, SLURM_JOB_ID=job)
    cluster.wait_for(lambda: f"epoch 1/{EPOCHS} " in cluster.said(), started)
    os.kill(int(cluster.log("step")[0][0]), signal.SIGTERM)
    assert cluster.end(started) == 75, cluster.said()
    assert cluster.log("scontrol") == [["requeue", job]]
    assert not (folder / "results.json").exists()
    environment = {"SLURM_JOB_ID": job, "SLURM_RESTART_COUNT": "1"}
    assert cluster.run(*command, **REAL, **environment) == 0, cluster.said()
    assert cluster.log("scontrol") == [["requeue", job]]
    continued = re.search(r"Continuing after epoch (\d+)", cluster.said())
    assert continued and 1 <= int(continued[1]) < EPOCHS, cluster.said()
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    epochs = [json.loads(line)["epoch"] for line in lines]
    assert epochs == [epoch for epoch in range(1, EPOCHS + 1) for _ in range(2)]  # two seeds
    assert (folder / "results.json").exists()
