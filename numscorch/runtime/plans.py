"""Plans: a compiled kernel, and the function that calls it, for an expression and operands with certain signatures.

A warm call takes one dictionary lookup and one call of the plan. On a cache miss, schedules are cached by rounded sizes, and
kernels are cached on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from ..codegen.assembly import stages_of
from ..codegen.closing import closing_of
from ..codegen.kernel import BUILDING, Kernel, build, build_plain
from ..codegen.source import Source, generate
from ..errors import ScheduleError, UnsupportedError
from ..frontend.copy_statements import copy_problem
from ..frontend.datatypes import LISTED, STORED
from ..frontend.fused_problem import FusedRequest, fused_problem
from ..frontend.problem import Problem, check_loops, make_problem
from ..frontend.relayout import moving, strides_with_last, with_last
from ..frontend.requests import Operand, Request, row_major, scheduled, sizes_of, with_sizes
from ..ir import index as ix
from ..ir.assembled import bound_of
from ..ir.format import Format, dense
from ..ir.symbolic import Decisions, computing, evaluated, text_of
from ..machine import guards
from ..machine.target import host
from ..schedule import Step, schedule
from ..schedule.parallel import pays
from ..tensors.modes import made_outside
from ..tensors.sparse_tensor import SparseTensor
from .assembling_binder import AssemblingBinder
from .binder import BINDS, Bind, Binder
from .pieces import cut, in_panels, in_slabs, operand_to_cut, panels_of, slabs_of
from .tuned import chosen, version_of_choices

MOST_PLANS = 4096
P = TypeVar("P")

SHORTCUTS: dict[Hashable, Any] = {}  # by expression or request: the plans of recent operands (programs.fitting)


@dataclass(frozen=True, slots=True)
class Plan:
    """The problem of a request, the steps of its schedule, its kernel, the result's shape, and a function from operands to the result.

    ``run(*operands, into=None)`` writes the result to ``into`` if possible; the result then holds this very tensor. ``into`` is contiguous,
    has the shape and data type of the result, which is dense, and shares no memory with operands.

    Plans for other sizes share ``problem``. Its sizes have the values of the first plan, so functions that run do not read these values.
    """

    problem: Problem
    steps: tuple[Step, ...]
    kernel: Kernel
    shape: tuple[int, ...]
    run: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class PlanKind:
    """The properties that plans share if the compiler decides alike for their sizes; ``bind`` maps sizes to the function of a plan."""

    problem: Problem
    steps: tuple[Step, ...]
    kernel: Kernel
    bind: Bind

    def plan(self, sizes: Sequence[int]) -> Plan:
        """The plan for operands of these sizes."""
        return Plan(self.problem, self.steps, self.kernel, evaluated(self.problem.shape, sizes), self.bind(sizes))


@dataclass(slots=True)
class Tables:
    """Plans and kernels.

    Attributes:
        build: builds a kernel.
        plans: plans, and chains of programs, by signatures.
        kernels: kernels by the names of their sources.
        on_kind: is called with each new kind, and returns the kind to keep.
        kinds: kinds of plans, first by the request and properties that do not depend on sizes, then by decisions about sizes.
    """

    build: Callable[[Source], Kernel]
    plans: dict[Hashable, Any] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    on_kind: Callable[[Request, Sequence[Operand], PlanKind], PlanKind] = lambda request, operands, kind: kind
    kinds: dict[Hashable, Decisions] = field(default_factory=dict)


PROCESS = Tables(build)  # plans and kernels of calls outside of :func:`apart`
_context_tables: ContextVar[Tables | None] = ContextVar("tables of a context that has its own", default=None)


def _tables() -> Tables:
    return _context_tables.get() or PROCESS


def known_plan(request: Hashable, format: Format | str | None, signatures: Sequence[Hashable]) -> Any:
    """The cached plan or chain of a request or program for operands with these signatures; None if there is none."""
    return (_context_tables.get() or PROCESS).plans.get((request, format, *signatures))


def signatures_of(operands: Sequence[Any]) -> list[Hashable]:
    """Signatures of the operands, by which plans are cached.

    Operands other than SparseTensors and strided tensors are ``None``, which matches no plan. If operands share a pattern, the
    last element tells which ones.

    >>> signatures_of([torch.ones(2, 3)])
    [torch.float32, torch.Size([2, 3])]
    """
    signatures: list[Hashable] = []
    patterns: list[Any] = []
    for operand in operands:
        if type(operand) is SparseTensor:
            pattern = operand.pattern
            signatures += (pattern.signature, operand._values.dtype)
            patterns.append(pattern)
        elif not isinstance(operand, torch.Tensor):
            signatures.append(None)
        elif operand.is_contiguous() and operand.is_cpu:
            signatures += (operand.dtype, operand.shape)
        else:
            signatures += (operand.dtype, operand.shape, operand.stride(), operand.device)
    if len(patterns) > 1 and len(set(map(id, patterns))) < len(patterns):
        signatures.append(tuple(map(list(map(id, patterns)).index, map(id, patterns))))
    return signatures


def launch(request: Request, operands: Sequence[Any], format: Format | str | None) -> Any:
    """Run the kernel for SparseTensors and strided tensors, without gradients and without converting the result.

    It runs outside of transforms of torch.func, in which a new tensor may be a wrapper without memory.
    """
    signatures = signatures_of(operands)
    plan = known_plan(request, format, signatures)
    return made_outside(lambda: (plan or find_plan(request, format, operands, signatures)).run(*operands))


def find_plan(
    request: Request,
    format: Format | str | None,
    operands: Sequence[Any],
    signatures: Sequence[Hashable],
    make: Callable[[Request, Sequence[Any], Format | str | None], Plan] | None = None,
) -> Plan:
    """The plan for these SparseTensors and strided tensors, created at the first call, by ``make_plan`` unless ``make`` is given."""
    with BUILDING:
        key = (request, format, *signatures)
        return _tables().plans.get(key) or remember(key, (make or make_plan)(request, operands, format))


def remember(key: Hashable, plan: P) -> P:
    """Cache a plan or a chain of plans; beyond ``MOST_PLANS``, the oldest is dropped."""
    with BUILDING:
        return keep(_tables().plans, key, plan, MOST_PLANS)


def keep(table: dict[Any, P], key: Hashable, value: P, most: int) -> P:
    """Add a value to a table and return it; beyond ``most`` values, the oldest ones are dropped."""
    if len(table) >= most:
        for oldest in list(table)[: len(table) - most + 1]:
            table.pop(oldest, None)  # another thread may have dropped it
    table[key] = value
    return value


def make_plan(request: Request, operands: Sequence[Any], format: Format | str | None) -> Plan:
    """Make the plan of a request; if the sizes lead to the same decisions as in an earlier plan, bind the kernel of that plan to them."""
    kind_key, sizes = _kind_and_sizes(operands)
    decisions = _decisions((request, format, version_of_choices(), *kind_key))
    kind: PlanKind | None = decisions.find(sizes)
    if kind is None:
        described = describe_all(operands)
        with guards.paused():
            kind = decisions.of(sizes, lambda symbols: _kind_of(request, with_sizes(described, symbols), format))
    return kind.plan(sizes)


def _decisions(key: Hashable) -> Decisions:
    kinds = _tables().kinds
    decisions = kinds.get(key)
    return keep(kinds, key, Decisions(), MOST_PLANS) if decisions is None else decisions


def _kind_and_sizes(operands: Sequence[Any]) -> tuple[list[Hashable], tuple[int, ...]]:
    """The properties of operands that plans depend on besides sizes, and the sizes, in the order of ``frontend.requests.sizes_of``."""
    kinds: list[Hashable] = []
    patterns: list[int] = []
    sizes: tuple[int, ...] = ()
    for operand in operands:
        if isinstance(operand, SparseTensor):
            pattern = operand.pattern
            patterns.append(id(pattern))
            kinds += (pattern.kind, operand._values.dtype)
            sizes += pattern.shape
        elif operand.is_contiguous() and operand.is_cpu:
            kinds += (operand.dtype, operand.ndim)
            sizes += operand.shape
        else:
            kinds += (operand.dtype, operand.ndim, operand.device)
            sizes += (*operand.shape, *operand.stride())
    kinds += map(patterns.index, patterns)  # the operands that share a pattern
    return kinds, sizes


def _kind_of(request: Request, described: Sequence[Operand], format: Format | str | None, is_part: bool = False) -> PlanKind:
    """Schedule, generate and compile a request. The ledger lists no copies of a part of a request."""
    request, problem, steps, source = compile_tuned(request, described, format)
    kernel = kernel_for(source)
    if (at := operand_to_cut(request, problem, described)) is not None:
        bind = _in_parts(request, at)
    elif problem.slabs is not None:
        slab = problem.slabs.of(described)
        slab_problem, slab_steps, _ = compile_source(request, slab, format)
        bind = in_slabs(problem.slabs, problem, _bind(request, slab_problem, slab_steps[-1].stmt, kernel, slab, is_part=True))
    elif problem.panels is not None:
        panels, packed = problem.panels, problem.panels.of(described)
        packed_problem, packed_steps, _ = compile_source(panels.request, packed, "dense")
        product = _bind(panels.request, packed_problem, packed_steps[-1].stmt, kernel, packed, is_part=True)
        bind = in_panels(problem, panels, request.subscripts, described, product, _copy_functions)
    else:
        bind = _bind(request, problem, steps[-1].stmt, kernel, described, is_part)
    return _tables().on_kind(request, described, PlanKind(problem, steps, kernel, bind))


def _bind(request: Request, problem: Problem, stmt: ix.Stmt, kernel: Kernel, described: Sequence[Operand], is_part: bool) -> Bind:
    """Create the function from sizes to ``run(operand0, operand1, ..., into=None)``, which calls the kernel and returns the result.

    Several workers run the kernel if there is enough work, or if the schedule requests them.
    """
    wanted = request.options.parallel
    parallel = bool(wanted) or (wanted is None and pays(stmt, problem.facts))
    if problem.result.is_assembled:
        before: dict[str, Kernel] = {stage: kernel_for(generate(stmt, host(), stage)) for stage in stages_of(stmt)[:-1]}
        if parallel and ("once" in before or bound_of(stmt) is not None):
            before["closed"] = kernel_for(closing_of(problem.result, host()))
        binder: Binder = AssemblingBinder(problem, stmt, kernel, described, parallel, before)
    else:
        binder = Binder(problem, stmt, kernel, described, parallel, is_part)
    binder.scope |= {f"{BINDS}L{at}": copy for at, copy in _copies(problem, described).items()}
    return binder.function()


def compile_tuned(
    request: Request, described: Sequence[Operand], format: Format | str | None
) -> tuple[Request, Problem, tuple[Step, ...], Source]:
    """Compile a request up to its source, with the schedule that ``autotune`` chose for such operands if it is still possible."""
    text = chosen(str(request), described, format) if request.is_product else None
    if text is not None:
        with suppress(ScheduleError):  # the schedule was chosen for operands of similar size, maybe by hand
            tuned_request = scheduled(request, text)
            return tuned_request, *compile_source(tuned_request, described, format)
    return request, *compile_source(request, described, format)


def forget(request: Request) -> None:
    """Drop the plans of a request, so that the next call makes a new plan."""
    with BUILDING:
        plans = _tables().plans
        for key in [key for key, shortcut in SHORTCUTS.items() if shortcut.request is request]:
            del SHORTCUTS[key]
        for table in (plans, _tables().kinds):
            for key in [key for key in table if isinstance(key, tuple) and key[0] is request]:
                del table[key]


def _in_parts(request: Request, at: int) -> Bind:
    """A function that cuts the long rows of an operand and launches the plan for the cut operand; it is the same for all sizes."""

    def run(*operands: Any, into: Any = None) -> Any:
        cut_rows = cut(operands[at].pattern)
        pieces = [SparseTensor.trusted(cut_rows.pattern, o._values) if n == at else o for n, o in enumerate(operands)]
        return cut_rows.joined(launch(request, pieces, "dense"))

    return lambda sizes: run


def _copies(problem: Problem, operands: Sequence[Operand]) -> dict[int, Bind]:
    """For each dense operand that is copied to the kernel's layout, by its number: a function from sizes to the copying function.

    The number after the last operand stands for the copy of the result to its own layout.
    """
    layout = problem.layout
    if layout is None:
        return {}
    copies = {at: _copy_functions(moving(len(operands[at].shape), last), operands[at]) for at, last in layout.operands.items()}
    if layout.result is not None:
        shape = with_last(problem.shape, layout.result)
        operand = Operand(dense(len(shape)), shape, problem.result.dtype, strides=strides_with_last(shape, len(shape) - 1))
        request = moving(len(shape), layout.result, back=True)
        copies[len(operands)] = _copy_functions(request, operand)
    return copies


def _copy_functions(request: Request, operand: Operand) -> Bind:
    """A function from a problem's sizes, from which the operand's sizes are computed, to the function that copies it to a tensor."""
    key, given = (request, operand.dtype, operand.is_row_major), sizes_of([operand])
    kind = _decisions(key).of(given, lambda symbols: _kind_of(request, with_sizes([operand], symbols), None, is_part=True))
    own_sizes = computing(text_of(given))
    return lambda sizes: kind.bind(own_sizes(sizes))


@contextmanager
def apart(tables: Tables) -> Iterator[Tables]:
    """Use these tables of plans and kernels within the context; other threads and tasks use those of the process."""
    token = _context_tables.set(tables)
    try:
        yield tables
    finally:
        _context_tables.reset(token)


tables_apart = _context_tables.get  # the tables of the current context, or None; an alias, since a wrapper would cost another call


def uncompiled() -> AbstractContextManager[Tables]:
    """Run kernels as plain Python that checks every access within the context, and drop the plans made there."""
    return apart(Tables(build_plain))


def compile_source(request: Request, operands: Sequence[Operand], format: Format | str | None) -> tuple[Problem, tuple[Step, ...], Source]:
    """Compile up to the source, without values of operands and without writing files."""
    if isinstance(request, FusedRequest):
        problem = fused_problem(request, operands, host())
    elif request.form.copies and isinstance(format, Format):
        problem = copy_problem(operands[0], format, host(), request.form.prunes)
    else:
        problem = make_problem(request, operands, host(), format)
    check_loops(problem.stmt.rhs, request.options, problem.stmt)
    if (panels := panels_of(problem, request, operands, host())) is not None:
        _, steps, source = compile_source(panels.request, panels.of(operands), "dense")
        if any(loop.tag == ix.Specialize("tiles") for loop in ix.loops_of(steps[-1].stmt)):
            return replace(problem, panels=panels, layout=None), steps, source
    if (slabs := slabs_of(problem, request, operands, host())) is not None:
        slab, steps, source = compile_source(request, slabs.of(operands), format)
        if slab.layout == problem.layout:
            return replace(problem, slabs=slabs), steps, source
    steps = (*problem.steps, *schedule(problem.stmt, problem.facts, host(), request.options, problem.members, problem.outer))
    return problem, steps, generate(steps[-1].stmt, host())


def kernel_for(source: Source) -> Kernel:
    """The kernel of a source, built once per process."""
    with BUILDING:
        tables = _tables()
        if source.name not in tables.kernels:
            tables.kernels[source.name] = tables.build(source)
        return tables.kernels[source.name]


def describe_all(operands: Sequence[Any]) -> list[Operand]:
    """Describe operands for the compiler, and which of them share a pattern."""
    described = list(map(describe, operands))
    first: dict[int, int] = {}
    for at, operand in enumerate(operands):
        if isinstance(operand, SparseTensor) and (owner := first.setdefault(id(operand.pattern), at)) != at:
            described[at] = replace(described[at], beside=owner)
    return described


def describe(operand: Any) -> Operand:
    """Describe an operand for the compiler.

    Raises:
        UnsupportedError: the operand is not on the CPU, or its data type is not compiled.
    """
    if operand.device.type != "cpu":
        raise UnsupportedError(f"an operand is on {operand.device}: numscorch runs on the CPU, so pass operand.cpu()")
    stored, shape = STORED.get(operand.dtype), tuple(operand.shape)
    if stored is None:
        raise UnsupportedError(f"data type {operand.dtype} is not compiled, only {LISTED}: convert with .to(torch.float32)")
    if not isinstance(operand, SparseTensor):
        strides = row_major(shape) if operand.is_contiguous() else tuple(operand.stride())
        return Operand(dense(len(shape)), shape, stored.computed, strides=strides)
    pattern = operand.pattern
    facts = pattern.counts, pattern.spreads, pattern.has_long_rows, *pattern.samples
    return Operand(pattern.format, shape, stored.computed, pattern.index_dtype, (), *facts)
