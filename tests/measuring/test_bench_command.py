"""``python -m numscorch bench``: requests, the equivalent calls of other libraries, and the table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch import __main__ as cli
from numscorch.errors import ExpressionError, FormatError, OperandError, SizeError
from numscorch.explanation.roofs import Rates
from numscorch.measuring import peers, table
from numscorch.measuring.comparison import check
from numscorch.measuring.shapes import Elementwise, MatMul, SampledMatMul, Shape, Sum, shape_of
from numscorch.measuring.specifications import BoundRequest, read_request
from numscorch.measuring.turns import Turns

A, B, S = "uniform:30x40:0.1", "dense:40x16", "uniform:30x16:0.2"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Roofs are constants here; ``test_work`` and other tests measure them."""
    monkeypatch.setattr(table, "rates", lambda workers: Rates(1e10, 1e11))


# ---- requests


def test_operands_follow_their_descriptions() -> None:
    request = read_request("ij,jk->ik", {"A": A, "B": B}, formats={"A": "CSC"}, dtype="float64", seed=3)
    assert request.descriptions == {"A": "30x40 CSC float64, 120 stored", "B": "40x16 dense float64"}
    equal = read_request("ij,jk->ik", {"A": A, "B": B}, dtype="float64", seed=3)
    assert torch.equal(request.operands["A"].to_dense(), equal.operands["A"].to_dense()), "numbers are seeded"
    other_seed = read_request("ij,jk->ik", {"A": A, "B": B}, dtype="float64", seed=4)
    assert not torch.equal(request.operands["B"], other_seed.operands["B"])


def test_files_are_read(tmp_path: Path) -> None:
    matrix = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]]), ns.CSR)
    for name in ("a.mtx", "a.npz", "a.tns"):
        ns.save(matrix, tmp_path / name)
        A = read_request("ij->i", {"A": str(tmp_path / name)}, formats={"A": "CSR"}).operands["A"]
        assert A.to_dense()[:2].tolist() == [[0, 2], [3, 0]]
    dense = read_request("ij->i", {"A": str(tmp_path / "a.mtx")}, formats={"A": "dense"}).operands["A"]
    assert torch.equal(dense, matrix.to_dense())
    shaped = read_request("ij->i", {"A": f"{tmp_path / 'a.tns'}:5x4"}).operands["A"]
    assert shaped.shape == (5, 4)
    with pytest.raises(FormatError, match="1"):
        read_request("ij->i", {"A": f"{tmp_path / 'a.tns'}:1x1"})


def test_formats_of_dense_operands_and_results_can_be_requested() -> None:
    request = read_request("ij,jk->ik", {"A": "dense:3x4", "B": "uniform:4x5:0.5"}, formats={"A": "DCSR"}, result="CSR", dtype="int32")
    assert request.operands["A"].format.name == "DCSR"
    assert request().format == ns.CSR
    assert read_request("y[i] = M[i,j] * v[j]", {"M": "uniform:3x4:0.5", "v": "dense:4"})().shape == (3,)


@pytest.mark.parametrize(
    ("expr", "specs", "options", "error", "message"),
    [
        ("ij,jk->ik", {"A": A}, {}, ExpressionError, "operand B of 'ij,jk->ik' is missing: its operands are A, B, in this order"),
        ("ij->i", {"A": A, "C": B}, {}, ExpressionError, "C is not an operand of 'ij->i': its operands are A, in this order"),
        ("ij->i", {"A": A}, {"formats": {"Z": "CSR"}}, ExpressionError, "Z is not an operand"),
        ("ij->i", {"A": "dense:3by4"}, {}, FormatError, "'dense:3by4' needs sizes, such as 1000x64: give a file"),
        ("ij->i", {"A": "dense:3x"}, {}, FormatError, "needs sizes"),
        ("ij->i", {"A": f"dense:{10**9}x{10**9}"}, {}, FormatError, "takes 7.45e+09 GiB, more than is free"),
        ("ij->i", {"A": f"dense:{10**30}"}, {}, FormatError, "more than is free"),
        ("ij->i", {"A": "dense:-3x4"}, {}, FormatError, "needs sizes"),
        ("ij->i", {"A": "dense"}, {}, FormatError, "'dense' is not an operand: give a file"),
        ("ij->i", {"A": "uniform:3x4"}, {}, FormatError, "'uniform:3x4' is not an operand"),
        ("ij->i", {"A": "uniform:3x4:many"}, {}, FormatError, "needs a density, such as 0.01"),
        ("ij->i", {"A": "uniform:3x4:nan"}, {}, SizeError, "lies between 0 and 1"),
        ("ij->i", {"A": "sparse:3x4"}, {}, FormatError, "'sparse:3x4' is not an operand"),
        ("ij->i", {"A": A}, {"dtype": "float31"}, OperandError, "'float31' is not a supported data type: use one of float32"),
        ("ij->i", {"A": A}, {"dtype": "nn"}, OperandError, "is not a supported data type"),
        ("ij->i", {"A": A}, {"formats": {"A": "XYZ"}}, FormatError, "or a name, for this operand of order 2"),
        (",".join(["i"] * 27), {}, {}, ExpressionError, "has 27 operands, but the command line names at most 26"),
    ],
)
def test_bad_requests_are_refused(expr: str, specs: dict[str, str], options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        read_request(expr, specs, **options)
    assert message in str(raised.value)


# ---- equivalent calls of other libraries

T = "dense:16x40"
CASES: list[tuple[str, dict[str, str], Shape | None]] = [
    ("ij,jk->ik", {"A": A, "B": B}, MatMul(0, 1, False, False)),
    ("ij,jk->ki", {"A": A, "B": B}, MatMul(1, 0, True, True)),
    ("ji,jk->ik", {"A": "uniform:40x30:0.1", "B": B}, MatMul(0, 1, True, False)),
    ("bi,oi->bo", {"A": T, "B": A}, MatMul(0, 1, False, True)),
    ("bi,io->bo", {"A": T, "B": "uniform:40x30:0.1"}, MatMul(0, 1, False, False)),
    ("ij,j->i", {"A": A, "B": "dense:40"}, MatMul(0, 1, False, False)),
    ("j,ij->i", {"A": "dense:40", "B": A}, MatMul(1, 0, False, False)),
    ("ij,jk->ik", {"A": A, "B": "uniform:40x16:0.2"}, MatMul(0, 1, False, False)),
    ("y[i] = A[i,j] * x[j]", {"A": A, "x": "dense:40"}, MatMul(0, 1, False, False)),
    ("ij,ik,jk->ij", {"A": S, "B": "dense:30x40", "C": T}, SampledMatMul(0, MatMul(1, 2, False, True))),
    ("ik,kj,ij->ij", {"A": "dense:30x40", "B": B, "C": S}, SampledMatMul(2, MatMul(0, 1, False, False))),
    ("ij,ij->ij", {"A": A, "B": A}, Elementwise("*")),
    ("C[i,j] = A[i,j] + B[i,j]", {"A": A, "B": "uniform:30x40:0.2"}, Elementwise("+")),
    ("ij->i", {"A": A}, Sum((1,))),
    ("ij->j", {"A": A}, Sum((0,))),
    ("ij->", {"A": A}, Sum((0, 1))),
    ("ijk->i", {"A": "uniform:4x5x6:0.2"}, Sum((1, 2))),
    ("ijk,kl->ijl", {"A": "uniform:4x5x6:0.2", "B": "dense:6x3"}, None),
    ("C[i,k] = relu(A[i,j] * B[j,k])", {"A": A, "B": B}, None),
    ("C[i,j] = A[i,j] + B[j,i]", {"A": A, "B": "uniform:40x30:0.2"}, None),
    ("C[i,j] = A[i,j] - B[i,j]", {"A": A, "B": A}, None),
    ("y[i] max= A[i,j]", {"A": A}, None),
    ("y[i] = 2 * A[i,j] * x[j]", {"A": A, "x": "dense:40"}, None),
    ("C[i,j] = A[i,j] + 2 * B[i,j]", {"A": A, "B": "uniform:30x40:0.2"}, None),
    ("ii->i", {"A": "uniform:5x5:0.5"}, None),
]


@pytest.mark.parametrize(("expr", "specs", "shape"), CASES, ids=[expr for expr, _, _ in CASES])
def test_all_peers_that_support_a_request_agree(expr: str, specs: dict[str, str], shape: Shape | None) -> None:
    request = read_request(expr, specs)
    assert shape_of(request) == shape
    compared, expected = peers.peers_of(request), request()
    assert compared.functions.keys() | compared.missing.keys() == peers.MAKERS.keys()
    assert peers.DENSE in compared.functions
    assert (peers.TORCH in compared.functions) == (peers.TORCH_64 in compared.functions) == (shape is not None and "ijk" not in expr)
    for name, result in compared.results.items():
        check(expected, result, name)
        check(expected, compared.functions[name](), name)


def test_a_sampled_product_has_the_values_of_its_mask() -> None:
    request = read_request("ij,ik,jk->ij", {"A": S, "B": "dense:30x40", "C": T})
    ones = BoundRequest(request.expr, request.operands | {"A": request.operands["A"].with_values(torch.ones(request.operands["A"].nnz))})
    for bound in (request, ones):
        results = peers.peers_of(bound).results
        for name in (peers.TORCH, peers.TORCH_64):
            check(bound(), results[name], name)


def test_missing_peers_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    request = read_request("ij,ik,jk->ij", {"A": S, "B": "dense:30x40", "C": T})
    monkeypatch.setattr(peers, "is_installed", lambda module: module != "graphblas")
    monkeypatch.setattr(peers, "available", lambda: 1)
    missing = peers.peers_of(request).missing
    assert missing[peers.GRAPHBLAS] == "not installed"
    assert missing[peers.SCIPY] == "no sampled product"
    assert missing[peers.DENSE].startswith("too large: its operands take")
    monkeypatch.setattr(peers, "available", lambda: 1 << 40)
    monkeypatch.setattr(peers, "MOST_DENSE", 10)
    assert peers.peers_of(request).missing[peers.DENSE] == "too large: 1.9e+04 multiplications"
    tensor = peers.peers_of(read_request("ijk,kl->ijl", {"A": "uniform:4x5x6:0.2", "B": "dense:6x3"})).missing
    assert tensor[peers.TORCH] == "supports matrices only, but A has 3 dimensions"


# ---- the command

COMMAND = ["bench", "ij,jk->ik", "--operand", f"A={A}", "--operand", f"B={B}", "--seconds", "0.02"]


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    assert cli.main([*COMMAND, "--threads", "1", "--json", str(tmp_path / "x.json")]) == 0
    assert torch.get_num_threads() == threads
    out = capsys.readouterr().out
    for part in ("ij,jk->ik\n  A: 30x40 CSR float32, 120 stored\n  B: 40x16 dense float32\n  1 thread\n", "times as long as numscorch"):
        assert part in out
    assert {"numscorch", peers.TORCH, peers.TORCH_64, peers.SCIPY, peers.DENSE} <= {line[2:20].strip() for line in out.splitlines()}
    assert "3,840 operations." in out
    assert "The first call compiles in" in out
    output = json.loads((tmp_path / "x.json").read_text())
    sides = {side["name"]: side for side in output["sides"]}
    assert output["request"] == "ij,jk->ik"
    assert output["flops"] == 2 * 120 * 16
    assert sides["numscorch"]["ratio"] is None
    torchs = sides[peers.TORCH]
    assert torchs["ratio"]["ratio"] == pytest.approx(torchs["seconds"] / sides["numscorch"]["seconds"])
    assert torchs["ratio"]["low"] <= torchs["ratio"]["ratio"] <= torchs["ratio"]["high"]
    assert output["compile_seconds"] > output["load_seconds"] > 0
    assert output["versions"]["torch"] == torch.__version__


def test_much_slower_peers_are_called_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "PATIENCE", 0.0)
    measured = table.measure(read_request("ij,jk->ik", {"A": A, "B": B}), 0.02)
    assert set(measured.slower) == {row.name for row in measured.rows[1:]}
    assert str(measured).count("few calls") == len(measured.slower)


def test_peers_that_disagree_are_never_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(request: BoundRequest, shape: Shape | None) -> Any:
        return lambda: torch.zeros(30, 16)

    def timed(*args: Any, **options: Any) -> Any:
        raise RuntimeError("timed")

    monkeypatch.setattr(peers, "MAKERS", peers.MAKERS | {peers.SCIPY: wrong})
    monkeypatch.setattr(table, "in_turns", timed)
    assert cli.main(COMMAND) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "differs from SciPy CSR by up to" in captured.err
    assert "nothing was timed" in captured.err


def test_results_with_the_same_infinities_agree() -> None:
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    check(odd, odd.clone())
    for at, value in enumerate((0.0, float("nan"), float("inf"), float("nan"))):
        changed = odd.clone()
        changed[at] = value
        for pair in ((odd, changed), (changed, odd)):
            with pytest.raises(AssertionError, match=r"differs from .* by up to"):
                check(*pair)


def test_a_busy_machine_is_reported() -> None:
    assert Turns((1.0, 1.0, 1.1), {}, {}).disturbance == 1.0
    measured = table.measure(read_request("ij,jk->ik", {"A": "uniform:30x20:0.2", "B": "dense:20x16"}), 0.02)
    assert "half of our calls took 5.0 times the fastest" in str(replace(measured, disturbance=5.0))
    assert "Other programs disturbed" not in str(replace(measured, disturbance=1.5))


@pytest.mark.parametrize(
    ("result", "other"),
    [
        (torch.tensor([0], dtype=torch.int8), torch.tensor([-128], dtype=torch.int8)),  # abs(-128) is -128
        (torch.tensor([True, False]), torch.tensor([True, True])),
        (torch.tensor([[2.0, 1j]]).to_sparse_csr(), torch.tensor([[2.0, 0.0j]]).to_sparse_csr()),
    ],
    ids=["int8", "bool", "complex, in other places"],
)
def test_results_of_any_data_type_that_differ_are_refused(result: torch.Tensor, other: torch.Tensor) -> None:
    with pytest.raises(AssertionError, match=r"differs from .* by up to"):
        check(result, other)
    check(result, result.clone())


def test_results_with_stored_zeros_agree() -> None:
    stored = ns.from_coo([[0, 0], [0, 1]], torch.tensor([2.0 + 1j, 0]), (1, 2), format=ns.CSR)
    check(stored, torch.tensor([[2.0 + 1j, 0]]).to_sparse_csr())


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int64", "complex64"])
def test_every_data_type(dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*COMMAND, "--dtype", dtype]) == 0
    assert dtype in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ij,jk->ik", "--operand", f"A={A}", "--operand", "B=dense:41x16"], "index j has size 40 in A but 41 in B"),
        (["ij->i", "--operand", "A=dense:3x4"], "every operand is dense: torch computes it"),
        (["ij->i", "--operand", f"A={A}", "--operand", f"A={B}"], "A is given twice"),
        (["ij->i", "--operand", "A=missing.mtx"], "missing.mtx"),
        (["ij->i", "--operand", "A=NOTHING.mtx"], "NOTHING.mtx, line 1: 'this is a letter' is not a MatrixMarket header"),
        (["ij->i", "--operand", f"A={A}", "--json", "no/such/folder/x.json"], "the folder of no/such/folder/x.json does not exist"),
    ],
)
def test_bad_input_gives_one_message_without_traceback(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "NOTHING.mtx").write_text("this is a letter\n")
    assert cli.main(["bench", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("numscorch: ")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "more",
    [
        ["--seconds", "0"],
        ["--seconds", "inf"],
        ["--seconds", "x"],
        ["--threads", "0"],
        ["--threads", "99999999999"],
        ["--seed", "99999999999999999999"],
        ["--seed", "one"],
        ["--operand", "A"],
        ["--operand", "1=x"],
    ],
)
def test_usage(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([*COMMAND, *more])
    assert "usage: numscorch bench" in capsys.readouterr().err
