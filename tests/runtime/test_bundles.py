"""Bundles of kernels: their contents, hosts that load them without compiling, and bundles that are refused."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from programs import ChildProcess, output_of

from numscorch import __main__ as cli
from numscorch.commands import warming
from numscorch.errors import BundleError, NumscorchError, UnsupportedError
from numscorch.machine import atomic_files, fingerprints, kernel_cache, launcher
from numscorch.measuring.specifications import read_request
from numscorch.runtime import bundles, tuned

SPMV = {"A": "uniform:20000x20000:0.0005", "B": "dense:20000"}  # large enough for threads
SMALL = {"A": "uniform:30x40:0.1"}
MORE = "kernel_0123456789abcdef"  # a kernel that is in no bundle
Change = Callable[[dict[str, bytes]], dict[str, bytes]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache of the kernels of two requests and a schedule, and their bundle."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMSCORCH_CACHE_DIR", str(folder / "cache"))
        assert warming.warm(read_request("ij,j->i", SPMV)) == 1
        assert warming.warm(read_request("ij->i", SMALL)) == 1
        tuned.remember("a key", "tile()")
        assert bundles.export(folder / "all.bundle") == bundles.Bundled(kernels=3, schedules=1)
    return folder


@pytest.fixture
def bundle(exported: Path) -> Path:
    """The bundle of all kernels."""
    return exported / "all.bundle"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty cache of a serving host."""
    monkeypatch.setenv("NUMSCORCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    return kernel_cache.folder()


def contents(bundle: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(bundle) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def changed_bundle(bundle: Path, path: Path, change: Change) -> Path:
    """A bundle with changed files."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in change(contents(bundle)).items():
            archive.writestr(name, data)
    return path


def with_metadata(**others: Any) -> Change:
    """Change of the metadata about the machine that exported a bundle."""

    def change(files: dict[str, bytes]) -> dict[str, bytes]:
        metadata = json.loads(files[bundles.TOLD])
        metadata["made"] |= others
        return files | {bundles.TOLD: json.dumps(metadata).encode()}

    return change


def machine_code(kernel: Path) -> dict[str, bytes]:
    """The machine code of a kernel file."""
    return {path.name: path.read_bytes() for path in (kernel.parent / kernel_cache.CODE).glob(f"{kernel.stem}.*")}


def is_empty(place: Path) -> bool:
    """True if the cache has no file, including temporary files."""
    return [path for path in place.rglob("*") if path.is_file()] == []


NEVER_COMPILE = """
import sys
import torch
from numba.core.compiler import CompilerBase
from numscorch.errors import NumscorchError
from numscorch.measuring.specifications import read_request
from numscorch.runtime import bundles
from numscorch.commands.warming import warm

class Compiled(Exception):
    pass

def compile_extra(*args):
    raise Compiled

if sys.argv[1] != "without":
    print(bundles.bring_in(sys.argv[1]).kernels, "kernels")
CompilerBase.compile_extra = compile_extra
spmv = read_request("ij,j->i", {"A": "uniform:20000x20000:0.0005", "B": "dense:20000"})
try:
    warm(spmv)
    A, x = spmv.operands.values()
    print("loaded", torch.allclose(spmv(), A.to_torch() @ x, rtol=1e-4))
    print("summed", read_request("ij->i", {"A": "uniform:30x40:0.1"})().shape)
except Compiled:
    print("compiled")
"""


@pytest.mark.process
def test_a_serving_host_never_compiles(bundle: Path, tmp_path: Path) -> None:
    assert run(NEVER_COMPILE, str(bundle), tmp_path / "one").split("\n") == ["3 kernels", "loaded True", "summed torch.Size([30])", ""]
    assert run(NEVER_COMPILE, "without", tmp_path / "two").strip() == "compiled"


def run(code: str, argument: str, folder: Path) -> str:
    """The output of a process with a separate cache."""
    return output_of(ChildProcess(code, argument, environment={"NUMSCORCH_CACHE_DIR": str(folder)}, strict=False), 300)


def test_imported_kernels_equal_exported_ones(bundle: Path, place: Path, exported: Path) -> None:
    assert bundles.bring_in(bundle) == bundles.Bundled(kernels=3, schedules=1)
    assert sorted(path.name for path in place.glob("*.py")) == sorted(name for name in contents(bundle) if name.endswith(".py"))
    for path in place.glob("*.py"):
        assert path.read_bytes() == (exported / "cache" / path.name).read_bytes()
        assert len(machine_code(path)) == 1
        assert machine_code(path) == machine_code(exported / "cache" / path.name)
    assert tuned.kept() == {"a key": "tile()"}
    assert bundles.bring_in(bundle).kernels == 3, "once more does no harm"


def test_schedules_of_the_host_are_kept(bundle: Path, place: Path) -> None:
    tuned.remember("a key", "parallelize()")
    bundles.bring_in(bundle)
    assert tuned.kept() == {"a key": "parallelize()"}


def test_only_kernels_of_an_expression(exported: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMSCORCH_CACHE_DIR", str(exported / "cache"))
    assert bundles.export(tmp_path / "one.bundle", ["A[i,j]*B[j]"]).kernels == 2
    texts = [data for name, data in contents(tmp_path / "one.bundle").items() if name.endswith(".py")]
    statements = sorted(data.split(b"\n")[0][3:] for data in texts)
    assert statements == [b"C[i] += A[i,j] * B[j]", b"launch: call the entry of a kernel for each worker"]
    with pytest.raises(BundleError, match=r"no kernel in .* computes 'A\[i,z\]': list the kernels with python -m numscorch cache"):
        bundles.export(tmp_path / "none.bundle", ["A[i,z]"])
    assert not (tmp_path / "none.bundle").exists()


def test_uncompiled_and_damaged_kernels_are_not_exported(bundle: Path, place: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no kernel in .* is compiled for this machine: run the program that needs them first"):
        bundles.export(tmp_path / "empty.bundle")
    bundles.bring_in(bundle)
    kernel_cache.store("kernel_0123456789abcdef", '"""y[i] = A[i,j]"""\n')
    assert bundles.export(tmp_path / "a.bundle") == bundles.Bundled(kernels=3, left_out=1, schedules=1)
    launchers, others = [], []
    for code in (place / "__pycache__").glob("*.code"):
        (launchers if code.name.startswith(launcher.name()) else others).append(code)
    for code in (*launchers, others[0]):  # the launcher is compiled again, since all kernels need it
        code.write_bytes(code.read_bytes()[:-1])
    assert bundles.export(tmp_path / "b.bundle").kernels == 2


def test_machine_code_for_other_machines_is_left_out(bundle: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundles.bring_in(bundle)
    monkeypatch.setattr(fingerprints, "processor", lambda: ("x86_64-unknown-linux-gnu", "i486", "+x87"))
    with pytest.raises(BundleError, match="is compiled for this machine"):
        bundles.export(tmp_path / "none.bundle")


VERSIONS = bundles.made_by()["versions"]


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (
            {"versions": VERSIONS | {"numba": "0.1"}},
            rf"was made with numba 0.1, but {VERSIONS['numba']} is installed: install the same version, or compile here",
        ),
        ({"versions": VERSIONS | {"python": "cpython 3.9"}}, "was made with python cpython 3.9, but cpython .* is installed"),
        ({"versions": {}}, "was made with python None"),
        ({"system": "arm64-apple-darwin"}, "was made for arm64-apple-darwin, but this is"),
        ({"processor": "i486"}, "was made for the processor i486, but this is"),
        ({"features": ["+quantum"]}, "with quantum without .*: compile here instead: python -m numscorch cache warm"),
        ({"compiler": "0"}, "was made by another build of numscorch"),
    ],
)
def test_bundles_of_other_machines_are_refused(others: dict[str, Any], message: str, bundle: Path, place: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=message):
        bundles.bring_in(changed_bundle(bundle, tmp_path / "other.bundle", with_metadata(**others)))
    assert is_empty(place)


def test_bundles_of_machines_with_other_caches_give_a_remark(bundle: Path, place: Path, tmp_path: Path) -> None:
    assert bundles.bring_in(changed_bundle(bundle, tmp_path / "other.bundle", with_metadata(caches=[1, 2]))).remark == bundles.ELSEWHERE


def without(suffix: str) -> Change:
    return lambda files: {name: data for name, data in files.items() if not name.endswith(suffix)}


def flipped(files: dict[str, bytes]) -> dict[str, bytes]:
    name = next(name for name in files if name.endswith(".code"))
    return files | {name: files[name][:-1] + bytes([files[name][-1] ^ 1])}


def with_metadata_text(text: bytes) -> Change:
    return lambda files: files | {bundles.TOLD: text}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flipped, "is damaged, the digest of kernel_.*code does not match: nothing was imported"),
        (without(".code"), "is damaged, kernel_.*code is missing"),
        (without(".py"), "is damaged, kernel_.*py is missing"),
        (without(".json"), "is not a bundle of kernels: it has no bundle.json"),
        (lambda files: files | {f"{MORE}.py": b""}, f"{MORE}.py is not listed in bundle.json"),
        (lambda files: files | {"../evil.py": b""}, "contains '../evil.py', not a kernel file"),
        (lambda files: files | {"/evil.py": b""}, "contains '/evil.py'"),
        (lambda files: files | {"a/evil.py": b""}, "contains 'a/evil.py'"),
        (lambda files: files | {"evil.py\n": b""}, ", not a kernel file"),
        (lambda files: files | {"evil.so": b""}, "contains 'evil.so'"),
        (lambda files: files | {f"{MORE}.py": bytes((64 << 20) + 1)}, "more than any kernel"),
        (with_metadata_text(b"no json"), "bundle.json can't be read"),
        (with_metadata_text(b"[" * 100_000), "bundle.json can't be read"),
        (with_metadata_text(b"[1]"), "does not describe a bundle"),
        (with_metadata_text(b"\xff\xfe"), "bundle.json can't be read"),
        (with_metadata(features=[1]), "does not name the versions that made it"),
        (with_metadata(versions=[]), "does not name the versions that made it"),
        (with_metadata(system=None), "does not name the versions that made it"),
    ],
)
def test_damaged_and_invalid_bundles_are_refused(change: Change, message: str, bundle: Path, place: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=message):
        bundles.bring_in(changed_bundle(bundle, tmp_path / "other.bundle", change))
    assert is_empty(place)


def test_a_newer_layout_is_refused(bundle: Path, place: Path, tmp_path: Path) -> None:
    def change(files: dict[str, bytes]) -> dict[str, bytes]:
        return files | {bundles.TOLD: json.dumps(json.loads(files[bundles.TOLD]) | {"layout": 99}).encode()}

    with pytest.raises(BundleError, match="has layout 99, but this version of numscorch reads 2"):
        bundles.bring_in(changed_bundle(bundle, tmp_path / "other.bundle", change))


def without_source(files: dict[str, bytes]) -> dict[str, bytes]:
    """Remove the source of a kernel, and its digest."""
    metadata = json.loads(files[bundles.TOLD])
    removed = next(name for name in files if name.endswith(".py"))
    metadata["digests"].pop(removed)
    return {name: data for name, data in files.items() if name != removed} | {bundles.TOLD: json.dumps(metadata).encode()}


def test_machine_code_without_a_source_is_refused(bundle: Path, place: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="has no source"):
        bundles.bring_in(changed_bundle(bundle, tmp_path / "other.bundle", without_source))
    assert is_empty(place)


@pytest.mark.parametrize("data", [b"", b"text", b"PK\x03\x04 and no more"])
def test_a_file_that_is_no_archive_is_refused(data: bytes, place: Path, tmp_path: Path) -> None:
    (tmp_path / "other.bundle").write_bytes(data)
    with pytest.raises(BundleError, match="is not a bundle of kernels"):
        bundles.bring_in(tmp_path / "other.bundle")


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_truncated_and_damaged_bundles_are_refused(share: float, bundle: Path, place: Path, tmp_path: Path) -> None:
    data = bundle.read_bytes()
    (tmp_path / "half.bundle").write_bytes(data[: int(share * len(data))])
    at = int(share * len(data))
    (tmp_path / "flipped.bundle").write_bytes(data[:at] + bytes(byte ^ 255 for byte in data[at : at + 64]) + data[at + 64 :])
    for name in ("half", "flipped"):
        with pytest.raises(BundleError):
            bundles.bring_in(tmp_path / f"{name}.bundle")
    assert is_empty(place)


def flip(data: bytearray, random: Random) -> None:
    for _ in range(random.choice((1, 1, 2, 8))):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def overwrite(data: bytearray, random: Random) -> None:
    """Overwrite a field of 1 to 8 bytes with an extreme number."""
    at, width = random.randrange(len(data)), random.choice((1, 2, 4, 8))
    data[at : at + width] = random.choice((b"\0", b"\xff", b"\x80", b"\x7f")) * width


def cut_off(data: bytearray, random: Random) -> None:
    del data[random.randrange(len(data)) :]


def cut_out(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data))
    del data[at : at + random.randrange(1, 64)]


def put_in(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data))
    data[at:at] = random.randbytes(random.randrange(1, 64))


def copy_over(data: bytearray, random: Random) -> None:
    width = random.randrange(1, 64)
    source, target = random.randrange(len(data)), random.randrange(len(data))
    data[target : target + width] = data[source : source + width]


MUTATIONS = (flip, overwrite, cut_off, cut_out, put_in, copy_over)


def test_mutated_archives_are_refused_or_read_completely(place: Path, tmp_path: Path, scale: Callable[[int], int]) -> None:
    """Damage raises BundleError unless it is in unused bytes. Half of it is in the directory of the archive, at its end."""
    random = Random(0)
    files = {f"{MORE}.py": b'"""a"""\n', f"{MORE}.{'0' * 32}.code": bytes(50), tuned.FILE: b"{}"}
    bundles._write(tmp_path / "whole.bundle", files)
    whole, path = (tmp_path / "whole.bundle").read_bytes(), tmp_path / "mutated.bundle"
    directory = whole.index(b"PK\x01\x02")
    refused = 0
    for turn in range(scale(6000)):
        offset = directory if turn % 2 else 0
        data = bytearray(whole[offset:])
        random.choice(MUTATIONS)(data, random)
        path.write_bytes(whole[:offset] + data)
        try:
            assert bundles._read(path)[1] == files, turn
        except BundleError:
            refused += 1
    assert refused > turn // 2


def test_paths_that_are_no_regular_file_are_refused(place: Path, tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("the platform has no FIFOs")
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(BundleError, match="is not a regular file"):
            bundles.bring_in(path)


def test_duplicate_names_are_refused(bundle: Path, place: Path, tmp_path: Path) -> None:
    path = changed_bundle(bundle, tmp_path / "other.bundle", lambda files: files)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(bundles.TOLD, contents(bundle)[bundles.TOLD])
    with pytest.raises(BundleError, match="it lists a file twice"):
        bundles.bring_in(path)


@pytest.mark.parametrize("fails_at", [1, 2, 5])
def test_a_full_disk_does_not_change_the_cache(fails_at: int, bundle: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_cache.store("kernel_0123456789abcdef", '"""mine"""\n')
    before = sorted(path.name for path in place.rglob("*") if path.name != kernel_cache.ROOM)
    drafted, calls = bundles.drafted, []

    def full(path: Path, data: bytes) -> Path:
        calls.append(path)
        if len(calls) == fails_at:
            raise OSError(28, "No space left on device")
        return drafted(path, data)

    monkeypatch.setattr(bundles, "drafted", full)
    with pytest.raises(OSError, match="No space left"):
        bundles.bring_in(bundle)
    assert sorted(path.name for path in place.rglob("*") if path.name != kernel_cache.ROOM) == before


@pytest.mark.parametrize("fails_at", [1, 4, 6])
def test_a_move_that_fails_leaves_no_kernel_of_the_bundle(
    fails_at: int, bundle: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move, calls = os.replace, []

    def fails(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) == fails_at:
            raise OSError(5, "Input/output error")
        move(source, target)

    monkeypatch.setattr(atomic_files.os, "replace", fails)
    with pytest.raises(OSError, match="Input/output"):
        bundles.bring_in(bundle)
    assert is_empty(place)


def test_a_bundle_that_is_too_large_is_not_unpacked(bundle: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"kernel_{at:016}.py": bytes(1 << 20) for at in range(9)}
    large = changed_bundle(bundle, tmp_path / "large.bundle", lambda original: original | files)
    monkeypatch.setenv("NUMSCORCH_CACHE_SIZE", "8M")
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *arguments: pytest.fail("it was read"))
    with pytest.raises(BundleError, match=r"NUMSCORCH_CACHE_SIZE keeps 8,388,608: set it to 1[01]M or more"):
        bundles.bring_in(large)


def test_small_and_temporary_caches_are_refused(bundle: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMSCORCH_CACHE_SIZE", "1K")
    with pytest.raises(BundleError, match=r"NUMSCORCH_CACHE_SIZE keeps 1,024: set it to \d+M or more"):
        bundles.bring_in(bundle)
    monkeypatch.delenv("NUMSCORCH_CACHE_SIZE")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMSCORCH_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(BundleError, match=r"can't be made .*, and kernels in a temporary folder end with this process: set NUMSCORCH"):
        bundles.bring_in(bundle)


def test_commands(bundle: Path, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "import", str(bundle)]) == 0
    assert f"{place} has 3 kernels and 1 schedule from {bundle}" in capsys.readouterr().out
    assert cli.main(["cache", "export", str(tmp_path / "b"), "A[i,j] * B[j]"]) == 0
    assert f"{tmp_path / 'b'}: 2 kernels and 1 schedule, " in capsys.readouterr().out
    lines = "# sums\nij->i --operand A=uniform:30x40:0.1\n\nij,j->i --operand A=uniform:20000x20000:0.0005 --operand B=dense:20000\n"
    (tmp_path / "requests.txt").write_text(lines)
    assert cli.main(["cache", "warm", str(tmp_path / "requests.txt")]) == 0
    assert f"2 requests have their kernels in {place}; 0 kernels compiled" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ij->i", "line 2: operand A of 'ij->i' is missing"),
        ("ij->i --operand A=uniform:3x3:0.5 --nonsense", "line 2: unrecognized arguments: --nonsense: a line holds the arguments of"),
        ("--help", "line 2: the following arguments are required: EXPR: a line holds the arguments of"),
        (
            "ij->i --operand A=uniform:3x3:0.5 --seed 99999999999999999999",
            "line 2: argument --seed: 99999999999999999999 does not fit in 64 bits",
        ),
        ("'ij->i", "line 2: No closing quotation"),
        ("ij->i --operand A=dense:3x3", "line 2: nothing is compiled for 'ij->i': torch computes it"),
        ("ij->i --operand A=uniform:3x3:0.5 --operand A=dense:3x3", "line 2: A is given twice"),
        ("ij,j->i --operand A=uniform:3x3:0.5 --operand B=dense:4", "line 2: index j has size 3 in A but 4 in B"),
        ("ij->i --operand A=missing.mtx", "line 2: missing.mtx: numscorch.load finds no such file"),
    ],
)
def test_errors_name_the_line_of_an_invalid_request(
    line: str, message: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "requests.txt").write_text(f"# comment\n{line}\n")
    assert cli.main(["cache", "warm", str(tmp_path / "requests.txt")]) == 2
    assert message in capsys.readouterr().err


def test_bad_files_give_a_message_without_traceback(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for arguments in (
        ["warm", str(tmp_path / "binary")],
        ["import", str(tmp_path / "binary")],
        ["export", str(tmp_path)],
    ):
        assert cli.main(["cache", *arguments]) == 2
        assert capsys.readouterr().err.startswith("numscorch: ")


def test_missing_files_give_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action, message in (("import", "there is no bundle"), ("warm", "there is no file of requests")):
        assert cli.main(["cache", action, str(tmp_path / "missing")]) == 2
        assert capsys.readouterr().err.startswith(f"numscorch: {message} {tmp_path / 'missing'}: ")


def test_nothing_is_warmed_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    with pytest.raises(UnsupportedError, match="NUMBA_DISABLE_JIT"):
        warming.warm(read_request("ij->j", SMALL))
    assert issubclass(BundleError, NumscorchError)
