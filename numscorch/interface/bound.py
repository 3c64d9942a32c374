"""plan: an einsum bound to operand formats, data types and shapes, like ``opt_einsum.contract_expression``."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any

import torch

from ..errors import ExpressionError, FormatError, NumscorchError, OperandError, SizeError
from ..frontend.datatypes import target_of
from ..frontend.problem import extents_of, wanted_format
from ..frontend.requests import NAMES, Operand
from ..ir.format import COO, Format, as_format, dense
from ..programs.fitting import ABSENT, Fitting, Fittings, is_plain
from ..programs.operands import STRIDED, EinsumCall, call_form, check_is_tensor, identify, is_all_native
from ..programs.pairing import paired
from ..programs.reductions import prepared
from ..programs.steps import Chain
from ..programs.torch_sparse import wrap
from ..programs.tracing import TRACERS, holds_traced
from ..runtime.confirming import watched_plan
from ..runtime.plans import Plan, known_plan
from ..tensors.graph_breaks import graph_break
from ..tensors.methods import METHODS
from ..tensors.modes import in_transform
from ..tensors.parameter import unwrapped
from ..tensors.sparse_tensor import SparseTensor
from .api import einsum


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """The shape, format, data type and device of a plan's operand or result.

    Attributes:
        shape: the size of every dimension.
        format: the storage format; a dense format for strided tensors.
        dtype: the data type.
        device: the type of the device, such as ``"cpu"``.
        is_dense: whether the format is dense.

    >>> OperandSpec.of(torch.ones(2, 3))
    2x3 (dense, float32)
    """

    shape: tuple[int, ...]
    format: Format
    dtype: torch.dtype
    device: str = "cpu"
    is_dense: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_dense", self.format.is_dense)  # computed once, because torch's compiler can't trace it

    @classmethod
    def of(cls, operand: Any) -> OperandSpec:
        """The specification of a tensor.

        Args:
            operand: a SparseTensor, a sparse parameter, or a torch tensor of any layout.

        Returns:
            An :class:`OperandSpec`.

        Raises:
            OperandError: the operand isn't a tensor.
        """
        operand = unwrapped(operand)
        check_is_tensor(operand)
        if isinstance(operand, torch.Tensor) and (operand.layout is STRIDED or operand.device.type != "cpu"):
            return cls(tuple(operand.shape), dense(operand.ndim), operand.dtype, operand.device.type)
        if isinstance(operand, torch.Tensor) and operand.layout is torch.sparse_coo and not (operand.is_coalesced() or operand.dense_dim()):
            return cls(tuple(operand.shape), COO(operand.ndim), operand.dtype)  # avoids the copy of wrap
        pattern = operand.pattern if isinstance(operand, SparseTensor) else wrap(operand).pattern
        format = dense(len(pattern.shape)) if pattern.is_dense else pattern.format
        return cls(pattern.shape, format, operand.dtype, operand.device.type)

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        where = "" if self.device == "cpu" else f", on {self.device}"
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} ({self.format.name}, {dtype}{where})"


class BoundEinsum:
    """An einsum for operands of given formats, data types and shapes, returned by :func:`plan`.

    A call checks its operands and runs the kernel. The operands' patterns may differ from call to call. Operands that require grad, and
    calls within ``vmap``, ``autocast`` or a compiled program, are checked too and then computed by :func:`einsum`.

    Plans can be copied and pickled; an unpickled plan binds its kernel at the first call. Threads may share a plan.

    Args:
        expr: the expression, as for :func:`einsum`.
        operands: the specifications of the operands.
        options: the arguments ``format``, ``reduce``, ``mask`` and ``schedule`` of :func:`plan`, by name.
        result: the specification of the result, if known.

    Attributes:
        expr, format, reduce, mask, schedule: the arguments of :func:`plan`.
        operands: the specifications of the operands.
        result: the specification of the result; None until the first call if several kernels compute the result.

    Raises:
        ExpressionError, FormatError, OperandError, SizeError: raised by calls whose operands don't match the plan.

    >>> import numscorch as ns
    >>> A, x = ns.eye(3, format=ns.CSR), torch.ones(3)
    >>> product = ns.plan("ij,j->i", A, x)
    >>> product.operands, product.result
    ((3x3 (CSR, float32), 3 (dense, float32)), 3 (dense, float32))
    >>> product(A, x)
    tensor([1., 1., 1.])
    """

    __slots__ = ("__weakref__", "_call", "_fittings", "expr", "format", "mask", "operands", "reduce", "result", "schedule")

    def __init__(self, expr: str, operands: tuple[OperandSpec, ...], options: dict[str, Any], result: OperandSpec | None = None):
        self._call = call = EinsumCall(expr, **options)
        self.expr, self.operands, self.result = expr, operands, result
        self.format, self.reduce, self.mask, self.schedule = call.format, call.reduce, call.mask, call.schedule
        self._fittings = Fittings()

    def __call__(self, *operands: Any, out: Any = None) -> Any:
        """Compute the result for these operands.

        Args:
            operands: the operands, in the plan's order.
            out: a tensor that receives the result, as for :func:`einsum`.

        Returns:
            The result, as for :func:`einsum`.

        Raises:
            SizeError: the shape of an operand, or of ``out``, differs from the plan's.
            FormatError: the format of an operand differs.
            OperandError: the data type or the device of an operand differs, or an operand isn't a tensor.
            ExpressionError: the number of operands differs.
        """
        if torch.compiler.is_dynamo_compiling():
            return self._traced(*operands, out=out)
        return self._checked(*operands, out=out)

    def _traced(self, *args: Any, out: Any = None) -> Any:
        """The result within a program that torch compiles, computed by einsum."""
        operands = tuple([operand for operand in args if operand is not ABSENT])
        if len(operands) != len(self.operands) or not all(map(_is_match, self.operands, operands)):
            METHODS["outside"](self._check, "its operands do not match the plan", (operands,), {})
        return self._einsum(operands, out)

    def _checked(self, *args: Any, out: Any = None) -> Any:
        """The result of a call whose operands don't match the most recent fitting."""
        operands = tuple([operand for operand in args if operand is not ABSENT])
        if TRACERS and holds_traced(operands):
            return self._einsum(operands, out)
        self._check(operands)
        if out is None and (fitting := self._fittings.look_up(operands)) is not None:
            self._install(fitting)
            return fitting.call(self, *operands)
        result = self._einsum(operands, out)
        if self.result is None and not in_transform():
            self.result = OperandSpec.of(result)
        self._learn(operands)
        return result

    def _install(self, fitting: Fitting) -> None:
        """Make the next calls try a fitting first. Python looks up ``__call__`` in the class, so each plan gets its own class."""
        if type(self) is BoundEinsum:
            self.__class__ = type("BoundEinsum", (BoundEinsum,), {"__slots__": (), "__module__": __name__, "__doc__": self.__doc__})
        type(self).__call__ = update_wrapper(fitting.call, BoundEinsum.__call__)  # type: ignore[method-assign]

    def _einsum(self, operands: Sequence[Any], out: Any) -> Any:
        return einsum(self.expr, *operands, out=out, **self._call.options())

    def _learn(self, operands: Sequence[Any]) -> None:
        """Remember the plan that einsum used for these operands: a chain of kernels, or one kernel whose result needs no conversion."""
        if self.reduce == "mean" or not is_plain(operands):
            return
        request, operands_read, _ = prepared(self._call._replace(operands=tuple(operands)))
        ready, signatures = identify(operands_read)
        plan = known_plan(request, self.format, signatures)
        may_be_sparse = not is_all_native(operands_read)  # if not, einsum converts sparse results
        is_final = type(plan) is Plan and plan.problem.requested is None and (may_be_sparse or plan.problem.result.is_dense)
        if not is_final and type(plan) is not Chain:
            return
        self._install(self._fittings.learnt(operands, ready, plan, takes_out=self.reduce == "sum"))

    def _check(self, operands: Sequence[Any]) -> None:
        specs = tuple(map(OperandSpec.of, operands))
        if specs != self.operands:
            raise _mismatch(self, specs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments without the kernel, which is valid only in this process."""
        return BoundEinsum, (self.expr, self.operands, self._call.options(), self.result)

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundEinsum:
        """A copy that shares the mask."""
        return copy.copy(self)

    def __repr__(self) -> str:
        given = self._call.options() | ({} if self.mask is None else {"mask": OperandSpec.of(self.mask)})
        options = [f"{name}={getattr(value, 'name', value)!r}" for name, value in given.items()]
        result = "unknown until the first call" if self.result is None else self.result
        return f"<plan {', '.join([self.expr, *options])}:   {_listed(self.operands)} -> {result}>"


@graph_break
def plan(
    expr: Any,
    *operands: Any,
    format: Format | str | None = None,
    reduce: str = "sum",
    mask: SparseTensor | torch.Tensor | None = None,
    schedule: str | None = None,
) -> BoundEinsum:
    """Bind an einsum to the formats, data types and shapes of its operands, for many calls on small tensors.

    The kernel is compiled immediately, so calls only check their operands and run the kernel. Contractions that einsum splits into
    pairs, and operands of different data types, are compiled at the first call.

    Args:
        expr: the expression, as for :func:`einsum`.
        operands: example operands. The plan uses their formats, data types and shapes, not their values or patterns, and doesn't keep them.
        format, reduce, schedule: as for :func:`einsum`.
        mask: as for :func:`einsum`; the plan keeps it.

    Returns:
        A :class:`BoundEinsum`: call it as ``plan(*operands, out=None)`` with operands of the same formats, data types and shapes. It
        returns the same result as :func:`einsum`.

    Raises:
        ExpressionError: the text can't be parsed, doesn't fit the operands' ranks, or names an unknown reduction.
        SizeError: an index has two sizes.
        FormatError: ``format`` is not a format of the result's number of dimensions.
        OperandError: an operand isn't a tensor.
        ScheduleError: the schedule can't be followed.
        UnsupportedError: the construct isn't compiled yet, or the mask is strided.

    Complexity:
        The time of compilation, and O(nnz) for the statistics of each new pattern.

    >>> import torch, numscorch as ns
    >>> A = ns.from_coo([[0, 1, 1], [2, 0, 2]], [1.0, 2.0, 3.0], (2, 3), format=ns.CSR)
    >>> product = ns.plan("ij,jk->ik", A, torch.ones(3, 2))
    >>> product
    <plan ij,jk->ik:   A: 2x3 (CSR, float32)   B: 3x2 (dense, float32) -> 2x2 (dense, float32)>
    >>> product(2 * A, torch.ones(3, 2))
    tensor([[ 2.,  2.],
            [10., 10.]])
    >>> product(A, torch.ones(3, 4))
    Traceback (most recent call last):
    ...
    numscorch.SizeError: operand B does not match the plan
      plan    A: 2x3 (CSR, float32)   B: 3x2 (dense, float32)
      given   A: 2x3 (CSR, float32)   B: 3x4 (dense, float32)     make another plan, ns.plan('ij,jk->ik', A, B), or call ns.einsum
    """
    text, operands = call_form(expr, operands)
    if "[" in text:
        raise ExpressionError(f"a plan takes the notation of einsum, such as 'ij,j->i': call ns.evaluate for statements\n  {text}")
    if format is not None and not isinstance(format, str):
        format = as_format(format)
    call = EinsumCall(text, operands, format, None, reduce, mask, schedule)
    bound = BoundEinsum(text, tuple(map(OperandSpec.of, operands)), call.options())
    _compile(bound, call)
    return bound


def _compile(bound: BoundEinsum, call: EinsumCall) -> None:
    """Compile the kernel if a single one computes the expression; else check the sizes only.

    Raises:
        SizeError: an index has two sizes.
    """
    request, operands_read, _ = prepared(call)
    with torch.no_grad():
        ready, signatures = identify(() if in_transform() else operands_read)
    if SparseTensor not in map(type, ready) or target_of(request, ready) is not None or len(paired(request, ready)) > 1:
        extents_of(request, [Operand(spec.format, spec.shape, "float32") for spec in map(OperandSpec.of, operands_read)])
        wanted_format(bound.format, len(request.subscripts.result))
        return
    with torch.no_grad():
        compiled = watched_plan(request, bound.format, ready, signatures)
    problem = compiled.problem
    bound.result = OperandSpec(compiled.shape, problem.requested or problem.format, getattr(torch, problem.result.dtype))
    bound._learn(call.operands)


def _is_match(spec: OperandSpec, operand: Any) -> bool:
    """Whether an operand matches a specification, in code that torch's compiler can trace (unlike :meth:`OperandSpec.of`)."""
    operand = unwrapped(operand)
    if not isinstance(operand, SparseTensor | torch.Tensor) or tuple(operand.shape) != spec.shape or operand.dtype != spec.dtype:
        return False
    if isinstance(operand, SparseTensor):
        return operand.pattern.format == spec.format
    return (operand.layout is STRIDED) == spec.is_dense


def _listed(operands: Sequence[OperandSpec]) -> str:
    return "   ".join(f"{name}: {operand}" for name, operand in zip(NAMES, operands, strict=False))


def _mismatch(bound: BoundEinsum, actual: tuple[OperandSpec, ...]) -> NumscorchError:
    """The error that shows a plan's operands and the operands of a call."""
    expected = bound.operands
    names = ", ".join(NAMES[: len(expected)])
    suggestion = f"make another plan, ns.plan({bound.expr!r}, {names}), or call ns.einsum"
    kind: type[NumscorchError] = ExpressionError
    if len(actual) != len(expected):
        message = f"the plan takes {len(expected)} operand{'s' * (len(expected) != 1)}, not {len(actual)}"
    else:
        at = next(at for at, (spec, other) in enumerate(zip(expected, actual, strict=True)) if spec != other)
        message, kind = f"operand {NAMES[at]} does not match the plan", _error_class(expected[at], actual[at])
        if sorted(map(repr, actual)) == sorted(map(repr, expected)):
            suggestion = f"pass the operands in the order {names}"
        elif kind is FormatError:
            sparse = f"ns.from_torch({NAMES[at]}, format)" if actual[at].is_dense else ".to(format)"
            suggestion = f"convert it with {'.to_dense()' if expected[at].is_dense else sparse}, or {suggestion}"
        elif kind is OperandError:
            suggestion = (
                f"convert it with {'.cpu()' if actual[at].device != expected[at].device else f'.to({expected[at].dtype})'}, or {suggestion}"
            )
    return kind(f"{message}\n  plan    {_listed(expected)}\n  given   {_listed(actual)}     {suggestion}")


def _error_class(expected: OperandSpec, actual: OperandSpec) -> type[NumscorchError]:
    if expected.shape != actual.shape:
        return SizeError
    return OperandError if expected.device != actual.device or expected.format == actual.format else FormatError
