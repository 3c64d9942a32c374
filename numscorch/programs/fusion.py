"""Fusion: group parts of a program into one kernel that never stores the intermediate results completely.

Parts are fused if they share loops over indices that all their results have. Inside these loops, each intermediate result must be a
scalar, a row, or a row of values at the entries of a sparse operand. The remaining parts run one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from string import ascii_lowercase
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..frontend.datatypes import STORED, has_complex_number
from ..frontend.fused_problem import FusedRequest, Member
from ..frontend.parser import Subscripts
from ..frontend.requests import MOST_OPERANDS, NAMES, Form, Operand, Request, only_patterns
from ..frontend.statements import ProgramPart, base_of, valued_access
from ..ir.dtype import DTYPES
from ..ir.format import Format, dense
from ..ir.functions import is_zero, simplified
from ..ir.index import Access, Assignment, Expr, IndexVar, TensorVar, accesses_in, mapped, variables_in
from ..schedule.facts import AUTOMATIC
from ..schedule.format_inference import infer_format
from ..tensors.sparse_tensor import SparseTensor
from .torch_sparse import by_rows, wrap

JOINING = ("=", "+=", "max=", "min=", "stored max=")  # assignment operators that can be fused
MOST_ACCESSES = 1000  # upper bound of the operand accesses of a part with all intermediate results inlined


class NotFused(Exception):
    """Parts cannot be fused; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class OperandKind:
    """The properties of an operand that affect fusion.

    ``format`` is None for dense tensors, ``units`` are the dimensions of size 1, and operands with the same pattern have the same
    ``group``.
    """

    order: int
    dtype: str
    format: Format | None = None
    units: tuple[int, ...] = ()
    group: int | None = None

    @classmethod
    def of(cls, operand: Any) -> OperandKind | None:
        """Return the kind of a tensor, or of an ``Operand`` that describes one; None if kernels do not accept the tensor."""
        if isinstance(operand, Operand):
            return cls(len(operand.shape), operand.dtype, None if operand.format.is_dense else operand.format, _units(operand.shape))
        if not isinstance(operand, SparseTensor | Tensor) or (dtype := STORED.get(operand.dtype)) is None:
            return None
        if isinstance(operand, Tensor):
            if operand.layout is torch.strided:
                return cls(operand.ndim, dtype.name, None, _units(operand.shape))
            if operand.layout is torch.sparse_coo and not operand.is_coalesced():
                return None
            operand = by_rows(wrap(operand))
        return cls(operand.ndim, dtype.name, None if operand.pattern.is_dense else operand.format, _units(operand.shape))


def _units(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple([dimension for dimension, size in enumerate(shape) if size == 1])


class ProgramStep(NamedTuple):
    """Parts that one kernel computes: several parts as one ``FusedRequest``, or a single part with the format of its result.

    Attributes:
        name: the name of the kernel's result.
        operands: the names of the kernel's operands.
    """

    name: str
    request: Request
    operands: tuple[str, ...]
    parts: tuple[ProgramPart, ...]
    format: Format | str | None = None


def group_from(
    parts: tuple[ProgramPart, ...], start: int, values: Mapping[str, Any], format: Format | str | None = None
) -> ProgramStep | None:
    """Return the longest sequence of parts from ``start`` that one kernel can compute; None if no two parts can be fused.

    ``format`` is the requested format of the last part's result; fused kernels do not convert their result.
    """
    if start == len(parts) - 1:
        return None
    kinds = _kinds(parts[start:], values)
    if not any(kind is not None and kind.format is not None for kind in kinds.values()):
        return None
    group = _longest(parts, start, tuple(kinds.items()))
    if group is None or start + len(group.parts) < len(parts) or format is None:
        return group
    return group if format == "dense" and isinstance(group.request, FusedRequest) and not group.request.keeps else None


def why_alone(parts: tuple[ProgramPart, ...], at: int, values: Mapping[str, Any]) -> str | None:
    """Return why a part is not fused with the next one; None if it can be fused, or is the last one.

    >>> import torch
    >>> from numscorch.frontend.statements import parse_program
    >>> parts = parse_program("T[i,k] = X[i,j] * W[j,k]; D[i,k] = relu(T[i,k])")
    >>> why_alone(parts, 0, {"X": torch.ones(2, 3), "W": torch.ones(3, 4)})
    'T is a dense product'
    """
    if at == len(parts) - 1:
        return None
    try:
        fused_request(parts[at : at + 2], _kinds(parts[at:], values), _read_by(parts[at + 2 :]))
    except NotFused as why:
        return str(why)
    return None


def _kinds(parts: Sequence[ProgramPart], values: Mapping[str, Any]) -> dict[str, OperandKind | None]:
    wanted = {name: values[name] for part in parts for name in part.operands if name in values}
    return kinds_of(wanted)


def kinds_of(operands: Mapping[str, Any]) -> dict[str, OperandKind | None]:
    """The kinds of operands, and which of them share a pattern.

    Descriptions of operands that share a pattern are ``beside`` the same number.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> {name: kind.group for name, kind in kinds_of({"A": A, "B": A * 2, "x": torch.ones(2)}).items()}
    {'A': 0, 'B': 0, 'x': None}
    """
    kinds, groups = {name: OperandKind.of(operand) for name, operand in operands.items()}, dict[int, int]()
    for name, operand in operands.items():
        shared = id(operand.pattern) if isinstance(operand, SparseTensor) else operand.beside if isinstance(operand, Operand) else None
        if shared is not None and (kind := kinds[name]):
            kinds[name] = replace(kind, group=groups.setdefault(shared, len(groups)))
    return kinds


def _read_by(parts: Sequence[ProgramPart]) -> set[str]:
    return {read for part in parts for name in part.operands for read in (name, base_of(name))}


@lru_cache(maxsize=1024)
def _longest(parts: tuple[ProgramPart, ...], start: int, kinds: tuple[tuple[str, OperandKind | None], ...]) -> ProgramStep | None:
    for end in range(len(parts), start + 1, -1):
        try:
            request, operands = fused_request(parts[start:end], dict(kinds), _read_by(parts[end:]))
        except NotFused:
            continue
        return ProgramStep(parts[end - 1].name, request, operands, parts[start:end])
    return None


def fused_request(
    parts: Sequence[ProgramPart], kinds: Mapping[str, OperandKind | None], later: set[str]
) -> tuple[FusedRequest, tuple[str, ...]]:
    """Merge parts into one request; ``later`` are the names that subsequent parts read.

    Raises:
        NotFused: the parts cannot be fused; the text gives the reason.
    """
    return _Fusing(parts, kinds, later).request()


def aligned(parts: Sequence[ProgramPart]) -> list[ProgramPart]:
    """Rename the indices of parts that read an earlier result with other indices than it is computed with, since index names are local.

    >>> from numscorch.frontend.statements import parse_program
    >>> for part in aligned(parse_program("P[i,j] = A[i,j] * l[i]; R[i,j] = P[i,k] * V[k,j]")):
    ...     print(part.request.subscripts)
    ij,i->ij
    ij,ja->ia
    """
    results: dict[str, tuple[str, ...]] = {}
    used = {name for part in parts for names in part.request.subscripts.operands for name in names}
    fresh = (name for number in count() for letter in ascii_lowercase if (name := f"{letter}{number or ''}") not in used)
    renamed = []
    for part in parts:
        subscripts = part.request.subscripts
        reads = [(names, results[name]) for name, names in zip(part.operands, subscripts.operands, strict=True) if name in results]
        differing = [pair for pair in reads if pair[0] != pair[1]]
        read, computed = max(differing, key=lambda pair: len(pair[0]), default=((), ()))
        if read and len(set(read)) == len(read) == len(set(computed)):
            names = dict(zip(read, computed, strict=True))
            others = {name for operand in subscripts.operands for name in operand} - set(read)
            names |= {name: next(fresh) for name in sorted(others)}
            subscripts = Subscripts(
                tuple(tuple(names.get(name, name) for name in operand) for operand in subscripts.operands),
                tuple(names.get(name, name) for name in subscripts.result),
            )
            part = replace(part, request=replace(part.request, subscripts=subscripts))
        renamed.append(part)
        results[part.name] = subscripts.result
    return renamed


class _Fusing:
    """Merges several parts into one request."""

    def __init__(self, parts: Sequence[ProgramPart], kinds: Mapping[str, OperandKind | None], later: set[str]):
        self.parts, self.kinds, self.later = aligned(parts), kinds, later
        self.letters: dict[tuple[str, tuple[str, ...]], str] = {}  # (operand, indices) -> letter in the request
        self.sparse: dict[str, Access] = {}  # accesses to sparse operands by letter
        self.owners: dict[tuple[int, tuple[str, ...]], str] = {}  # (group, indices) -> letter of the first operand with the pattern
        self.members: dict[str, Member] = {}
        self.alone: dict[str, Format] = {}  # format of each part's result without fusion
        self.outer = self._shared()

    def _shared(self) -> tuple[IndexVar, ...]:
        """Return the indices that all results have and that loop over full dimensions."""
        shared = set.intersection(*(set(part.request.subscripts.result) for part in self.parts))
        shared -= {name for part in self.parts for name in self._walked(part)}
        if not shared:
            raise NotFused("the parts share no loop: every result would need a common index of a dense dimension")
        outer = [name for name in self.parts[-1].request.subscripts.result if name in shared]
        return tuple(map(IndexVar, outer[:-1] if len(outer) > 1 and self._runs_along(outer[-1]) else outer))

    def _runs_along(self, name: str) -> bool:
        """Return whether a shared index should be an inner loop, which can be vectorized.

        This holds if it is the last index of every result, no sparse operand has it, and some part sums over another index.
        """
        terms = [term for part in self.parts for term in zip(part.operands, part.request.subscripts.operands, strict=True)]
        sparse = {name_ for name_, _ in terms if (kind := self.kinds.get(name_)) is not None and kind.format is not None}
        results = [part.request.subscripts.result for part in self.parts]
        is_summed = any(not set(names) <= set(results[-1]) for _, names in terms)
        return (
            is_summed
            and all(names[-1] == name for names in results)
            and not any(operand in sparse and name in names for operand, names in terms)
        )

    def _walked(self, part: ProgramPart) -> Iterator[str]:
        """Yield the indices of a part whose loops iterate over stored entries of its sparse operands."""
        for name, names in zip(part.operands, part.request.subscripts.operands, strict=True):
            kind = self.kinds.get(name)
            if kind is not None and kind.format is not None and kind.format.is_plain:
                yield names[kind.format.mode_order[-1]]

    def request(self) -> tuple[FusedRequest, tuple[str, ...]]:
        self._check_dtypes()
        self._check_size()
        self._check_extents()
        *before, last = self.parts
        for part in before:
            if part.name in self.later:
                raise NotFused(f"{part.name} is read again later")
            self.members[part.name] = self._member(part)
        member = self._member(last)
        prunes = last.request.form.prunes
        keeps = member.owner is not None and member.is_stored and not prunes
        if not self.letters or all(self._kind(name).format is None for name, _ in self.letters):
            raise NotFused("every operand is dense")
        subscripts = Subscripts(tuple(names for _, names in self.letters), last.request.subscripts.result)
        members = tuple(self.members.values())
        self._check_pruned(last, member)
        form = Form(prunes=prunes, largest=last.request.form.largest)
        request = FusedRequest(
            subscripts, member.value, member.op, form=form, members=members, outer=self.outer, owner=member.owner, keeps=keeps
        )
        return request, tuple(name for name, _ in self.letters)

    def _check_pruned(self, part: ProgramPart, member: Member) -> None:
        """Check that rows of pruned results are computed in order, and one after the other if a part keeps the largest of each block."""
        if part.request.form.prunes and member.indices[: len(self.outer)] != self.outer:
            raise NotFused(f"the rows of {part.name} aren't computed in order")
        if part.request.form.prunes and member.owner is not None and len(member.indices) != 2:
            raise NotFused(f"{part.name} would be sparse, with {len(member.indices)} dimensions")
        if part.request.form.largest is not None and (member.owner is not None or member.indices[-1] in self.outer):
            raise NotFused(f"{part.name} keeps the largest values of each block, but its rows aren't computed one after the other")

    def _check_dtypes(self) -> None:
        read = {name for part in self.parts for at, name in enumerate(part.operands) if at not in only_patterns(part.request)}
        dtypes = {self._kind(name).dtype for name in read - {part.name for part in self.parts}}
        if any(has_complex_number(part.request) for part in self.parts):
            raise NotFused("it has a complex number: only floats are fused")
        if len(dtypes) != 1 or any(DTYPES[dtype].kind != "floating" for dtype in dtypes):
            raise NotFused(f"data types {', '.join(sorted(dtypes))}: only floats of one data type are fused")

    def _check_size(self) -> None:
        """Check the number of accesses of each result with all intermediate results inlined; this bounds the time of the passes."""
        sizes: dict[str, int] = {}
        for part in self.parts:
            read = [part.operands[NAMES.index(access.tensor.name)] for access in accesses_in(part.request.expr)]
            sizes[part.name] = sum(sizes.get(name, 1) for name in read)
            if sizes[part.name] > MOST_ACCESSES:
                raise NotFused(f"{part.name} reads too many values of earlier parts")

    def _check_extents(self) -> None:
        """Check that no part has size 1 along an index that is larger in other parts, because they share the loop over it."""
        wide: set[str] = set()
        lean: dict[str, set[str]] = {}
        narrow: dict[str, set[str]] = {}
        for part in self.parts:
            indices: set[str] = set()
            for name, names in zip(part.operands, part.request.subscripts.operands, strict=True):
                units = {names[at] for at in kind.units} if (kind := self.kinds.get(name)) is not None else lean.get(name, set())
                indices |= set(names) - units
            narrow[part.name] = set().union(*part.request.subscripts.operands) - indices
            lean[part.name] = narrow[part.name] & set(part.request.subscripts.result)
            wide |= indices
        if broadcast := [part.name for part in self.parts if narrow[part.name] & wide]:
            raise NotFused(f"{broadcast[0]} has size 1 along an index that is larger in other parts")

    def _kind(self, name: str) -> OperandKind:
        kind = self.kinds.get(name)
        if kind is None:
            raise NotFused(f"{name} is not a tensor that kernels accept")
        return kind

    def _member(self, part: ProgramPart) -> Member:
        """Convert a part to a statement of the kernel."""
        request = part.request
        is_other = request.mask is not None or request.form.exact or request.options != AUTOMATIC
        if request.op not in JOINING or is_other or request.value is None:
            raise NotFused(f"{request}: {request.op} cannot be fused")
        value = mapped(request.value, lambda a: self._access(part, a))
        if request.op == "stored max=" and set(variables_in(value)) <= set(map(IndexVar, request.subscripts.result)):
            raise NotFused(f"{part.name} takes the maximum of a single term")
        owner = self._owner(part, value)
        indices = tuple(map(IndexVar, request.subscripts.result))
        alone = self._format_alone(part, value, indices)
        is_stored = owner is not None and indices == owner.indices and alone == owner.tensor.format and request.op != "stored max="
        self.alone[part.name] = alone
        if part is self.parts[-1] and not alone.is_dense and not is_stored and not request.form.prunes:
            raise NotFused(f"{part.name} would be sparse with a new pattern")
        member = Member(self._name(part.name, indices), indices, value, request.op, owner, is_stored)
        self._check_loops(part, member)
        return member

    def _format_alone(self, part: ProgramPart, value: Expr, indices: tuple[IndexVar, ...]) -> Format:
        """Return the format that a part's result would have if neither this part nor earlier parts were fused."""
        alone = {member.name: self.alone[name] for name, member in self.members.items()}
        unshared = mapped(value, lambda a: self._walked_by(a).with_changes(name=a.tensor.name, dtype=a.tensor.dtype))
        unfused = mapped(unshared, lambda a: Access(replace(a.tensor, format=alone.get(a.tensor.name, a.tensor.format)), a.indices))
        stmt = Assignment(Access(TensorVar(part.name, dense(len(indices))), indices), unfused, part.request.op)
        return infer_format(stmt, in_order=part.request.form.in_order)[0].lhs.tensor.format

    def _name(self, name: str, indices: tuple[IndexVar, ...]) -> str:
        """Return the kernel's name for a part's result; it ends in ``_row`` or ``_value``."""
        kind = "value" if set(indices) <= set(self.outer) else "row"
        fresh = name if name.endswith(f"_{kind}") else f"{kind}_{name}" if name.isdigit() else f"{name}_{kind}"
        while fresh in {member.name for member in self.members.values()}:
            fresh += "_"
        return fresh

    def _access(self, part: ProgramPart, access: Access) -> Access:
        """Convert an access of a part to the kernel's access: to an operand, named by a letter, or to the result of an earlier part."""
        at = NAMES.index(access.tensor.name)
        name, names = part.operands[at], part.request.subscripts.operands[at]
        if (member := self.members.get(name)) is not None:
            if tuple(map(IndexVar, names)) != member.indices:
                raise NotFused(f"{name} is read with other indices than it is computed with")
            if not access.tensor.has_values and not member.is_stored:
                raise NotFused(f"{name} is not sparse, so stored({name}) has no pattern")
            return Access(TensorVar(member.name, dense(len(names)), access.tensor.dtype), member.indices)
        kind = self._kind(name)
        owner = None if kind.group is None else self.owners.get((kind.group, names))
        if owner is not None and not access.tensor.has_values:
            return self.sparse[owner].with_changes(dtype=access.tensor.dtype)
        letter = self.letters.setdefault((name, names), NAMES[len(self.letters)])
        if len(self.letters) >= MOST_OPERANDS + 1:
            raise NotFused("too many operands")
        if owner is not None and owner != letter:
            return Access(TensorVar(letter, dense(len(names)), access.tensor.dtype, shares=owner), tuple(map(IndexVar, names)))
        fmt = dense(len(names)) if kind.format is None else kind.format
        if kind.format is not None:
            self.sparse[letter] = Access(TensorVar(letter, fmt), tuple(map(IndexVar, names)))
            self._check_walked(name, self.sparse[letter], kind)
            if kind.group is not None:
                self.owners[kind.group, names] = letter
        return Access(TensorVar(letter, fmt, access.tensor.dtype), tuple(map(IndexVar, names)))

    def _check_walked(self, name: str, access: Access, kind: OperandKind) -> None:
        """Check that the shared loops iterate over the rows of a sparse operand."""
        fmt = access.tensor.format
        if not fmt.is_plain or kind.units or len(set(access.indices)) < len(access.indices):
            raise NotFused(f"{name} has blocks, a diagonal, or a dimension of size 1")
        *above, last = range(len(fmt.levels))
        level = fmt.levels[last]
        if not all(fmt.levels[at].full for at in above) or level.full or not level.is_unique or level.arrays != ("pos", "crd"):
            raise NotFused(f"{name} is stored as {fmt.name}: fusion needs dense levels above a compressed one, as in CSR")
        if access.level_var(last) in self.outer or not all(access.level_var(at) in self.outer for at in above):
            raise NotFused(f"{name} is not read row by row in the shared loops")

    def _owner(self, part: ProgramPart, value: Expr) -> Access | None:
        """Return the sparse operand whose entries contain all nonzeros of a part's value; None for dense parts.

        Raises:
            NotFused: the part merges sparse operands, or its value is not 0 at unstored entries.
        """
        owners: dict[Access, set[str]] = {}
        for access in accesses_in(value):
            member = self._member_of(access)
            stored = member.owner if member is not None and member.is_stored else self._walked_by(access) if member is None else None
            if stored is not None and not stored.tensor.format.is_dense:
                owners.setdefault(valued_access(stored), set()).add(access.tensor.name)
        if len(owners) > 1:
            raise NotFused(f"{part.name} merges several sparse tensors")
        beside = {member.owner for a in accesses_in(value) if (member := self._member_of(a)) is not None and member.is_beside}
        if not owners and not beside:
            return None
        if not beside <= set(owners):
            raise NotFused(f"{part.name} would be dense: multiply it by stored(...) of the sparse operand")
        ((owner, names),) = owners.items()
        if not is_zero(simplified(value, names)):
            raise NotFused(f"{part.name} is not 0 at unstored entries")
        return owner

    def _walked_by(self, access: Access) -> Access:
        """The access to the operand whose pattern an operand shares; the access itself if it shares none."""
        return access if access.tensor.shares is None else self.sparse[access.tensor.shares]

    def _member_of(self, access: Access) -> Member | None:
        """Return the statement whose result an access reads; None for an operand."""
        return next((member for member in self.members.values() if member.name == access.tensor.name), None)

    def _check_loops(self, part: ProgramPart, member: Member) -> None:
        """Check that intermediate results are scalars or rows, and that no part is a dense product."""
        inner = [var for var in member.indices if var not in self.outer]
        used = [var for var in variables_in(member.value) if var not in self.outer]
        if len(inner) > 1:
            raise NotFused(f"{part.name} has {len(inner)} indices outside the shared loops")
        if len(used) > (1 if member.owner is None else 2):
            raise NotFused(f"{part.name} is a dense product" if member.owner is None else f"{part.name} sums over several indices")
