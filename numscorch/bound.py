"""plan: an einsum bound to operands of certain formats, data types and shapes, as by ``opt_einsum.contract_expression``."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .api import einsum
from .compute.chains import Chain
from .compute.dispatch import current_transform, pairs_for
from .compute.fitting import ABSENT, Fitting, Fittings, is_fit
from .compute.native import wrap
from .compute.operands import STRIDED, any_autocast, call_form, check_is_tensor, identify, is_all_native, undeferred
from .compute.reductions import check_reduction, prepared
from .errors import ExpressionError, FormatError, NumscorchError, OperandError, SizeError
from .frontend.datatypes import COMPILED
from .frontend.operand import Operand
from .frontend.parser import parse_einsum
from .frontend.problem import extents_of, wanted_format
from .frontend.promotion import target_of
from .frontend.statements import NAMES, Request, einsum_request
from .ir.format import COO, Format, as_format, dense
from .programs.tracing import TRACERS, holds_traced
from .runtime.plans import Plan, find_plan, is_apart, known_plan
from .tensors.parameter import unwrapped
from .tensors.sparse_tensor import SparseTensor, beside_programs


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """What a plan knows of an operand or of its result.

    >>> OperandSpec.of(torch.ones(2, 3))
    2x3 (dense, float32)
    """

    shape: tuple[int, ...]
    format: Format
    dtype: torch.dtype
    device: str = "cpu"
    is_dense: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_dense", self.format.is_dense)  # found here, where torch's compiler does not trace

    @classmethod
    def of(cls, operand: Any) -> OperandSpec:
        """What is known of a tensor.

        Raises:
            OperandError: it is no tensor.
        """
        operand = unwrapped(operand)
        check_is_tensor(operand)
        if isinstance(operand, Tensor) and (operand.layout is STRIDED or operand.device.type != "cpu"):
            return cls(tuple(operand.shape), dense(operand.ndim), operand.dtype, operand.device.type)
        if isinstance(operand, Tensor) and operand.layout is torch.sparse_coo and not (operand.is_coalesced() or operand.dense_dim()):
            return cls(tuple(operand.shape), COO(operand.ndim), operand.dtype)  # without a copy
        pattern = operand.pattern if isinstance(operand, SparseTensor) else wrap(operand).pattern
        format = dense(len(pattern.shape)) if pattern.is_dense else pattern.format
        return cls(pattern.shape, format, operand.dtype, operand.device.type)

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        where = "" if self.device == "cpu" else f", on {self.device}"
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} ({self.format.name}, {dtype}{where})"


class BoundEinsum:
    """An einsum for operands of certain formats, data types and shapes, made by :func:`plan`.

    A call checks that the operands fit, and runs the kernel. Operands that require grad, and calls within ``vmap``, ``autocast`` or a
    compiled program, are computed as by :func:`einsum`, after the same checks. Another pattern of the same format and shape fits.

    ``expr``, ``format``, ``reduce``, ``mask`` and ``schedule`` are the arguments of :func:`plan`; ``operands`` describe the operands,
    and ``result`` the result, None until the first call where a chain of kernels computes it.

    Plans can be copied and pickled; a loaded plan binds its kernel at the first call. Threads may share a plan.
    """

    __slots__ = ("__weakref__", "_fittings", "expr", "format", "mask", "operands", "reduce", "result", "schedule")

    def __init__(
        self,
        expr: str,
        operands: tuple[OperandSpec, ...],
        format: Format | str | None = None,
        reduce: str = "sum",
        mask: SparseTensor | Tensor | None = None,
        schedule: str | None = None,
        result: OperandSpec | None = None,
    ):
        self.expr, self.operands, self.result = expr, operands, result
        self.format, self.reduce, self.mask, self.schedule = format, reduce, mask, schedule
        self._fittings = Fittings()

    def __call__(self, *operands: Any, out: Any = None) -> Any:
        """The result for these operands.

        Args:
            operands: in the order of the plan.
            out: a tensor that receives the result, as for :func:`einsum`.

        Raises:
            SizeError: an operand, or out, has another shape.
            FormatError: an operand has another format.
            OperandError: an operand has another data type, is on another device, or is no tensor.
            ExpressionError: there are more or fewer operands.
        """
        if torch.compiler.is_dynamo_compiling():
            return self._traced(*operands, out=out)
        return self._checked(*operands, out=out)

    def _traced(self, *given: Any, out: Any = None) -> Any:
        """The result in a program that torch compiles, as of einsum."""
        operands = tuple([operand for operand in given if operand is not ABSENT])
        if not _is_traced_alike(self.operands, operands):
            from .tensors.aside import aside  # late: it imports torch's compiler

            aside(self._check, operands)
        return self._einsum(operands, out)

    def _checked(self, *given: Any, out: Any = None) -> Any:
        """The result of a call that no fitting takes, or another one than the last."""
        operands = tuple([operand for operand in given if operand is not ABSENT])
        if TRACERS and holds_traced(operands):
            return self._einsum(operands, out)
        self._check(operands)
        if out is None and (fitting := self._fittings.look_up(operands)) is not None:
            self._take(fitting)
            return fitting.call(self, *operands)
        result = self._einsum(operands, out)
        if self.result is None and current_transform() is None:
            self.result = OperandSpec.of(result)
        self._learn(operands)
        return result

    def _take(self, fitting: Fitting) -> None:
        """Let the next calls try a fitting first: Python looks ``__call__`` up in the class, so that each plan has a class."""
        if type(self) is BoundEinsum:
            self.__class__ = type("BoundEinsum", (BoundEinsum,), {"__slots__": (), "__module__": __name__, "__doc__": self.__doc__})
        type(self).__call__ = update_wrapper(fitting.call, BoundEinsum.__call__)  # type: ignore[method-assign]

    def _einsum(self, operands: Sequence[Any], out: Any) -> Any:
        options: dict[str, Any] = {"format": self.format, "reduce": self.reduce, "mask": self.mask, "schedule": self.schedule}
        return einsum(self.expr, *operands, out=out, **options)

    def _learn(self, operands: Sequence[Any]) -> None:
        """Keep the plan that einsum used for such operands, if it is one kernel, or a chain of them, whose result nothing converts."""
        if not self._is_plain(operands):
            return
        request, operands_read = self._request(operands)
        ready, signatures = identify(operands_read)
        plan = known_plan(request, self.format, signatures)
        if type(plan) is not Chain and (type(plan) is not Plan or not _is_final(plan, operands_read)):
            return
        patterns = [operand.pattern for operand in ready if type(operand) is SparseTensor]
        fitting = self._fittings.learnt(operands, ready[len(operands) :], patterns, plan, takes_out=self.reduce == "sum")
        if fitting is not None:
            self._take(fitting)

    def _is_plain(self, operands: Sequence[Any]) -> bool:
        """Whether einsum passes these operands on as they are, in a context that a fitting can tell from others."""
        if current_transform() is not None or forward_ad._current_level >= 0 or is_apart():
            return False
        if any_autocast() and torch.is_autocast_enabled("cpu"):
            return False
        if self.reduce == "mean" or not all(map(is_fit, operands)):
            return False
        return self.reduce == "sum" or not _has_diagonal(self.expr, self.operands)

    def _request(self, operands: Sequence[Any]) -> tuple[Request, Sequence[Any]]:
        """The request that einsum comes to, and what it is computed of: the mask is the last operand."""
        if self.reduce == "sum" and self.mask is None and self.schedule is None:
            return einsum_request(self.expr, tuple([len(spec.shape) for spec in self.operands])), operands
        return prepared(self.expr, operands, self.reduce, self.mask, self.schedule)

    def _check(self, operands: Sequence[Any]) -> None:
        """That the operands are those that the plan was made for, in all but their patterns and values."""
        given = tuple(map(OperandSpec.of, operands))
        if given != self.operands:
            raise _misfit(self, given)

    def __reduce__(self) -> tuple[Any, ...]:
        """Kernels belong to a process."""
        return BoundEinsum, (self.expr, self.operands, self.format, self.reduce, self.mask, self.schedule, self.result)

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundEinsum:
        """A plan like this one, with the same mask."""
        return copy.copy(self)

    def __repr__(self) -> str:
        options = [f"format={name_of(self.format)!r}"] if self.format is not None else []
        options += [f"reduce={self.reduce!r}"] if self.reduce != "sum" else []
        options += [f"mask={OperandSpec.of(self.mask)}"] if self.mask is not None else []
        options += [f"schedule={self.schedule!r}"] if self.schedule is not None else []
        result = "unknown until the first call" if self.result is None else self.result
        return f"<plan {', '.join([self.expr, *options])}:   {'   '.join(_listed(self.operands))} -> {result}>"


def name_of(format: Format | str) -> str:
    """A format's name, or the text that stands for one.

    >>> name_of("dense"), name_of(as_format("CSR"))
    ('dense', 'CSR')
    """
    return format if isinstance(format, str) else format.name


@beside_programs
def plan(
    expr: Any,
    *operands: Any,
    format: Format | str | None = None,
    reduce: str = "sum",
    mask: SparseTensor | Tensor | None = None,
    schedule: str | None = None,
) -> BoundEinsum:
    """Bind an einsum to operands of these formats, data types and shapes, for many calls on small tensors.

    The kernel is compiled now. A call only checks its operands and runs the kernel.
    Contractions that einsum splits into pairs, and operands of several data types, are compiled at the first call.

    Args:
        expr: as for :func:`einsum`.
        operands: examples, of which formats, data types and shapes are taken, but no values and no patterns; they are not kept.
        format, reduce, schedule: as for :func:`einsum`.
        mask: as for :func:`einsum`; the plan keeps it.

    Shape:
        Each call takes operands of the shapes of ``operands``, and returns what :func:`einsum` returns.

    Returns:
        A :class:`BoundEinsum`: call it as ``plan(*operands, out=None)``.

    Raises:
        ExpressionError: the text can't be read, or doesn't fit the operands' ranks.
        SizeError: an index has two sizes.
        OperandError: an operand is no tensor.
        ScheduleError: the schedule can't be followed.
        UnsupportedError: the construct isn't compiled yet.

    Complexity: that of compiling, and O(nnz) for statistics of each new pattern.

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
    numscorch.SizeError: operand B is not what the plan was made for
      plan    A: 2x3 (CSR, float32)   B: 3x2 (dense, float32)
      given   A: 2x3 (CSR, float32)   B: 3x4 (dense, float32)     make another plan, ns.plan('ij,jk->ik', A, B), or call ns.einsum
    """
    text, given = call_form(expr, operands)
    if "[" in text:
        raise ExpressionError(f"a plan takes the notation of einsum, as 'ij,j->i': call ns.evaluate for statements\n  {text}")
    if format is not None and not isinstance(format, str):
        format = as_format(format)
    bound = BoundEinsum(text, tuple(map(OperandSpec.of, given)), format, reduce, mask, schedule)
    check_reduction(reduce, given)
    _compile(bound, given)
    return bound


def _compile(bound: BoundEinsum, operands: Sequence[Any]) -> None:
    """Compile the kernel, if one computes the expression; else check the sizes.

    Raises:
        SizeError: an index has two sizes.
    """
    request, operands_read = bound._request(operands)
    ready: list[Any] = []
    if current_transform() is None:
        with torch.no_grad():
            ready = list(map(undeferred, identify(operands_read)[0]))
    if SparseTensor not in map(type, ready) or target_of(request, ready) is not None or pairs_for(request, ready):
        known = [Operand(spec.format, spec.shape, "float32") for spec in map(OperandSpec.of, operands_read)]
        extents_of(request, known)
        wanted_format(bound.format, len(request.subscripts.result))
        return
    with torch.no_grad():
        compiled = find_plan(request, bound.format, *identify(ready))
    dtype = next(spec for spec, name in COMPILED.items() if name == compiled.problem.result.dtype)
    bound.result = OperandSpec(tuple(compiled.problem.shape), compiled.problem.requested or compiled.problem.format, dtype)
    bound._learn(operands)


def _is_traced_alike(wanted: Sequence[OperandSpec], given: Sequence[Any]) -> bool:
    """Whether operands fit a plan, for torch's compiler, which can't trace all of :meth:`OperandSpec.of`."""
    if len(wanted) != len(given):
        return False
    for spec, operand in zip(wanted, map(unwrapped, given), strict=True):
        if not isinstance(operand, SparseTensor | Tensor) or tuple(operand.shape) != spec.shape or operand.dtype != spec.dtype:
            return False
        if isinstance(operand, SparseTensor) and operand.pattern.format != spec.format:
            return False
        if isinstance(operand, Tensor) and (operand.layout is STRIDED) != spec.is_dense:
            return False
    return True


def _is_final(plan: Plan, operands: Sequence[Any]) -> bool:
    """Whether the kernel's result is einsum's: it is neither converted, nor wanted as a sparse tensor of torch."""
    return plan.problem.requested is None and (plan.problem.result.is_dense or not is_all_native(operands))


def _has_diagonal(expr: str, operands: Sequence[OperandSpec]) -> bool:
    """Whether an operand has an index twice."""
    terms = parse_einsum(expr, tuple([len(operand.shape) for operand in operands])).operands
    return any(len(set(names)) < len(names) for names in terms)


def _listed(operands: Sequence[OperandSpec]) -> list[str]:
    return [f"{name}: {operand}" for name, operand in zip(NAMES, operands, strict=False)]


def _misfit(bound: BoundEinsum, given: tuple[OperandSpec, ...]) -> NumscorchError:
    """The error that shows the operands of a plan and those that were given."""
    wanted = bound.operands
    names = ", ".join(NAMES[: len(wanted)])
    way_out = f"make another plan, ns.plan({bound.expr!r}, {names}), or call ns.einsum"
    kind: type[NumscorchError] = ExpressionError
    if len(given) != len(wanted):
        message = f"the plan takes {len(wanted)} operand{'s' * (len(wanted) != 1)}, not {len(given)}"
    else:
        at = next(at for at, (spec, other) in enumerate(zip(wanted, given, strict=True)) if spec != other)
        message, kind = f"operand {NAMES[at]} is not what the plan was made for", _kind_of(wanted[at], given[at])
        if sorted(map(repr, given)) == sorted(map(repr, wanted)):
            way_out = f"pass the operands in the order {names}"
        elif kind is FormatError:
            how = ".to_dense()" if wanted[at].is_dense else f"ns.from_torch({NAMES[at]}, format)" if given[at].is_dense else ".to(format)"
            way_out = f"convert it with {how}, or {way_out}"
        elif kind is OperandError:
            way_out = f"convert it with {'.cpu()' if given[at].device != wanted[at].device else f'.to({wanted[at].dtype})'}, or {way_out}"
    plan, called = "   ".join(_listed(wanted)), "   ".join(_listed(given))
    return kind(f"{message}\n  plan    {plan}\n  given   {called}     {way_out}")


def _kind_of(wanted: OperandSpec, given: OperandSpec) -> type[NumscorchError]:
    """The class of an error about an operand."""
    if wanted.shape != given.shape:
        return SizeError
    return OperandError if wanted.device != given.device or wanted.format == given.format else FormatError
