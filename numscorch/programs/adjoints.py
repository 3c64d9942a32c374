"""Adjoints: the gradients of a fused program, as fused programs.

The backward kernels recompute the rows of intermediate values instead of storing them. Gradients of operands that the program reads
by row are computed row by row. Gradients of operands that it reads by column are computed column by column, on the transposed
pattern. The forward kernel saves only the scalars of each row, such as the sums of a softmax (Dao and others, "FlashAttention",
NeurIPS 2022, algorithm 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

from ..frontend.fused_problem import FusedRequest, Member, valued
from ..frontend.gradient_requests import CONSTANT
from ..frontend.parser import Subscripts
from ..frontend.requests import NAMES, Request
from ..frontend.statements import ProgramPart, valued_access
from ..ir.format import Format, dense
from ..ir.functions import is_zero
from ..ir.gradient import derivative, plus, times
from ..ir.index import PATTERN, Access, Apply, Binary, Expr, IndexVar, TensorVar, accesses_in, factors_of, mapped, variables_in, with_part
from .fusion import NotFused, OperandKind, fused_request

RESULT, UPSTREAM = "result", "upstream"


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One backward kernel: its request, the names of its operands, and the names of its results, with the gradient first.

    ``format`` is the format to which the sparse operand is converted first; None if it is not converted.
    """

    names: tuple[str, ...]
    request: FusedRequest
    operands: tuple[str, ...]
    format: Format | None


@dataclass(frozen=True, slots=True)
class Adjoint:
    """The forward request, which also returns the scalars of each row; the backward kernels; and the name of each gradient."""

    forward: FusedRequest
    runs: tuple[KernelRun, ...]
    gradients: Mapping[str, str]


@lru_cache(maxsize=256)
def adjoint_of(request: FusedRequest, kinds: tuple[OperandKind, ...], wanted: tuple[str, ...]) -> Adjoint | None:
    """Return the kernels that compute the gradients of the operands ``wanted``; None if separate kernels for the parts are better.

    ``wanted`` has letters of the request. Fusion pays off if separate kernels would store values at the entries of a pattern.
    Otherwise they store rows of dense tensors only, and storing a row is cheaper than recomputing it.
    """
    try:
        return made_adjoint(request, kinds, wanted)
    except NotFused:
        return None


def made_adjoint(request: FusedRequest, kinds: tuple[OperandKind, ...], wanted: tuple[str, ...]) -> Adjoint:
    """Return the adjoint like :func:`adjoint_of`, but raise an error if there is none.

    Raises:
        NotFused: separate kernels for the parts are better; the text gives the reason.
    """
    if not any(member.is_beside for member in request.members):
        raise NotFused("storing an intermediate row is faster than recomputing it")
    return _Adjoining(request, kinds, wanted).adjoint()


class _Adjoining:
    """Builds the adjoint of one request."""

    def __init__(self, request: FusedRequest, kinds: tuple[OperandKind, ...], wanted: tuple[str, ...]):
        self.request, self.wanted = request, wanted
        self.kinds: dict[str, OperandKind | None] = {NAMES[at]: kind for at, kind in enumerate(kinds)}
        self.dtype = next(kind.dtype for at in valued(request) if (kind := self.kinds[NAMES[at]]) is not None)
        self.pattern = self._sole_sparse()
        levels = [self.pattern.level_var(at) for at in range(len(self.pattern.indices))]
        self.row, self.column = levels[0], levels[-1]
        result = Member(RESULT, tuple(map(IndexVar, request.subscripts.result)), request.expr, request.op, request.owner)
        forward = [*request.members, result]
        self.saved = sorted(m.name for m in request.members if set(m.indices) <= set(request.outer))
        self.statements = {statement.name: statement for statement in forward}
        self.backward: dict[str, Member] = {}
        self.gradients = self._differentiated(forward)

    def _sole_sparse(self) -> Access:
        read = (access for value in self.request.read for access in accesses_in(value))
        sparse = {valued_access(access) for access in read if self._is_sparse(access) and access.tensor.shares is None}
        if len(sparse) != 1 or len(next(iter(sparse)).indices) != 2:
            raise NotFused("its gradient needs exactly one sparse matrix")
        return sparse.pop()

    def _is_sparse(self, access: Access) -> bool:
        kind = self.kinds.get(access.tensor.name)
        return kind is not None and kind.format is not None

    # ---- statements

    def _differentiated(self, forward: Sequence[Member]) -> dict[str, str]:
        """Add the statements of all gradients by reverse-mode differentiation; return the names of the wanted gradients by letter."""
        moving = self._moving(forward)
        terms: dict[str, list[Expr]] = {}
        indices: dict[str, tuple[IndexVar, ...]] = {}
        for statement in reversed(forward):
            upstream = self._upstream(statement, terms)
            if upstream is None or statement.op == CONSTANT:
                continue
            if statement.op not in ("=", "+="):
                raise NotFused(f"{statement.op} has no fused gradient")
            for access in {a for a in accesses_in(statement.value) if a.tensor.name in moving and a.tensor.has_values}:
                by = self._with_result(statement, derivative(statement.value, access.tensor.name))
                if not is_zero(by):
                    terms.setdefault(access.tensor.name, []).append(self._where_stored(times(upstream, by), statement.owner))
                    indices[access.tensor.name] = access.indices
        return {name: self._summed(name, indices[name], terms[name]) for name in self.wanted if name in terms}

    def _with_result(self, statement: Member, by: Expr) -> Expr:
        """Replace the function in a derivative by the result of the statement that computes it: exp(A[i,j]) by E[i,j] if E = exp(A)."""
        functions = [f for f in factors_of(statement.value) if not isinstance(f, Access) or f.tensor.has_values]
        is_sum = not set(variables_in(statement.value)) <= set(statement.indices)
        if is_sum or statement.name == RESULT or len(functions) != 1 or not isinstance(functions[0], Apply):
            return by
        result = Access(TensorVar(statement.name, dense(len(statement.indices))), statement.indices)
        return with_part(by, functions[0], result)

    def _moving(self, forward: Sequence[Member]) -> set[str]:
        """Return the names of operands and statements that depend on the wanted operands."""
        moving = set(self.wanted)
        for statement in forward:
            if any(a.tensor.name in moving and a.tensor.has_values for a in accesses_in(statement.value)):
                moving.add(statement.name)
        return moving

    def _upstream(self, statement: Member, terms: dict[str, list[Expr]]) -> Access | None:
        """Return an access to the gradient of a statement's result, or None if nothing depends on it."""
        if statement.name != RESULT and statement.name not in terms:
            return None
        name = UPSTREAM if statement.name == RESULT else self._summed(statement.name, statement.indices, terms[statement.name])
        return Access(TensorVar(name, dense(len(statement.indices))), statement.indices)

    def _where_stored(self, value: Expr, owner: Access | None) -> Expr:
        if owner is None:
            return value
        return Binary("*", Access(replace(owner.tensor, dtype=PATTERN), owner.indices), value)

    def _summed(self, name: str, indices: tuple[IndexVar, ...], terms: Sequence[Expr]) -> str:
        """Add the statement that sums the terms of a gradient; terms with reductions become separate statements."""
        if len(terms) > 1:
            terms = [t if set(variables_in(t)) <= set(indices) else self._alone(name, indices, t) for t in terms]
        return self._add(name, indices, reduce(plus, terms))

    def _alone(self, name: str, indices: tuple[IndexVar, ...], term: Expr) -> Expr:
        access: Expr = Access(TensorVar(self._add(name, indices, term), dense(len(indices))), indices)
        return self._where_stored(access, self.pattern) if {self.row, self.column} <= set(indices) else access

    def _add(self, name: str, indices: tuple[IndexVar, ...], value: Expr) -> str:
        """Add the statement of the gradient of ``name``, and return the statement's name.

        Raises:
            NotFused: the gradient is constant along an index.
        """
        if not set(indices) <= set(variables_in(value)):
            raise NotFused(f"the gradient of {name} is constant along an index")
        fresh = f"grad_{name}"
        while fresh in self.statements or fresh in self.backward:
            fresh += "_"
        self.backward[fresh] = Member(fresh, indices, value)
        return fresh

    # ---- kernels

    def adjoint(self) -> Adjoint:
        """Return the forward request, which also saves the scalars of each row, and the backward kernels, first those that run by rows."""
        available = [*self.saved, UPSTREAM]
        by_rows = [name for name in self.gradients.values() if not self._is_by_columns(name)]
        by_columns = [name for name in self.gradients.values() if self._is_by_columns(name)]
        needed = dict.fromkeys(n for name in by_columns for n in self._slice(name, available) if n != name)
        of_row = [n for n in needed if self.column not in self._statement(n).indices]
        runs = []
        for name in by_rows:
            sliced = [n for n in of_row if n in self._slice(name, available)]
            runs.append(self._run(name, available, None, sliced))
            available += sliced
            of_row = [n for n in of_row if n not in sliced]
        for name in of_row:
            runs.append(self._run(name, available, None, ()))
            available.append(name)
        transposed = Format("ds", mode_order=self.pattern.tensor.format.mode_order[::-1])
        runs += [self._run(name, available, transposed, ()) for name in by_columns]
        return Adjoint(replace(self.request, returned=tuple(self.saved)), tuple(runs), self.gradients)

    def _is_by_columns(self, name: str) -> bool:
        indices = self.backward[name].indices
        return self.column in indices and self.row not in indices

    def _statement(self, name: str) -> Member:
        return self.backward.get(name) or self.statements[name]

    def _slice(self, name: str, available: Iterable[str]) -> list[str]:
        """Return the statements to compute for the statement ``name``, which comes last; ``available`` ones are not recomputed."""
        visited: dict[str, None] = {}

        def visit(name_: str) -> None:
            for access in accesses_in(self._statement(name_).value):
                if access.tensor.name not in (*self.kinds, *available, *visited):
                    visit(access.tensor.name)
            visited[name_] = None

        visit(name)
        return list(visited)

    def _run(self, name: str, available: Sequence[str], format: Format | None, returned: Sequence[str]) -> KernelRun:
        """Return the kernel of one gradient.

        Raises:
            NotFused: the gradient takes more than one kernel.
        """
        kinds = dict(self.kinds) | {
            name_: OperandKind(len(self._indices(name_)), self.dtype, None, self._units(name_)) for name_ in available
        }
        owner = self.kinds[self.pattern.tensor.name]
        if self.request.keeps and owner is not None:
            kinds[UPSTREAM] = OperandKind(2, self.dtype, owner.format, group=owner.group)
        if format is not None:
            kinds |= {name_: replace(kind, format=format) for name_, kind in kinds.items() if kind is not None and kind.format is not None}
        parts = [_part(self._statement(name_)) for name_ in self._slice(name, available)]
        request, operands = fused_request(parts, kinds, set())
        members = {m.name: (part.name, m) for part, m in zip(parts, request.members, strict=False) if part.name in returned}
        if not all(set(m.indices) <= set(request.outer) for _, m in members.values()):
            raise NotFused(f"{', '.join(returned)} are not one scalar per row")
        names = (name, *(members[name_][0] for name_ in sorted(members)))
        return KernelRun(names, replace(request, returned=tuple(sorted(members))), operands, format)

    def _units(self, name: str) -> tuple[int, ...]:
        """Return the dimensions in which a statement's result has size 1: their indices have size 1 in every operand."""
        terms = zip(self.request.subscripts.operands, self.kinds.values(), strict=True)
        wide = {index for names, kind in terms if kind is not None for at, index in enumerate(names) if at not in kind.units}
        return tuple([at for at, var in enumerate(self._indices(name)) if var.name not in wide])

    def _indices(self, name: str) -> tuple[IndexVar, ...]:
        return self.statements[RESULT].indices if name == UPSTREAM else self._statement(name).indices


def _part(statement: Member) -> ProgramPart:
    """Convert a statement to a program part, whose request names operands by letters."""
    accesses = list(dict.fromkeys(Access(TensorVar(a.tensor.name, dense(len(a.indices))), a.indices) for a in accesses_in(statement.value)))
    letters = {(a.tensor.name, a.indices): NAMES[at] for at, a in enumerate(accesses)}
    value = mapped(
        statement.value,
        lambda a: Access(TensorVar(letters[a.tensor.name, a.indices], dense(len(a.indices)), a.tensor.dtype), a.indices),
    )
    terms = tuple(tuple(var.name for var in a.indices) for a in accesses)
    subscripts = Subscripts(terms, tuple(var.name for var in statement.indices))
    return ProgramPart(statement.name, tuple(a.tensor.name for a in accesses), Request(subscripts, value, statement.op))
