"""Softmax, maximum and sum of the rows of a CSR matrix."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns
from numscorch.measuring.turns import Function

from ..conftest import Compare
from ..data import Matrix, matrix
from ..selection import cases


@pytest.mark.parametrize(("name", "what"), cases((), ["softmax", "max", "sum"]))
def test_rows(name: str, what: str, threads: int, compare: Compare) -> None:
    """Row operations against torch's softmax of COO tensors and its segment and scatter reductions."""
    case = matrix(name)
    ours, peers = {"softmax": softmax, "max": largest, "sum": total}[what](case)
    compare("rows", ours, peers, case=case, threads=threads, what=what)


def softmax(case: Matrix) -> tuple[Function, dict[str, Function]]:
    """Softmax over the stored entries of each row."""
    A, in_torch = case.tensor, case.tensor.to(ns.COO(2)).to_torch()
    return lambda: ns.softmax(A, 1), {"torch.sparse.softmax, COO": lambda: torch.sparse.softmax(in_torch, 1)}


def largest(case: Matrix) -> tuple[Function, dict[str, Function]]:
    """Maximum of each row, including the zeros that are not stored; torch's reductions therefore start from 0."""
    A, offsets, rows = case.tensor, case.arrays[0], case.tensor.indices()[0]
    return lambda: ns.amax(A, 1), {
        "torch.segment_reduce": lambda: torch.segment_reduce(A.values, "max", offsets=offsets, initial=0.0),
        "torch.scatter_reduce": lambda: torch.zeros(case.shape[0]).scatter_reduce_(0, rows, A.values, "amax"),
    }


def total(case: Matrix) -> tuple[Function, dict[str, Function]]:
    """The sum of each row."""
    A, offsets, rows, in_torch = case.tensor, case.arrays[0], case.tensor.indices()[0], case.in_torch
    return lambda: ns.sum(A, 1), {
        "torch.segment_reduce": lambda: torch.segment_reduce(A.values, "sum", offsets=offsets, initial=0.0),
        "torch.index_add": lambda: torch.zeros(case.shape[0]).index_add_(0, rows, A.values),
        "torch CSR sum": lambda: in_torch.sum(1, keepdim=True).to_dense().view(-1),
    }
