"""The kernels of a program, in the order in which they run: what evaluation runs and what explain tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..frontend.gradient_requests import CONSTANT
from ..frontend.requests import Request
from ..frontend.statements import ProgramPart
from ..ir.format import Format
from ..ir.functions import REDUCTIONS
from .fusion import Group, group_from
from .pairing import in_pairs

Wanted = Format | str | None


class ProgramStep(NamedTuple):
    """Parts that one kernel computes: a group of several, or a single one with the format of its result.

    Attributes:
        name: the name of the kernel's result.
        operands: the names of the kernel's operands.
    """

    name: str
    request: Request
    operands: tuple[str, ...]
    parts: tuple[ProgramPart, ...]
    group: Group | None
    format: Wanted


@dataclass(slots=True)
class Steps:
    """Iterates over the steps of a program.

    Each step depends on the results of earlier ones, which the caller enters into ``values``. A caller that cannot run a group
    calls :meth:`refuse`; its first part is then the next step.

    Args:
        parts: the program; a product of three and more operands is split into pairs on the way.
        values: tensors, or descriptions of them, by name.
        format: the wanted format of the program's result.
        fusable: the tensors as fused kernels read them.
        is_plain: whether parts may be paired and fused; transforms of torch.func see each part.
    """

    parts: tuple[ProgramPart, ...]
    values: Mapping[str, Any]
    format: Wanted
    fusable: Mapping[str, Any]
    is_plain: bool = True
    at: int = field(default=0, init=False)
    _alone: int = field(default=-1, init=False)  # the part whose group was refused

    def refuse(self) -> None:
        """Compute the first part of the last step alone."""
        self.at = self._alone

    def __iter__(self) -> Iterator[ProgramStep]:
        while (at := self.at) < len(self.parts):
            group = None
            if self.is_plain:
                self.parts = in_pairs(self.parts, at, self.values)
                if at != self._alone:
                    group = group_from(self.parts, at, self.fusable, self.format)
            self._alone, self.at = at, at + 1 if group is None else group.end
            parts = self.parts[at : self.at]
            last = parts[-1]
            if group is None:
                yield ProgramStep(last.name, last.request, last.operands, parts, None, self.format_of(last))
            else:
                yield ProgramStep(last.name, group.request, group.operands, parts, group, None)

    def format_of(self, part: ProgramPart) -> Wanted:
        """The wanted format of a part's result; None to infer it.

        ``stored max=`` gives a dense result, because its value is -inf at rows without stored terms. Reductions that other parts read
        are dense if they have fewer than two dimensions, as in ``numscorch.sum``.
        """
        is_last = part is self.parts[-1]
        if is_last and self.format is not None:
            return self.format
        is_read = not is_last and part.request.op in REDUCTIONS and len(part.request.subscripts.result) < 2
        return "dense" if part.request.op == CONSTANT or is_read else None
