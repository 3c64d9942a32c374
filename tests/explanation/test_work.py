"""Operations and bytes of a request, compared with brute-force counts."""

from itertools import product

import pytest
import torch

import numscorch as ns
from benchmarks.recorded import Recorder
from numscorch.explanation.work import Work, work_of
from numscorch.frontend.parser import parse_einsum
from numscorch.programs.operands import EinsumCall
from numscorch.programs.reductions import prepared


def stored(*shape, seed, format=None, density=0.4):
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(shape, generator=generator) + 0.5
    return ns.from_torch(values * (torch.rand(shape, generator=generator) < density), format)


def brute_force(expr, operands):
    """Number of coordinates of all variables where each sparse operand stores an entry."""
    subscripts = parse_einsum(expr, tuple(o.ndim for o in operands))
    sizes = {}
    for names, operand in zip(subscripts.operands, operands, strict=True):
        sizes |= {name: size for name, size in zip(names, operand.shape, strict=True) if sizes.get(name, 1) == 1}
    entries = [set(map(tuple, o.indices().T.tolist())) if isinstance(o, ns.SparseTensor) else None for o in operands]
    count = 0
    for coordinates in product(*(range(size) for size in sizes.values())):
        named = dict(zip(sizes, coordinates, strict=True))
        points = [
            tuple(named[name] if size > 1 else 0 for name, size in zip(names, o.shape, strict=True))
            for names, o in zip(subscripts.operands, operands, strict=True)
        ]
        count += all(stored is None or point in stored for stored, point in zip(entries, points, strict=True))
    return count


A, B, C = (stored(6, 6, seed=seed) for seed in range(3))
T, SQUARE = stored(5, 6, 4, seed=3), torch.ones(6, 6)
REQUESTS = {
    "ij,j->i": (A, torch.ones(6)),
    "ij,jk->ik": (A, B),
    "ij,kj->ik": (A, SQUARE[:3]),
    "ijk,jr,kr->ir": (T, torch.ones(6, 2), torch.ones(4, 2)),
    "ij,ik,kj->ij": (A, B, C),
    "ij,jk,kl->il": (A, B, C),
    "ij,jk,ki->": (A, SQUARE, C),
    "ii,ij->j": (A, B),
    "ij,kl->jl": (A, B),
    "bij,bjk->bik": (stored(3, 4, 6, seed=4), stored(1, 6, 2, seed=5)),
    "ij,jk->ik, dense": (SQUARE, SQUARE),
}


@pytest.mark.parametrize("expr", REQUESTS)
def test_a_product_has_a_multiply_add_at_each_stored_point(expr):
    operands, text = REQUESTS[expr], expr.partition(", dense")[0]
    assert work_of(text, operands, None).flops == 2 * brute_force(text, operands) > 0


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.BCSR(2, 2)])
def test_formats_do_not_change_the_count(format):
    converted = A.to(format)
    assert work_of("ij,jk->ik", (converted, B), None).flops == 2 * brute_force("ij,jk->ik", (converted, B))


def test_native_tensors_count_as_sparse_tensors():
    for native in (A.to_torch(), A.to(ns.COO(2)).to_torch()):
        assert work_of("ij,jk->ik", (native, SQUARE), None).flops == 2 * 6 * A.nnz


def test_a_copy_has_no_operations_and_a_sum_one_for_each_entry():
    assert work_of("ij->ji", (A,), None).flops == 0
    assert work_of("ij->i", (A,), None).flops == A.nnz
    assert work_of("ij,ij->ij", (A, B), None).flops == brute_force("ij,ij->ij", (A, B))


def test_statements_count_each_term_and_each_function():
    assert work_of("C[i,j] = A[i,j] + B[i,j]", {"A": A, "B": B}, None).flops == A.nnz + B.nnz
    assert work_of("C[i,j] = 2 * A[i,j]", {"A": A}, None).flops == A.nnz
    assert work_of("C[i,j] = relu(A[i,j])", {"A": A}, None).flops == A.nnz
    assert work_of("C[i,j] = exp(A[i,j])", {"A": A}, None).flops == 36
    assert work_of("y[i] = a * A[i,j] * x[j] + b[i]", {"a": 2.0, "A": A, "x": SQUARE[0], "b": SQUARE[0]}, None).flops == 2 * A.nnz + 12


def test_a_mask_excludes_coordinates():
    request, operands, _ = prepared(EinsumCall("ij,jk->ik", (A, B), mask=C))
    assert work_of(request, operands, None).flops == 2 * brute_force("ij,jk,ik->ik", (A, B, C))


def test_each_array_is_moved_once():
    x, y = torch.ones(6), torch.ones(6)
    pos, crd = A.pattern.arrays[1]
    matrix = pos.nbytes + crd.nbytes + A.values.nbytes
    assert work_of("ij,j->i", (A, x), y) == Work(2 * A.nnz, matrix + x.nbytes + y.nbytes)
    assert work_of("ij,jk->ik", (A, A), None).bytes == matrix
    assert work_of("ij,jk->ik", (A, torch.ones(6, 1).expand(6, 6)), None).bytes == matrix + 24


def test_a_result_that_keeps_a_pattern_writes_its_values_only():
    result = A * 2.0
    assert work_of("B[i,j] = 2 * A[i,j]", {"A": A}, result).bytes == work_of("ij->ij", (A,), None).bytes + result.values.nbytes


def test_the_values_of_a_mask_are_not_moved():
    request, operands, _ = prepared(EinsumCall("ij,jk->ik", (SQUARE, torch.ones(6, 6)), mask=C))
    indices = sum(array.nbytes for array in C.pattern.arrays[1])
    assert work_of(request, operands, None).bytes == 2 * SQUARE.nbytes + indices


def test_a_fused_program_counts_its_members():
    with Recorder() as recorder:
        calls = recorder.record(lambda: ns.softmax(A, 1)).calls
    counts = [work_of(call.request, call.operands, call.result) for call in calls]
    fused = A.nnz * sum([1, 2, 1, 1])  # the maximum, exp of a difference, the sum, the quotient
    assert [work.flops for work in counts] == [fused]
    assert counts[0].bytes == work_of("ij->ij", (A,), None).bytes + A.values.nbytes
