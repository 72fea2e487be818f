"""Settings of every test process: JAX on the CPU, and compiled programs kept between runs."""

import gc
import importlib.util
import mmap
import os
import pathlib
import signal
import stat
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from survivors import Forks

# As the program does: see `msajax.main.run`.
gc.set_threshold(100_000, 10, 10)

ROOT = pathlib.Path(__file__).resolve().parent.parent


def _private_folder() -> pathlib.Path | None:
    """A folder of this user alone: whoever can write to a cache of programs can run code."""
    folder = pathlib.Path(tempfile.gettempdir(), f"msajax-tests-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return folder if is_ours and not status.st_mode & 0o077 else None


# What a run adds itself comes first of all, so that one program has one name in the cache.
FLAGS = ("--xla_force_host_platform_device_count=1", "--xla_gpu_deterministic_ops=true")


def quick_to_compile() -> list[str]:
    """Flags that halve what is left of compiling, as far as this jaxlib knows them.

    One that is unknown would end every process.
    """
    flags = ("xla_cpu_use_fusion_emitters=false", "xla_cpu_parallel_codegen_split_count=1")
    (folder,) = importlib.util.find_spec("jaxlib").submodule_search_locations
    known = []
    for path in pathlib.Path(folder).glob("libjax_common.*"):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            found = [content.find(flag.partition("=")[0].encode()) >= 0 for flag in flags]
            known += [f"--{flag}" for flag, is_there in zip(flags, found, strict=True) if is_there]
    return known


# In the environment rather than in jax.config, so that processes which a test starts inherit it.
# What is set already was chosen by whoever runs the tests.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the suite's time goes into compiling: machine code without LLVM's optimisation takes a
# third less of it, and XLA's own passes stay. 0 tests the code that users run.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# One CPU device, whatever a run would choose; tests of several start processes of their own.
if "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = " ".join((*FLAGS, *quick_to_compile()))
if cache := _private_folder():
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


# A shell's background command ignores SIGINT, under nohup SIGHUP, and so would all it starts.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


# The files that take longest, in that order: one that began last would be waited for.
SLOWEST = (
    *("test_peers", "test_configs", "test_devices", "test_survival", "test_processes"),
    *("test_mirror", "test_speech", "test_readme", "test_compare_models", "test_guidance"),
    *("test_mmim", "test_launch", "test_mag", "test_main", "test_targets", "test_sweep"),
    *("test_text_runs", "test_report", "test_explain", "test_experiment", "test_notebook"),
    *("test_pickle_bombs", "test_dlf", "test_misa_model", "test_ablation", "test_contributions"),
    *("test_sequence_level", "test_family", "test_rates", "test_export", "test_attribution"),
    *("test_training", "test_own_model", "test_compilers", "test_groups", "test_task_runs"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets the slowest files begin first."""
    rank = {name: k for k, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


def pytest_collection_finish() -> None:
    """Leaves alone in every later collection of garbage what is there to stay."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def forks() -> Iterator["Forks"]:
    """The program, imported once for many command lines; every one in a fork of its own."""
    from survivors import Forks

    server = Forks()
    yield server
    server.close()


@pytest.fixture
def added(monkeypatch) -> None:
    """Adds a file and a folder to what a run's folder holds, a row of the table each."""
    from msajax.runs import manifest

    made = {"upload": manifest.Upload.AT_END, "is_result": True, "is_derived": True}
    rows = (
        manifest.Entry("notes.html", **made),
        manifest.Entry("explanations", is_folder=True, **made),
    )
    k = manifest.ENTRIES.index(manifest.find(manifest.RESULTS))
    entries = (*manifest.ENTRIES[:k], *rows, *manifest.ENTRIES[k:])
    monkeypatch.setattr(manifest, "ENTRIES", entries)


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """The folder of real corpora beside the checkout; a test that needs it is skipped without."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no ../shared/data beside this checkout")
    return folder
