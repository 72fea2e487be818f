"""The folder of compiled programs: private, bounded, and the user's to switch off."""

import os
import zlib

import jax
import pytest

from msajax.runtime import compile as compile_module
from msajax.runtime.compile import prune, use_compile_cache


@pytest.fixture
def unset(monkeypatch):
    """JAX as it is before anybody has told it of a folder."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield monkeypatch
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_programs_used_longest_ago_go_first_and_other_files_stay(tmp_path):
    for age, (name, size) in enumerate({"a": 40, "b": 30, "c": 20, "d": 10}.items()):
        path = tmp_path / f"jit_{name}-cache"
        path.write_bytes(b"x" * size)
        os.utime(path, (1000 - age, 1000 - age))
    os.utime(tmp_path / "jit_d-cache", (2000, 900))  # old, but read of late
    (tmp_path / "notes.txt").write_bytes(b"x" * 1000)
    for largest, left in ((100, "abcd"), (99, "abd"), (80, "abd"), (50, "ad"), (10, "d"), (0, "")):
        prune(tmp_path, largest)
        assert sorted(p.name for p in tmp_path.glob("*-cache")) == [f"jit_{n}-cache" for n in left]
    assert (tmp_path / "notes.txt").exists()


def test_auto_is_a_private_folder_that_is_pruned_when_it_is_chosen(unset, tmp_path):
    unset.setenv("XDG_CACHE_HOME", str(tmp_path))
    unset.setattr(compile_module, "LARGEST", 5)
    folder = tmp_path / "msajax" / "compiled"
    use_compile_cache("auto")
    assert jax.config.jax_compilation_cache_dir == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "jit_f-cache").write_bytes(b"123456")
    use_compile_cache("auto")  # JAX knows a folder already: it is left as it is
    assert (folder / "jit_f-cache").exists()
    jax.config.update("jax_compilation_cache_dir", None)
    use_compile_cache("auto")
    assert not (folder / "jit_f-cache").exists()


def test_off_and_a_folder_that_others_can_write_to_are_not_used(unset, tmp_path, caplog):
    use_compile_cache("off")
    tmp_path.chmod(0o777)
    use_compile_cache(str(tmp_path))
    assert jax.config.jax_compilation_cache_dir is None
    assert f"others can write to {tmp_path}, and so run code" in caplog.text


def test_programs_that_were_not_written_to_their_end_go(unset, tmp_path):
    tmp_path.chmod(0o700)
    whole = zlib.compress(b"a program" * 1000)
    for name, content in (
        ("whole", whole),
        *(("cut", whole[:-7]), ("empty", b""), ("random", b"x" * 99)),
        ("zstandard", b"\x28\xb5\x2f\xfd and more"),
    ):
        (tmp_path / f"jit_{name}-cache").write_bytes(content)
    use_compile_cache(str(tmp_path))
    left = {"jit_whole-cache", "jit_zstandard-cache"}
    assert {p.name for p in tmp_path.glob("*-cache")} == left
    # What was looked at once is not read again.
    cut = tmp_path / "jit_old-cache"
    cut.write_bytes(whole[:-7])
    os.utime(cut, (1000, 1000))
    jax.config.update("jax_compilation_cache_dir", None)
    use_compile_cache(str(tmp_path))
    assert cut.exists()
