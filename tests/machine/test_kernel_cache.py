"""The kernels on disk: where they may lie, what happens when something is wrong, and how much is kept."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh import forget_plans

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
    """A folder for the cache that does not exist yet."""
    path = tmp_path / "deep" / "cache"
    monkeypatch.setenv("NUMSCORCH_CACHE_DIR", str(path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    return path


def named(word: str) -> str:
    """A kernel's name with a word in it."""
    return f"kernel_{word.encode().hex():0>16}"


def used_at(path: Path, seconds: float) -> None:
    os.utime(path, (seconds, seconds))


def stored(name: str, source: str) -> Path:
    """The file of a kernel; some folder takes it."""
    path = kernel_cache.store(name, source)
    assert path is not None
    return path


def falls_back(problem: str) -> None:
    """The cache works, somewhere private, and says why."""
    status = kernel_cache.status()
    assert status.problem is not None
    assert problem in status.problem
    assert status.folder != status.requested
    path = stored(K, SOURCE)
    assert path.parent == kernel_cache.folder() == status.folder
    assert path.stat().st_mode & 0o077 == 0 or not hasattr(os, "geteuid")
    assert kernel_cache.load_module(K, SOURCE, path).kernel(1) == 2


def test_missing_folder_is_made_and_private(place: Path) -> None:
    assert kernel_cache.folder() == place
    assert kernel_cache.status().problem is None
    if hasattr(os, "geteuid"):
        assert place.stat().st_mode & 0o777 == 0o700


def test_removed_folder_is_made_again(place: Path) -> None:
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


def test_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMSCORCH_CACHE_DIR", str(tmp_path / "file" / "cache"))
    falls_back("can't be made")


@needs_owners
def test_folder_that_is_read_only(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(parents=True)
    (place / "__pycache__").mkdir()
    place.chmod(0o500)
    if os.geteuid() == 0:  # the superuser may write anywhere: let the system call say what it says to others
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != place)
    falls_back("is not writable")
    place.chmod(0o700)


@needs_owners
@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_folder_that_others_can_write_is_refused(place: Path, mode: int) -> None:
    place.mkdir(parents=True)
    place.chmod(mode)
    falls_back("can be written by other users")
    place.chmod(0o700)
    (place / "__pycache__").mkdir(exist_ok=True)
    (place / "__pycache__").chmod(mode)
    falls_back("can be written by other users")


@needs_owners
def test_folder_of_another_user_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(parents=True)
    owner = place.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    falls_back("belongs to another user")


FULL = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have every write to certain folders fail from now on."""
    monkeypatch.setattr(kernel_cache, "_unusable", {})
    monkeypatch.setattr(kernel_cache, "_private", None)
    make = tempfile.mkstemp

    def start(number: int, *folders: Path | None) -> None:
        def mkstemp(dir: Path, **named: Any) -> tuple[int, str]:
            if dir in folders:
                raise OSError(number, os.strerror(number))
            return make(dir=dir, **named)

        monkeypatch.setattr(atomic_files.tempfile, "mkstemp", mkstemp)

    return start


@pytest.mark.parametrize("number", FULL)
def test_full_disk_falls_back(number: int, place: Path, fails: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    fails(number, place)
    assert stored(K, SOURCE).parent != place
    assert os.strerror(number) in str(kernel_cache.status().problem)
    assert stored(named("other"), SOURCE).parent == kernel_cache.folder() != place
    assert caplog.text.count(f"can't be written ({os.strerror(number)})") == 1
    fails(number)
    assert stored(named("third"), SOURCE).parent == place, "the disk has room again"


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
    def none(**named: Any) -> str:
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
    assert tuned._known() == {"key": "tile()", "other": ""}
    assert "stay in memory" in doctor.render([doctor._cache()])
    assert "not written" in str(ns.explain("ij->i", ns.CSR))
    with pytest.raises(BundleError, match="can't be written"):
        bundles._folder()


def test_doctor_tells_of_a_full_disk(place: Path, fails: Callable[..., None]) -> None:
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
    """Compiled ones: the source fits, the machine code doesn't."""
    caplog.set_level(logging.INFO, "numscorch")
    A, x = ns.from_torch(torch.eye(5)), torch.arange(5.0)
    stand_in = kernel_cache._private_folder()
    assert stand_in is not None
    fails(errno.ENOSPC, place / kernel_cache.CODE, *([stand_in / kernel_cache.CODE] if everywhere else []))
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
def test_what_is_no_file_is_replaced(kind: str, place: Path, fresh_plans: pytest.MonkeyPatch) -> None:
    """In place of any file of the cache."""
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
def test_private_folder_goes_with_its_process_and_not_with_a_child(tmp_path: Path) -> None:
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


def test_unchanged_source_is_left_alone(place: Path) -> None:
    path = stored(K, SOURCE)
    compiled = place / "__pycache__" / f"{K}.0123.code"
    compiled.write_text("machine code")
    used_at(path, 1000.0)
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
    """What a new process prints that runs this code."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
def test_numbas_own_folder_is_not_used(place: Path, tmp_path: Path) -> None:
    """Code in it would run, whoever owns it."""
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
    numbas = tmp_path / "numba"
    numbas.mkdir(mode=0o700)
    assert run(code, NUMBA_CACHE_DIR=str(numbas)).startswith("1 True numscorch stores no kernels there")
    assert len(list(place.rglob("*.code"))) == 1
    numbas.chmod(0o777)
    assert run(code, NUMBA_CACHE_DIR=str(numbas)).startswith(f"0 False {numbas} can be written by other users (mode 777). numscorch stores")
    assert not list(numbas.iterdir())


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
    started = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in started:
        errors = process.communicate()[1]
        assert process.returncode == 0, errors
    assert [file.name for file in place.iterdir() if file.is_file() and file.name != ".room"] == [f"{K}.py"]


def test_threads_store_at_once(place: Path) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(20):
                path = stored(named(str(turn % 4)), SOURCE + "\n" * number)
                assert kernel_cache.load_module(named(str(turn % 4)), SOURCE, path).kernel(1) == 2
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not failures


def test_oldest_go_first_when_full(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, name in enumerate(["newest", "used", "oldest"]):
        path = kernel_cache.store(named(name), SOURCE)
        (place / "__pycache__" / f"{named(name)}.0123.code").write_bytes(bytes(1000))
        used_at(path, 1_000_000.0 - age)
    used_at(place / f"{named('used')}.py", 2_000_000.0)
    monkeypatch.setenv("NUMSCORCH_CACHE_SIZE", "2500")
    stored(named("added"), SOURCE)
    assert {entry.name for entry in kernel_cache.entries()} == {named("added"), named("newest"), named("used")}
    assert not list((place / "__pycache__").glob(f"{named('oldest')}.*"))
    monkeypatch.setenv("NUMSCORCH_CACHE_SIZE", "0")
    stored(named("last"), SOURCE)
    assert [entry.name for entry in kernel_cache.entries()] == [named("last")]


def test_what_crashed_processes_left_is_swept(place: Path) -> None:
    kernel_cache.folder()
    left = [place / ".k.abc.numscorch.tmp", place / "__pycache__" / f"{named('gone')}.0123.code", place / ".new.abc.numscorch.tmp"]
    for file in left:
        file.write_text("")
    for file in left[:2]:
        used_at(file, 1000.0)
    stored(K, SOURCE)
    assert [file.exists() for file in left] == [False, False, True]


@pytest.mark.parametrize("size", ["lots", "-1", "1T"])
def test_size_that_is_none(place: Path, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    monkeypatch.setenv("NUMSCORCH_CACHE_SIZE", size)
    with pytest.raises(NumscorchError, match="give a number of bytes, as in 200000000, 200M or 2G"):
        stored(K, SOURCE)


def test_listed_and_cleared(place: Path) -> None:
    first, second = stored(named("first"), SOURCE), stored(named("second"), "def kernel(")
    (place / "__pycache__" / f"{named('first')}.0123.code").write_bytes(bytes(1000))
    used_at(first, 1000.0)
    assert [(entry.name, entry.path) for entry in kernel_cache.entries()] == [(named("second"), second), (named("first"), first)]
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
def test_files_of_others_stay(place: Path, monkeypatch: pytest.MonkeyPatch, way: str, age: str) -> None:
    stored(K, SOURCE), stored(f"{K}_serial", SOURCE)
    names = ["train.py", "kernel_utils.py", f"{K}_parallel.py", "notes.tmp", ".session.tmp", ".py", "__init__.py"]
    compiled = ["train.cpython-312.pyc", "gone.cpython-312.pyc", f"{K}_parallel.0123.code", ".swap.tmp"]
    others = [*(place / name for name in names), *(place / kernel_cache.CODE / name for name in compiled)]
    for file in others:
        file.write_text("mine")
        if age == "old":
            used_at(file, 1000.0)
    assert {entry.name for entry in kernel_cache.entries()} == {K, f"{K}_serial"}
    if way == "cleared":
        assert kernel_cache.clear() == 2
    else:
        monkeypatch.setenv("NUMSCORCH_CACHE_SIZE", "0")
        stored(named("last"), SOURCE)
        assert [entry.name for entry in kernel_cache.entries()] == [named("last")]
    assert [file.name for file in others if not file.exists()] == []


def test_a_folder_with_room_is_not_looked_through(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(named("first"), SOURCE)
    monkeypatch.setattr(kernel_cache, "_evict", lambda *args: pytest.fail("looked through"))
    stored(named("second"), SOURCE)
    assert len(kernel_cache.entries()) == 2


def test_a_full_folder_is_looked_through_each_time(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMSCORCH_CACHE_SIZE", "300K")
    for name in ("first", "second", "third"):
        kernel_cache.store(named(name), SOURCE + "#" * 200_000)
    assert len(kernel_cache.entries()) == 1
