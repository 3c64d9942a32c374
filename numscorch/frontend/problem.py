"""Turn a request and its operands into an assignment: name tensors, reconcile sizes, and choose the result's format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ..errors import FormatError, ScheduleError, SizeError, UnsupportedError
from ..ir.derived_formats import can_be_assembled
from ..ir.format import CSF, Format, as_format, dense
from ..ir.functions import REDUCTIONS, is_zero, simplified, start_of
from ..ir.index import Assignment, Expr, IndexVar, TensorVar, accesses_in, is_product, variables_in
from ..ir.level import INT32_MAX
from ..ir.levels import Compressed, Dense
from ..ir.parts import Part
from ..schedule import Step, tuning
from ..schedule.cost import estimated_fill
from ..schedule.facts import Facts, Options, Target
from ..schedule.format_inference import infer_format, with_format
from ..schedule.loop_order import cheapest, is_contiguous, unit_stride
from .accesses import Accesses
from .datatypes import check_operators, computed_dtype, unread_in
from .parser import Subscripts
from .relayout import Panels, Relayout, Slabs, layouts, strides_with_last
from .requests import MOST_OPERANDS, NAMES, Operand, Request, access_of
from .splitting import SparseTerm, Splitting, split

Choice = tuple[Assignment, str, Format | None]  # a statement with its result's format, the reason, and the format of a later conversion
Clash = tuple[str, tuple[int, int], tuple[int, int]]  # an index, and (position, size of the index) of two operands


@dataclass(frozen=True, slots=True)
class Problem:
    """A statement with its extents, the facts for scheduling, and the formats of its operands and result.

    Attributes:
        stmt: the assignment; the result has its format.
        facts: facts for scheduling.
        extents: exact extent of each variable.
        inference: why the result has its format.
        shape: the result's shape.
        format: the result's format.
        stored: format in which each sparse operand is read, keyed by its name, before its dimensions are split.
        strides: strides of dense tensors by name, after the copies of ``layout``.
        permutation: maps the dimensions of a kept pattern to the dimensions of the result.
        requested: format to which the result is converted afterwards, if any.
        layout: layout to which dense tensors are copied, if any.
        rows: allocated length of the first non-unit dimension of a dense result, if padded.
        members: statements of a fused kernel that run before ``stmt``.
        outer: variables of the loops that ``members`` and ``stmt`` share.
        slabs: slabs of an index, if the kernel computes one slab per call.
        panels: panels of an index, if dense tensors are copied panel by panel.
        steps: decisions of the scheduler that precede its passes.
    """

    stmt: Assignment
    facts: Facts
    extents: Mapping[IndexVar, int]
    inference: str
    shape: tuple[int, ...]
    format: Format
    stored: Mapping[str, Format]
    strides: Mapping[str, tuple[int, ...]]
    permutation: tuple[int, ...] = ()
    requested: Format | None = None
    layout: Relayout | None = None
    rows: int | None = None
    members: tuple[Assignment, ...] = ()
    outer: tuple[IndexVar, ...] = ()
    slabs: Slabs | None = None
    panels: Panels | None = None
    steps: tuple[Step, ...] = ()

    @property
    def result(self) -> TensorVar:
        """The result's variable."""
        return self.stmt.lhs.tensor


def make_problem(request: Request | Subscripts, operands: Sequence[Operand], target: Target, format: Format | str | None = None) -> Problem:
    """Name the operands A, B, ..., reconcile sizes, and choose the result's format.

    Raises:
        SizeError: an index has two sizes, and neither is 1.
        UnsupportedError: the data type does not support an operator, or there are too many operands.
    """
    if len(operands) > MOST_OPERANDS:
        raise UnsupportedError(f"{len(operands)} operands are more than the {MOST_OPERANDS} that an expression may have: split it")
    request = Request(request) if isinstance(request, Subscripts) else request
    dtype, unread = computed_dtype(request, operands), unread_in(request, len(operands))
    check_operators(request, dtype)
    operands = [op if at in unread else replace(op, dtype=dtype) for at, op in enumerate(operands)]
    problem = _problem_of(request, operands, target, format, None)
    chosen, why = choose_layout(problem, _in_other_layouts(problem, request, operands, target, format), target)
    return chosen if why is None else replace(chosen, steps=(Step("choose_layout", chosen.stmt, why),))


def choose_layout(stored: Problem, copied: Iterable[tuple[IndexVar, Problem, float]], target: Target) -> tuple[Problem, str | None]:
    """Choose the problem that costs least, and return the reason; the reason is None if no other layout is possible.

    Dense tensors are copied to another layout if the cheapest loops and the copies cost less than the loops as stored.

    Args:
        stored: the problem with all tensors as they are stored.
        copied: for each other layout, the index that it makes contiguous, the problem in it, and the cost of the copies.
        target: the machine.
    """
    best, costs = stored, dict[str, float]()
    for index, problem, copies in copied:
        if not costs:
            loops = cheapest(stored.stmt, stored.facts, target)
            inner, lanes = loops.order[-1], target.lanes(stored.stmt.lhs.tensor.dtype)
            extent = stored.facts.exact[inner]
            slow = extent < tuning.SHORT_SUM * lanes and _sums_slowly(stored.stmt, loops.order, index)
            as_stored = all(unit_stride(access, inner) for access in loops.converted if inner in access.indices)
            if as_stored and not slow and is_contiguous(stored.stmt, inner) and extent >= lanes:
                return stored, f"{inner} is contiguous and fills a register: no dense tensor is copied"
            costs["as stored"] = loops.cost * (tuning.SHORT_SUM if slow else 1)
        cost = cheapest(problem.stmt, problem.facts, target).cost + copies
        if cost < min(costs.values()):
            best = problem
        costs[f"copied with {index} contiguous"] = cost
    return best, "; ".join(f"{layout}: {cost:.3g}" for layout, cost in sorted(costs.items(), key=lambda item: item[1])) or None


def _sums_slowly(stmt: Assignment, order: Sequence[IndexVar], index: IndexVar) -> bool:
    """Whether the sum needs horizontal adds or reads one cache line per term, so that it is faster if the index is contiguous."""
    around = [var for var in order[-2:-1] if var == index]
    return any(var not in stmt.lhs.indices for var in (order[-1], *around))


def _in_other_layouts(
    problem: Problem, request: Request, operands: Sequence[Operand], target: Target, format: Format | str | None
) -> Iterator[tuple[IndexVar, Problem, float]]:
    """Yield the index, the problem and the cost of copies for each layout to which dense operands or a dense result can be copied."""
    for layout, copies in layouts(request, operands, problem.shape, problem.result.dtype):
        if layout.result is not None and not problem.result.is_dense:
            continue
        copied = [
            replace(op, strides=strides_with_last(op.shape, layout.operands[at])) if at in layout.operands else op
            for at, op in enumerate(operands)
        ]
        yield IndexVar(layout.index), _problem_of(request, copied, target, format, layout), copies


def _problem_of(
    request: Request, operands: Sequence[Operand], target: Target, format: Format | str | None, layout: Relayout | None
) -> Problem:
    """The problem for operands that are already described in the layout."""
    wanted = wanted_format(format, len(request.subscripts.result))
    extents = extents_of(request, operands)
    sizes = {var.name: size for var, size in extents.items()}
    splitting, formats = _split(request, operands, sizes, wanted, format == "infer")
    last = None if layout is None else layout.result
    accesses = Accesses(request, operands, formats, splitting, extents | splitting.extents(sizes), last)
    padded = accesses.may_be_padded()
    problem = _assemble_problem(replace(accesses, padded=padded), target, format, wanted)
    if padded is not None and not problem.result.is_dense:
        padded, problem = None, _assemble_problem(accesses, target, format, wanted)
    rows = None if padded is None else prod(accesses.extents[var] for var in splitting.variables(padded))
    return replace(problem, layout=layout, rows=rows)


def _assemble_problem(accesses: Accesses, target: Target, format: Format | str | None, wanted: Format | None) -> Problem:
    request = accesses.request
    stmt = accesses.statement(computed_dtype(request, accesses.operands), may_keep=(wanted is None or not wanted.is_dense))
    facts = accesses.facts(stmt, target)
    stmt, why, requested = _choose_format(stmt, accesses, facts, format, wanted)
    shape = tuple(accesses.extents[IndexVar(name)] for name in request.subscripts.result)
    stmt, strides = accesses.with_strides(stmt, shape)
    stored = {NAMES[at]: fmt for at, fmt in accesses.formats.items()}
    shares = stmt.lhs.tensor.shares
    if shares is None:
        result = result_format(stmt, accesses.result_parts(stmt.lhs))
        return Problem(stmt, facts, accesses.extents, why, shape, result, stored, strides, requested=requested)
    permutation = tuple(request.subscripts.operands[NAMES.index(shares)].index(name) for name in request.subscripts.result)
    kept = stored[shares].permuted(permutation)
    return Problem(stmt, facts, accesses.extents, why, shape, kept, stored, strides, permutation, requested if requested != kept else None)


def check_loops(value: Expr, options: Options, shown: object) -> None:
    """Reject a schedule that names a loop the value does not have; a split index has one loop for each part.

    ``shown`` is the statement for the error.

    Raises:
        ScheduleError: a loop does not exist; the text names the available loops.
    """
    loops = [var.name for var in variables_in(value)]
    for directive, wanted in (("parallelize", options.parallel), ("vectorize", options.vector)):
        if wanted and wanted not in loops:
            parts = [loop for loop in loops if loop.startswith((f"{wanted}_out", f"{wanted}_in"))]
            suggestion = f"{wanted} is stored in parts: its loops are {', '.join(parts)}" if parts else "name one of these"
            available = f"only over {', '.join(loops)}" if loops else "since the expression has no loop"
            raise ScheduleError(f"{directive}({wanted}): no loop runs over {wanted}, {available}\n  {shown}     {suggestion}")


def index_dtype_of(operands: Sequence[Operand], sizes: Iterable[int]) -> str:
    """The index dtype of an assembled result."""
    wide = any(op.index_dtype == "int64" for op in operands if not op.format.is_dense)
    return "int64" if wide or any(size > INT32_MAX for size in sizes) else "int32"


def extents_of(request: Request, operands: Sequence[Operand]) -> dict[IndexVar, int]:
    """The extent of every index; size 1 broadcasts, except on a diagonal.

    Raises:
        SizeError: an index has two sizes that do not broadcast.
    """
    subs = request.subscripts
    shapes = [operand.shape for operand in operands]
    if (clash := size_clash(subs, shapes)) is not None:
        raise clash_error(clash, subs, operands, NAMES, f"{access_of(NAMES[len(operands)], subs.result)} = {request.expr}")
    return {IndexVar(name): size for name, size in subs.sizes(shapes).items()}


def size_clash(subs: Subscripts, shapes: Sequence[Sequence[int]]) -> Clash | None:
    """The first index with two sizes; size 1 broadcasts, except on a diagonal."""
    sizes: dict[str, tuple[int, int]] = {}
    for at, (names, shape) in enumerate(zip(subs.operands, shapes, strict=True)):
        for name, size in zip(names, shape, strict=True):
            if (diagonal_size := shape[names.index(name)]) != size:
                return name, (at, diagonal_size), (at, size)
            first, expected = sizes.get(name, (at, 1))
            if expected == 1:
                sizes[name] = (at, size)
            elif size not in (1, expected):
                return name, (first, expected), (at, size)
    return None


def clash_error(clash: Clash, subs: Subscripts, operands: Sequence[Operand], called: Sequence[str], statement: str) -> SizeError:
    """The error for an index with two sizes; ``called`` are the names of the operands in the error text."""
    name, (first, expected), (at, size) = clash
    if first == at:
        message, hint = f"takes the diagonal of {called[at]}, whose sizes differ there: {expected} and {size}", ""
    else:
        message = f"has size {expected} in {called[first]} but {size} in {called[at]}"
        hint = _reversed_hint(subs, operands, name, at, called)
    listed = "     ".join(f"{called[at]}: {operand}" for at, operand in enumerate(operands))
    return SizeError(f"index {name} {message}\n  {statement}     {listed}{hint}")


def _reversed_hint(subs: Subscripts, operands: Sequence[Operand], name: str, at: int, called: Sequence[str]) -> str:
    """A hint to transpose a matrix operand if its other dimension fits."""
    names, shape = subs.operands[at], operands[at].shape
    swapped = names[::-1]
    wanted = [operands[o].shape[t.index(name)] for o, t in enumerate(subs.operands) if name in t and o != at]
    fits = len(names) == 2 and wanted and shape[swapped.index(name)] == wanted[0]
    return f"     did you mean {called[at]}[{','.join(swapped)}]?" if fits else ""


def _split(
    request: Request, operands: Sequence[Operand], sizes: Mapping[str, int], wanted: Format | None, literal: bool
) -> tuple[Splitting, dict[int, Format]]:
    """The split of indices into parts, and the formats in which sparse operands are read."""
    names = request.subscripts.operands
    sparse = {at: operand for at, operand in enumerate(operands) if not operand.format.is_dense}
    leads = {at: is_zero(simplified(request.expr, {NAMES[at]})) for at in sparse}
    terms = {at: SparseTerm(names[at], operand.shape, operand.format, leads[at]) for at, operand in sparse.items()}
    if all(term.format.is_plain and term.format.is_ordered for term in terms.values()):
        return Splitting(), {at: term.format for at, term in terms.items()}
    result = request.subscripts.result
    keepers = [at for at in terms if sorted(names[at]) == sorted(result)]
    kept = len(keepers) == 1 and leads[keepers[0]]
    several_sparse = len(terms) > 1
    is_only_sparse = kept and not several_sparse
    sums = request.op in ("=", "+=") and (is_only_sparse or is_product(request.expr))
    if result and not kept and (several_sparse or literal if wanted is None else not wanted.is_dense):
        sums = False  # a sparse result is assembled by rows, not along diagonals
    own_term = None if kept or wanted is None or wanted.is_dense else SparseTerm(result, tuple(sizes[name] for name in result), wanted)
    appended = set() if wanted is not None and wanted.is_dense else set(result)
    if is_only_sparse:  # the last block of a split dimension may need an edge pattern, which is co-iterated
        appended -= {names[keepers[0]][part.dimension] for part in operands[keepers[0]].format.parts if part.is_whole}
    if request.op not in ("=", "+="):  # the number of terms matters, and positions past a block's edge would change it
        terms = {at: term.without_parts() for at, term in terms.items()}
    return split(terms, sizes, own_term, appended, sums)


def _choose_format(stmt: Assignment, accesses: Accesses, facts: Facts, format: Format | str | None, wanted: Format | None) -> Choice:
    """Choose the inferred or the requested format; if the requested one cannot be assembled, the result is converted to it."""
    request, parts = accesses.request, accesses.result_parts(stmt.lhs)
    index_dtype = index_dtype_of(accesses.operands, accesses.extents.values())
    inferred, why = infer_format(stmt, format == "infer", sum(bool(part.modulus) for part in parts), request.form.in_order)
    inferred = _assembled(inferred, inferred.lhs.tensor.format, index_dtype)
    if _is_filled_without_terms(stmt, accesses):
        return stmt if request.mask is None else inferred, "entries without terms are not 0", wanted
    if request.form.exact and wanted is None and inferred.lhs.tensor.shares is None:
        return _assembled(stmt, CSF(len(parts)), index_dtype), "only entries with a term are stored", None
    if request.form.row_limit:
        rows = _assembled(stmt, Format([Dense(), Compressed(ordered=False)]), index_dtype)
        why = f"only the {request.form.row_limit} largest of each row; rows are unordered, and sorted on demand"
        return replace(rows, lhs=rows.lhs.with_changes(row_limit=request.form.row_limit)), why, None
    if wanted is None:
        return _filled(stmt, inferred, why, facts) if format == "auto" else (inferred, why, None)
    would = f"requested; the default is {result_format(inferred, parts).name}: {why}"
    if wanted.is_dense:
        return stmt, would, None if wanted.is_row_major else wanted
    if inferred.lhs.tensor.shares is not None:
        return inferred, why if wanted == inferred.lhs.tensor.format else f"{why}, then converted to {wanted.name}", wanted
    if wanted == result_format(inferred, parts):
        return inferred, why, None
    if can_be_assembled(wanted) and set(wanted.parts) == set(parts):
        order = [parts.index(part) for part in wanted.parts]
        if _fits_edges(stmt, [stmt.lhs.indices[at] for at in order]):
            return _assembled(stmt, Format(wanted.levels, order), index_dtype), would, None
    if inferred.lhs.tensor.format.is_dense:
        inferred = _assembled(stmt, CSF(len(parts)), index_dtype)
    return inferred, f"{why}, then converted to {wanted.name}", wanted


def _fits_edges(stmt: Assignment, variables: Sequence[IndexVar]) -> bool:
    """Whether loops in this order run over the block before the offset in the block, for each dimension with a partial last block."""
    edges = [access for access in accesses_in(stmt.rhs) if any(level.ends for level in access.tensor.format.levels)]
    return all([var for var in variables if var in edge.indices] == [var for var in edge.indices if var in variables] for edge in edges)


def _is_filled_without_terms(stmt: Assignment, accesses: Accesses) -> bool:
    """Whether every result entry is nonzero because a reduced index has size 0 and the empty reduction is not 0."""
    request = accesses.request
    reduced = set(variables_in(stmt.rhs)) - set(stmt.lhs.indices)
    if request.op not in REDUCTIONS or all(accesses.extents[var] for var in reduced):
        return False
    return not REDUCTIONS[request.op].of_stored and start_of(request.op, stmt.rhs, stmt.lhs.tensor.dtype) != 0


def _filled(stmt: Assignment, inferred: Assignment, why: str, facts: Facts) -> Choice:
    """Make the result dense if its estimated fill is at least ``tuning.FULL_RESULT``."""
    if not inferred.lhs.tensor.is_assembled:
        return inferred, why, None
    fill = estimated_fill(inferred, facts)
    share = f"about {fill:.0%} of the result would be stored"
    return (inferred, f"{why}; {share}", None) if fill < tuning.FULL_RESULT else (stmt, f"{share}, so it is dense; {why}", None)


def _assembled(stmt: Assignment, fmt: Format, index_dtype: str) -> Assignment:
    """The statement with a format for its result, and the index dtype if the result is assembled."""
    assembled = with_format(stmt, fmt)
    if not assembled.lhs.tensor.is_assembled:
        return assembled
    return replace(assembled, lhs=assembled.lhs.with_changes(index_dtype=index_dtype))


def result_format(stmt: Assignment, parts: Sequence[Part]) -> Format:
    """The result's format; ``parts`` has, for each index of the result, the part of a dimension that it stands for."""
    fmt = stmt.lhs.tensor.format
    if all(part.is_whole for part in parts) or stmt.lhs.tensor.shares is not None:
        return fmt
    if fmt.is_dense:
        return dense(len({part.dimension for part in parts}))
    return Format([Dense() if level.full else level for level in fmt.levels], [parts[m] for m in fmt.mode_order])


def wanted_format(format: Format | str | None, order: int) -> Format | None:
    """The requested format of the result; None if it is inferred.

    Raises:
        FormatError: not a format, or a format with another number of dimensions.
    """
    if format is None or format in ("infer", "auto"):
        return None
    wanted = dense(order) if format == "dense" else as_format(format)
    if wanted.order != order:
        raise FormatError(f"format={wanted.name} has {wanted.order} dimensions, but the result has {order}")
    return wanted
