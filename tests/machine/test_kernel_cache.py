"""The kernel cache on disk: valid folders, fallbacks on failures, and its bounded size."""

from __future__ import annotations

import errno
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh import forget_plans
from programs import ChildProcess, output_of

import numscorch as ns
from numscorch.commands import doctor
from numscorch.errors import BundleError, NumscorchError
from numscorch.machine import atomic_files, kernel_cache
from numscorch.runtime import bundles, tuned

SOURCE = '"""y[i] = A[i,j] * x[j]\n\nSerial.\n"""\n\n\ndef kernel(x):\n    return x + 1\n'
K = "kernel_0123456789abcdef"
needs_owners = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the platform's files have no owner and mode")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that does not exist yet."""
    path = tmp_path / "deep" / "cache"
    monkeypatch.setenv("NUMSCORCH_CACHE_DIR", str(path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    return path


def name_with(word: str) -> str:
    """A kernel name that encodes a word."""
    return f"kernel_{word.encode().hex():0>16}"


def set_times(path: Path, seconds: float) -> None:
    os.utime(path, (seconds, seconds))


def stored(name: str, source: str) -> Path:
    """The file of a stored kernel."""
    path = kernel_cache.store(name, source)
    assert path is not None
    return path


def check_fallback(problem: str) -> None:
    """Check that the cache uses a private folder, and states the problem."""
    status = kernel_cache.status()
    assert status.problem is not None
    assert problem in status.problem
    assert status.folder != status.requested
    path = stored(K, SOURCE)
    assert path.parent == kernel_cache.folder() == status.folder
    assert path.stat().st_mode & 0o077 == 0 or not hasattr(os, "geteuid")
    assert kernel_cache.load_module(K, SOURCE, path).kernel(1) == 2


def test_missing_folders_are_created_as_private(place: Path) -> None:
    assert kernel_cache.folder() == place
    assert kernel_cache.status().problem is None
    if hasattr(os, "geteuid"):
        assert place.stat().st_mode & 0o777 == 0o700


def test_a_removed_folder_is_created_again(place: Path) -> None:
    path = stored(K, SOURCE)
    path.unlink()
    (place / "__pycache__").rmdir()
    (place / kernel_cache.ROOM).unlink()
    place.rmdir()
    assert kernel_cache.store(K, SOURCE).read_text() == SOURCE


def test_platform_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NUMSCORCH_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert kernel_cache.folder() == tmp_path / ".cache" / "numscorch"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert kernel_cache.folder() == tmp_path / "xdg" / "numscorch"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert kernel_cache.folder() == tmp_path / "Library" / "Caches" / "numscorch"


def test_folders_that_cannot_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMSCORCH_CACHE_DIR", str(tmp_path / "file" / "cache"))
    check_fallback("can't be made")


@needs_owners
def test_folder_that_is_read_only(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(parents=True)
    (place / "__pycache__").mkdir()
    place.chmod(0o500)
    if os.geteuid() == 0:  # the superuser may write anywhere, so the system call is replaced
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != place)
    check_fallback("is not writable")
    place.chmod(0o700)


@needs_owners
@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_folder_that_others_can_write_is_refused(place: Path, mode: int) -> None:
    place.mkdir(parents=True)
    place.chmod(mode)
    check_fallback("can be written by other users")
    place.chmod(0o700)
    (place / "__pycache__").mkdir(exist_ok=True)
    (place / "__pycache__").chmod(mode)
    check_fallback("can be written by other users")


@needs_owners
def test_folder_of_another_user_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(parents=True)
    owner = place.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    check_fallback("belongs to another user")


FULL = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let all writes to certain folders fail from now on."""
    monkeypatch.setattr(kernel_cache, "_unusable", {})
    monkeypatch.setattr(kernel_cache, "_private", None)
    mkstemp_of_system = tempfile.mkstemp

    def fail_in(number: int, *folders: Path | None) -> None:
        def mkstemp(dir: Path, **options: Any) -> tuple[int, str]:
            if dir in folders:
                raise OSError(number, os.strerror(number))
            return mkstemp_of_system(dir=dir, **options)

        monkeypatch.setattr(atomic_files.tempfile, "mkstemp", mkstemp)

    return fail_in


@pytest.mark.parametrize("number", FULL)
def test_full_disk_falls_back(number: int, place: Path, fails: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    fails(number, place)
    assert stored(K, SOURCE).parent != place
    assert os.strerror(number) in str(kernel_cache.status().problem)
    assert stored(name_with("other"), SOURCE).parent == kernel_cache.folder() != place
    assert caplog.text.count(f"can't be written ({os.strerror(number)})") == 1
    fails(number)
    assert stored(name_with("third"), SOURCE).parent == place, "the disk has room again"


@pytest.mark.parametrize("number", FULL)
def test_machine_code_on_a_full_disk_falls_back(number: int, place: Path, fails: Callable[..., None]) -> None:
    path = stored(K, SOURCE)
    fails(number, place / kernel_cache.CODE)
    assert kernel_cache.write("__pycache__/k.0123.code", b"code") not in (place, None)
    assert kernel_cache.read("__pycache__/k.0123.code") == b"code"
    assert stored(K, SOURCE) == path, "what is stored on the full disk is used"


@pytest.mark.parametrize("number", FULL)
def test_without_any_folder_kernels_stay_in_memory(
    number: int, place: Path, fails: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(**options: Any) -> str:
        raise OSError(number, os.strerror(number))

    fails(number, place, place / kernel_cache.CODE)
    monkeypatch.setattr(kernel_cache.tempfile, "mkdtemp", none)
    assert kernel_cache.store(K, SOURCE) is None
    assert kernel_cache.load_module(K, SOURCE, None).kernel(1) == 2
    assert kernel_cache.write("__pycache__/k.0123.code", b"code") is kernel_cache.read("__pycache__/k.0123.code") is None
    assert kernel_cache.folder() is None
    assert (kernel_cache.entries(), kernel_cache.clear()) == ([], 0)
    monkeypatch.setattr(tuned, "_read", {})
    tuned.remember("key", "tile()")
    tuned.remember("other", "")
    assert tuned._read[None] == {"key": "tile()", "other": ""}
    assert "stay in memory" in doctor.render([doctor._cache()])
    assert "not written" in str(ns.explain("ij->i", ns.CSR))
    with pytest.raises(BundleError, match="can't be written"):
        bundles._folder()


def test_doctor_reports_a_full_disk(place: Path, fails: Callable[..., None]) -> None:
    assert doctor._cache().ok
    fails(errno.ENOSPC, place)
    check = doctor._cache()
    assert not check.ok
    assert "No space left" in check.advice
    assert not list(place.glob(".*.tmp"))


@pytest.mark.parametrize("everywhere", [False, True])
def test_kernels_compute_on_a_full_disk(
    everywhere: bool, place: Path, fails: Callable[..., None], fresh_plans: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kernels are compiled: the source is stored, but the machine code is not."""
    caplog.set_level(logging.INFO, "numscorch")
    A, x = ns.from_torch(torch.eye(5)), torch.arange(5.0)
    private_folder = kernel_cache._private_folder()
    assert private_folder is not None
    fails(errno.ENOSPC, place / kernel_cache.CODE, *([private_folder / kernel_cache.CODE] if everywhere else []))
    for turn in range(3):
        forget_plans(fresh_plans)
        assert torch.equal(ns.einsum("ij,j->i", A, x), x)
        compiled = sum(record.getMessage().startswith("compiled ") for record in caplog.records)
        assert compiled == (turn + 1 if everywhere else 1)


NOT_FILES: dict[str, Callable[[Path], object]] = {
    "folder": lambda path: (path / "deep").mkdir(parents=True),
    "fifo": os.mkfifo if hasattr(os, "mkfifo") else Path.mkdir,
    "dangling link": lambda path: path.symlink_to("missing"),
    "link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("kind", NOT_FILES)
def test_paths_that_are_no_files_are_replaced(kind: str, place: Path, fresh_plans: pytest.MonkeyPatch) -> None:
    """Any file of the cache may be replaced."""
    A, x = ns.from_torch(torch.eye(5)), torch.arange(5.0)

    def call() -> None:
        forget_plans(fresh_plans)
        fresh_plans.setattr(tuned, "_read", {})
        assert torch.equal(ns.einsum("ij,j->i", A, x), x)
        tuned.remember("key", "tile()")

    call()
    files = [path for path in place.rglob("*") if path.is_file()]
    assert len(files) == 4, "source, machine code, schedules, room"
    for path in files:
        path.unlink()
        NOT_FILES[kind](path)
    assert len(kernel_cache.entries()) <= 1
    call()
    assert kernel_cache.status().problem is None
    assert all(path.is_file() and not path.is_symlink() for path in files)
    assert tuned.kept() == {"key": "tile()"}


@pytest.mark.process
def test_private_folders_are_removed_with_their_process_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code = """
import os, sys
from numscorch.machine import kernel_cache, machine_code
path = kernel_cache.store("kernel_0123456789abcdef", "x = 1")
child = os.fork()
if not child:
    kernel_cache.store("kernel_0123456789abcdef", "x = 1")
    sys.exit(path.parent == kernel_cache.folder())
assert os.waitpid(child, 0)[1] == 0
assert path.exists()
print(path.parent)
"""
    if not hasattr(os, "fork"):
        pytest.skip("the platform has no fork")
    assert not Path(run(code, NUMSCORCH_CACHE_DIR=str(tmp_path / "file" / "cache")).strip()).exists()


def test_link_is_replaced_and_never_followed(place: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious.py"
    target.write_text(SOURCE)
    kernel_cache.folder()
    try:
        (place / f"{K}.py").symlink_to(target)
    except OSError:
        pytest.skip("links need a privilege here")
    path = stored(K, SOURCE + "\n")
    assert not path.is_symlink()
    assert target.read_text() == SOURCE


@pytest.mark.parametrize("damage", ["", "def kernel(", SOURCE[:-1], SOURCE.replace("+ 1", "+ 2"), "\0"])
def test_damaged_source_is_rebuilt(place: Path, damage: str) -> None:
    path = stored(K, SOURCE)
    kernel_cache.load_module(K, SOURCE, path)
    compiled = place / "__pycache__" / f"{K}.0123.code"
    compiled.write_text("machine code of the damaged source")
    path.write_text(damage)
    assert kernel_cache.store(K, SOURCE) == path
    assert path.read_text() == SOURCE
    assert not compiled.exists()
    assert kernel_cache.load_module(K, SOURCE, path).kernel(1) == 2


def test_unchanged_sources_are_not_rewritten(place: Path) -> None:
    path = stored(K, SOURCE)
    compiled = place / "__pycache__" / f"{K}.0123.code"
    compiled.write_text("machine code")
    set_times(path, 1000.0)
    stored(K, SOURCE)
    assert path.stat().st_mtime == 1000.0
    assert path.stat().st_atime > 1000.0
    assert compiled.exists()


def test_loaded_under_a_stable_name(place: Path) -> None:
    module = kernel_cache.load_module(K, SOURCE, stored(K, SOURCE))
    assert module.__name__ == module.kernel.__module__ == f"numscorch_kernels.{K}"
    assert sys.modules[f"numscorch_kernels.{K}"] is module
    assert module.kernel.__code__.co_filename == str(place / f"{K}.py")


def test_broken_module_is_not_left_behind(place: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        kernel_cache.load_module(K, "1 / 0", stored(K, "1 / 0"))
    assert f"numscorch_kernels.{K}" not in sys.modules


@pytest.mark.parametrize("name", ["../k", "k", "kernel_utils", f"{K}_parallel", f"{K}\n"])
def test_name_must_be_that_of_a_kernel(place: Path, name: str) -> None:
    with pytest.raises(NumscorchError, match="use kernel_ followed by 16 hexadecimal digits"):
        kernel_cache.store(name, SOURCE)


def run(code: str, **environment: str) -> str:
    """The output of a new process that runs the code."""
    return output_of(ChildProcess(code, environment=environment))


@pytest.mark.process
def test_numbas_folder_is_not_used(place: Path, tmp_path: Path) -> None:
    """Numba runs code from its own folder without checking the owner, so numscorch stores none there."""
    code = """
import logging, torch, numscorch as ns
from numscorch.commands import doctor
told = []
logging.getLogger("numscorch").addFilter(lambda record: told.append(record) or True)
logging.getLogger("numscorch").setLevel(logging.INFO)
A = ns.from_torch(torch.eye(5))
assert torch.equal(ns.einsum("ij,j->i", A, torch.ones(5)), torch.ones(5))
check, = doctor._numbas_cache()
print(len(told), check.ok, check.advice)
"""
    numba_folder = tmp_path / "numba"
    numba_folder.mkdir(mode=0o700)
    assert run(code, NUMBA_CACHE_DIR=str(numba_folder)).startswith("1 True numscorch stores no kernels there")
    assert len(list(place.rglob("*.code"))) == 1
    numba_folder.chmod(0o777)
    report = f"0 False {numba_folder} can be written by other users (mode 777). numscorch stores"
    assert run(code, NUMBA_CACHE_DIR=str(numba_folder)).startswith(report)
    assert not list(numba_folder.iterdir())


@pytest.mark.process
def test_two_processes_store_one_kernel_at_once(place: Path) -> None:
    code = f"""
from numscorch.machine import kernel_cache, machine_code
for turn in range(150):
    path = kernel_cache.store({K!r}, {SOURCE!r} + "#" * (turn % 3) + chr(10))
    text = path.read_text()
    assert text.startswith({SOURCE!r}), text
    assert kernel_cache.load_module({K!r}, text, path).kernel(1) == 2
"""
    programs = [ChildProcess(code) for _ in range(2)]
    for program in programs:
        output_of(program)
    assert [file.name for file in place.iterdir() if file.is_file() and file.name != ".room"] == [f"{K}.py"]


def test_threads_store_at_once(place: Path) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(20):
                path = stored(name_with(str(turn % 4)), SOURCE + "\n" * number)
                assert kernel_cache.load_module(name_with(str(turn % 4)), SOURCE, path).kernel(1) == 2
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_least_recently_used_kernels_are_evicted_first(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, name in enumerate(["newest", "used", "oldest"]):
        path = kernel_cache.store(name_with(name), SOURCE)
        (place / "__pycache__" / f"{name_with(name)}.0123.code").write_bytes(bytes(1000))
        set_times(path, 1_000_000.0 - age)
    set_times(place / f"{name_with('used')}.py", 2_000_000.0)
    monkeypatch.setenv("NUMSCORCH_CACHE_SIZE", "2500")
    stored(name_with("added"), SOURCE)
    assert {entry.name for entry in kernel_cache.entries()} == {name_with("added"), name_with("newest"), name_with("used")}
    assert not list((place / "__pycache__").glob(f"{name_with('oldest')}.*"))
    monkeypatch.setenv("NUMSCORCH_CACHE_SIZE", "0")
    stored(name_with("last"), SOURCE)
    assert [entry.name for entry in kernel_cache.entries()] == [name_with("last")]


def test_files_of_crashed_processes_are_removed(place: Path) -> None:
    kernel_cache.folder()
    files = [place / ".k.abc.numscorch.tmp", place / "__pycache__" / f"{name_with('gone')}.0123.code", place / ".new.abc.numscorch.tmp"]
    for file in files:
        file.write_text("")
    for file in files[:2]:
        set_times(file, 1000.0)
    stored(K, SOURCE)
    assert [file.exists() for file in files] == [False, False, True]


@pytest.mark.parametrize("size", ["lots", "-1", "1T"])
def test_invalid_sizes_are_refused(place: Path, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    monkeypatch.setenv("NUMSCORCH_CACHE_SIZE", size)
    with pytest.raises(NumscorchError, match="give a number of bytes, as in 200000000, 200M or 2G"):
        stored(K, SOURCE)


def test_kernels_are_listed_and_cleared(place: Path) -> None:
    first, second = stored(name_with("first"), SOURCE), stored(name_with("second"), "def kernel(")
    (place / "__pycache__" / f"{name_with('first')}.0123.code").write_bytes(bytes(1000))
    set_times(first, 1000.0)
    assert [(entry.name, entry.path) for entry in kernel_cache.entries()] == [(name_with("second"), second), (name_with("first"), first)]
    broken, entry = kernel_cache.entries()
    assert broken.expression.startswith("(damaged")
    assert (entry.expression, entry.size, entry.last_used) == ("y[i] = A[i,j] * x[j]", len(SOURCE) + 1000, 1000.0)
    (place / "note.txt").write_text("not a kernel")
    assert kernel_cache.entries()[1].last_used == 1000.0, "listing is no use"
    assert kernel_cache.clear() == 2
    assert kernel_cache.entries() == []
    assert [file.name for file in place.iterdir() if file.is_file()] == ["note.txt"]
    assert not list((place / "__pycache__").iterdir())


@pytest.mark.parametrize("age", ["new", "old"])
@pytest.mark.parametrize("way", ["cleared", "evicted"])
def test_other_files_are_not_removed(place: Path, monkeypatch: pytest.MonkeyPatch, way: str, age: str) -> None:
    stored(K, SOURCE), stored(f"{K}_serial", SOURCE)
    names = ["train.py", "kernel_utils.py", f"{K}_parallel.py", "notes.tmp", ".session.tmp", ".py", "__init__.py"]
    compiled = ["train.cpython-312.pyc", "gone.cpython-312.pyc", f"{K}_parallel.0123.code", ".swap.tmp"]
    others = [*(place / name for name in names), *(place / kernel_cache.CODE / name for name in compiled)]
    for file in others:
        file.write_text("mine")
        if age == "old":
            set_times(file, 1000.0)
    assert {entry.name for entry in kernel_cache.entries()} == {K, f"{K}_serial"}
    if way == "cleared":
        assert kernel_cache.clear() == 2
    else:
        monkeypatch.setenv("NUMSCORCH_CACHE_SIZE", "0")
        stored(name_with("last"), SOURCE)
        assert [entry.name for entry in kernel_cache.entries()] == [name_with("last")]
    assert [file.name for file in others if not file.exists()] == []


def test_a_folder_with_room_is_not_scanned(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(name_with("first"), SOURCE)
    monkeypatch.setattr(kernel_cache, "_evict", lambda *args: pytest.fail("looked through"))
    stored(name_with("second"), SOURCE)
    assert len(kernel_cache.entries()) == 2


def test_a_full_folder_is_scanned_at_each_store(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMSCORCH_CACHE_SIZE", "300K")
    for name in ("first", "second", "third"):
        kernel_cache.store(name_with(name), SOURCE + "#" * 200_000)
    assert len(kernel_cache.entries()) == 1
