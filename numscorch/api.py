"""einsum and explain: from what a user writes to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from .errors import ExpressionError, SizeError, UnsupportedError
from .explanation import Explanation, explain_problem
from .io import load as read
from .io import suffix_of
from .ir.format import Format
from .parser import from_sublists
from .runtime.dispatch import Plan, find_plan
from .runtime.native import wrap
from .sparse_tensor import SparseTensor

Operand = SparseTensor | Tensor
STRIDED = torch.strided


def einsum(expr: Any, *operands: Any, format: Format | str | None = None, out: Any = None) -> Any:
    """Sum of products over any mix of sparse and dense tensors, in numpy's einsum notation.

    Args:
        expr: the expression, as ``"ij,jk->ik"``; ellipsis, repeated indices and an implicit result
            mean what they mean in ``numpy.einsum``. The sublist form is taken as well.
        operands: SparseTensors, torch's sparse tensors (COO, CSR, CSC) and strided tensors, all
            float32 or all float64, on the CPU.
        format: the result's format; by default it keeps a sparse operand's pattern where that has
            the result's index set, and is dense where a factor is dense. ``"infer"`` gives the
            literal answer of Algorithm 4 (Scorch, section D.2).
        out: a tensor that receives the result.

    Returns:
        A torch tensor, or a SparseTensor for a sparse result (a torch sparse tensor where every
        operand is torch's).

    Raises:
        ExpressionError: the text can't be read, or doesn't fit the operands' ranks.
        SizeError: an index has two sizes.
        UnsupportedError: an operand requires grad, or the construct isn't compiled yet.

    Complexity is that of a loop nest over the stored values: O(nnz * k) for a matrix times k
    columns. Products with unstored entries are never formed, so a NaN or inf in a dense operand
    reaches the result only through stored values (a stored 0 times NaN is NaN, as in torch).

    Source: Scorch, section 4; the compiler is described in ``docs/ARCHITECTURE.md``.

    >>> import torch, numscorch as ns
    >>> A = ns.from_coo([[0, 1, 1], [2, 0, 2]], [1.0, 2.0, 3.0], (2, 3), format=ns.CSR)
    >>> ns.einsum("ij,jk->ik", A, torch.ones(3, 2))
    tensor([[1., 1.],
            [5., 5.]])
    """
    if type(expr) is not str:
        expr, operands = _call_form(expr, operands)
    elif len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    ready = [o if type(o) is Tensor and o.layout is STRIDED and not (o.requires_grad or o.is_neg()) else admit(o) for o in operands]
    if SparseTensor not in map(type, ready):
        return _dense(expr, ready, out)
    plan = find_plan(expr, ready, format)
    if out is not None:
        return _run_into(plan, ready, out)
    result = plan.run(*ready)
    if type(result) is SparseTensor or plan.problem.requested is not None:
        return _stored(result, plan.problem.requested, operands)
    return result


def _stored(result: Any, requested: Format | None, operands: Sequence[Any]) -> Any:
    """The result in the format asked for; torch's where every operand is torch's."""
    if isinstance(result, SparseTensor):
        result = result if requested is None else result.to(requested)
        return result if any(isinstance(o, SparseTensor) for o in operands) else result.to_torch()
    order = requested.mode_order if requested is not None else range(result.ndim)
    return result.permute(*order).contiguous().permute(*(list(order).index(d) for d in range(result.ndim)))


def _run_into(plan: Plan, ready: Sequence[Any], out: Any) -> Any:
    """Write the result into ``out``, which is checked first."""
    shape, shares = plan.problem.shape, plan.problem.result.shares
    if isinstance(out, SparseTensor) == (shares is None) or plan.problem.requested is not None:
        wanted = "a SparseTensor" if shares is not None else "a dense tensor"
        raise UnsupportedError(f"out must be {wanted} for this expression, not {type(out).__name__}")
    if tuple(out.shape) != shape:
        raise SizeError(f"out has shape {tuple(out.shape)}, but the result has {shape}")
    result = plan.run(*ready)
    if isinstance(out, SparseTensor):
        if out.pattern is not result.pattern:
            raise SizeError("out must share the pattern that the result keeps: make it with A.with_values(...)")
        out.values.copy_(result.values)
    else:
        out.copy_(result)
    return out


def _call_form(first: Any, rest: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """numpy's sublist form."""
    if len(rest) < 1:
        raise ExpressionError("einsum needs an expression and operands, as einsum('ij,jk->ik', A, B)")
    text, operands = from_sublists((first, *rest))
    return text, tuple(operands)


def admit(operand: Any) -> Operand:
    """An operand as a plan takes it: a SparseTensor with a sparse level, or a strided tensor, neither requiring grad.

    Raises:
        UnsupportedError: it is no tensor, it requires grad, or it isn't on the CPU.
    """
    if type(operand) is SparseTensor:
        if operand.values.requires_grad:
            _refuse_grad()
        return strided(operand).detach() if operand.pattern.is_dense else operand
    if not isinstance(operand, Tensor):
        raise UnsupportedError(f"einsum takes SparseTensors and torch tensors, not {type(operand).__name__}: wrap it with torch.as_tensor")
    if operand.requires_grad:
        _refuse_grad()
    return operand.detach().resolve_neg() if operand.layout is STRIDED else wrap(operand)


def strided(tensor: SparseTensor) -> Tensor:
    """The strided tensor that shares the values of a SparseTensor whose levels are all dense."""
    order = tensor.format.mode_order
    stored = tensor.values.view([tensor.shape[d] for d in order])
    return stored.permute([order.index(d) for d in range(tensor.ndim)])


def _refuse_grad() -> None:
    if torch.is_grad_enabled():
        raise UnsupportedError(
            "an operand requires grad, and gradients are not compiled yet: a detached result would be wrong silently\n"
            "  compute under torch.no_grad(), or pass x.detach(), for a SparseTensor A.with_values(A.values.detach())"
        )


def _dense(expr: str, operands: Sequence[Any], out: Any) -> Any:
    """All-dense expressions are torch's."""
    result = torch.einsum(expr, *operands)
    return result if out is None else out.copy_(result)


def explain(expr: str, *operands: Any, format: Format | str | None = None) -> Explanation:
    """Every stage of compiling an expression: formats, passes, costs, source, and its file.

    Args:
        expr: as for :func:`einsum`.
        operands: tensors, or formats, which stand for a tensor of size 1024 in every dimension
            with 16 nonzeros in a row.
        format: as for :func:`einsum`.

    Returns:
        An :class:`Explanation`; ``print`` it, or read ``.source`` and ``.path``.

    >>> import numscorch as ns
    >>> text = str(ns.explain("ij,j->i", ns.CSR, ns.Format("d")))
    >>> "forall(i, where(C[i] = t" in text
    True
    """
    return explain_problem(expr, [o if isinstance(o, Format) else _explained(o) for o in operands], format)


def _explained(operand: Any) -> Any:
    if isinstance(operand, str):
        return Format(operand)
    return admit(operand)


def load(f: Any, *args: Any, **kwargs: Any) -> Any:
    """Read a sparse tensor from .mtx, .tns, .smtx (each also .gz) or .npz; any other file is torch.load's.

    Args:
        f: a path, or whatever torch.load takes.
        args, kwargs: ``format`` and ``dtype`` for our files; torch.load's arguments for others.
    """
    if isinstance(f, str | PathLike) and suffix_of(f) is not None:
        return read(f, *args, **kwargs)
    return torch.load(f, *args, **kwargs)
