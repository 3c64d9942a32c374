"""einsum and explain: from what a user writes to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .construct import from_torch
from .convert import has_torch_layout
from .errors import SizeError, UnsupportedError
from .explanation import Explanation, explain_problem
from .io import load as read
from .io import suffix_of
from .ir.format import Format, as_format
from .operands import STRIDED, Deferred, admit, call_form, identify, is_all_native, refuse_tangents, undeferred
from .problem import wanted_format
from .runtime.dispatch import Plan, find_plan, known_plan
from .sparse_tensor import SparseTensor


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
    columns. Entries that aren't stored take no part: a NaN or inf that meets only those in a sum
    doesn't reach it. A factor without a summed index multiplies the sum, also an empty one (0).

    Source: Scorch, section 4; the compiler is described in ``docs/ARCHITECTURE.md``.

    >>> import torch, numscorch as ns
    >>> A = ns.from_coo([[0, 1, 1], [2, 0, 2]], [1.0, 2.0, 3.0], (2, 3), format=ns.CSR)
    >>> ns.einsum("ij,jk->ik", A, torch.ones(3, 2))
    tensor([[1., 1.],
            [5., 5.]])
    """
    if forward_ad._current_level >= 0:
        refuse_tangents(operands)
    if type(expr) is not str or len(operands) == 1:
        expr, operands = call_form(expr, operands)
    if format is not None and not isinstance(format, str):
        format = as_format(format)
    ready, signatures = identify(operands)
    plan = known_plan(expr, format, signatures)
    if plan is None:
        kinds = set(map(type, ready))
        if SparseTensor not in kinds:
            return _dense(expr, ready, format, out)
        if Deferred in kinds:
            ready, signatures = identify(list(map(undeferred, ready)))
        plan = find_plan(expr, format, ready, signatures)
    if out is not None:
        return _run_into(plan, ready, out)
    result = plan.run(*ready)
    requested = plan.problem.requested
    if requested is None and (type(result) is Tensor or not is_all_native(operands)):
        return result
    return _stored(result, requested, is_all_native(operands))


def _stored(result: Any, requested: Format | None, native: bool) -> Any:
    """The result in the format asked for; torch's, where every operand is torch's and it has the layout."""
    if isinstance(result, SparseTensor):
        result = result if requested is None else result.to(requested)
        return result.to_torch() if native and has_torch_layout(result.format) else result
    order = list(requested.mode_order) if requested is not None else list(range(result.ndim))
    return result.permute(order).contiguous().permute([order.index(d) for d in range(result.ndim)])


def _run_into(plan: Plan, ready: Sequence[Any], out: Any) -> Any:
    """Write the result into ``out``, which is checked first."""
    shares = plan.problem.result.shares
    if plan.problem.requested is not None:
        raise UnsupportedError(
            f"out and format={plan.problem.requested.name} together: the result is converted after the kernel, so leave one out"
        )
    _check_out(out, plan.problem.shape, SparseTensor if shares is not None else Tensor)
    result = plan.run(*ready)
    if isinstance(out, SparseTensor):
        if out.pattern is not result.pattern:
            raise SizeError("out must share the pattern that the result keeps: make it with A.with_values(...)")
        out.values.copy_(result.values)
    else:
        out.copy_(result)
    return out


def _check_out(out: Any, shape: Sequence[int], kind: type) -> None:
    wanted = "a SparseTensor" if kind is SparseTensor else "a dense tensor"
    if not isinstance(out, kind) or (isinstance(out, Tensor) and out.layout is not STRIDED):
        raise UnsupportedError(f"out must be {wanted} for this expression, not {type(out).__name__}")
    found: Any = out
    if tuple(found.shape) != tuple(shape):
        raise SizeError(f"out has shape {tuple(found.shape)}, but the result has {tuple(shape)}")
    if not found.dtype.is_floating_point:
        raise UnsupportedError(f"out has dtype {found.dtype}, but the result is floating-point: it would be cut off")


def _dense(expr: str, operands: Sequence[Any], format: Format | str | None, out: Any) -> Any:
    """All-dense expressions are torch's, gradient included."""
    result: Any = torch.einsum(expr, *(o.tensor if isinstance(o, Deferred) else o for o in operands))
    wanted = wanted_format(format, result.ndim)
    if wanted is not None:
        result = _stored(result, wanted, native=True) if wanted.is_dense else from_torch(result, wanted)
    if out is None:
        return result
    _check_out(out, result.shape, Tensor)
    return out.copy_(result)


def explain(expr: Any, *operands: Any, format: Format | str | None = None) -> Explanation:
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
    expr, operands = call_form(expr, operands)
    return explain_problem(
        expr, [Format(o) if isinstance(o, str) else o if isinstance(o, Format) else undeferred(admit(o)) for o in operands], format
    )


def load(f: Any, *args: Any, **kwargs: Any) -> Any:
    """Read a sparse tensor from .mtx, .tns, .smtx (each also .gz) or .npz; any other file is torch.load's.

    Args:
        f: a path, or whatever torch.load takes.
        args, kwargs: ``format`` and ``dtype`` for our files; torch.load's arguments for others.
    """
    if isinstance(f, str | PathLike) and suffix_of(f) is not None:
        return read(f, *args, **kwargs)
    return torch.load(f, *args, **kwargs)
