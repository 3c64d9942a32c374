"""Names in statements: short index names, and names of derived operands such as ``A[:,0]`` and ``:j``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, count

from ..ir.index import Assignment, IndexVar, variables_in

INDEX = re.compile(r"[A-Za-z]\d*")  # longer names could collide with variables and functions of generated kernels
SIZE = ":"  # prefix of an operand of ones along an index


def short_names(stmts: Iterable[Assignment]) -> dict[IndexVar, IndexVar]:
    """A letter with an optional number for each longer index name, which could collide with a kernel's variables.

    >>> from ..ir.notation import parse_stmt
    >>> {str(var): str(short) for var, short in short_names([parse_stmt("y[row] = A[row,r] * x[r,col]")]).items()}
    {'row': 'r0', 'col': 'c'}
    """
    variables = dict.fromkeys(var for stmt in stmts for var in (*stmt.lhs.indices, *variables_in(stmt.rhs)))
    used = {var.name for var in variables if INDEX.fullmatch(var.name)}
    short: dict[IndexVar, IndexVar] = {}
    for var in variables:
        if not INDEX.fullmatch(var.name):
            letter = next((char for char in var.name if char.isascii() and char.isalpha()), "i")
            name = next(name for name in chain([letter], (f"{letter}{at}" for at in count())) if name not in used)
            used.add(name)
            short[var] = IndexVar(name)
    return short


def base_of(name: str) -> str:
    """The name under which the user passes an operand: A for ``A[:,0]``, j for the ones ``:j``.

    >>> base_of("A[:,0]"), base_of(":j"), base_of("A")
    ('A', 'j', 'A')
    """
    return name[1:] if is_size(name) else name.partition("[")[0]


def is_size(name: str) -> bool:
    """Whether an operand stands for ones along an index, of which the user passes only the size."""
    return name.startswith(SIZE)
