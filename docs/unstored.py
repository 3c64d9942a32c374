"""Tables of docs/OPERATORS.md: results of operators at unstored entries, from ``numscorch.ir.functions``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from numscorch.ir.format import CSR
from numscorch.ir.functions import FUNCTIONS, INFIX, REDUCTIONS, simplified, start_of
from numscorch.ir.index import Access, Assignment, Binary, Expr, IndexVar, Literal, TensorVar
from numscorch.ir.lattice import make_lattice
from numscorch.ir.notation import parse_expr
from numscorch.programs.reductions import JOINED_BY, TESTS
from numscorch.schedule.format_inference import infer_format

NAMES = "ABC"
MEAN = "mean"
INDICES = (IndexVar("i"), IndexVar("j"))
TERM = Access(TensorVar("A", CSR), INDICES)
TENSORS = {name: TensorVar(name, CSR) for name in NAMES}


def expressions(arity: int) -> list[str]:
    """All operators and functions of an arity."""
    called = [f"{name}({', '.join(NAMES[:arity])})" for name, function in FUNCTIONS.items() if function.arity == arity]
    return [f"A {op} B" for op in INFIX] + called if arity == 2 else called


def parsed(text: str) -> Expr:
    """Parse an expression of CSR matrices."""
    for name in NAMES:
        text = text.replace(name, f"{name}[i,j]")
    return parse_expr(text, TENSORS)


def absences(arity: int) -> list[str]:
    """Sets of absent operands: each operand alone, and all of them."""
    return [*NAMES[:arity], NAMES[:arity]] if arity > 1 else [NAMES[0]]


def remaining(text: str, absent: Iterable[str]) -> str:
    """The simplified expression at coordinates where some operands store no entry."""
    return str(simplified(parsed(text), absent)).replace("[i,j]", "")


def visited(text: str) -> str:
    """Coordinates at which the expression is evaluated, from its merge lattice."""
    lattice = make_lattice(INDICES[1], parsed(text))
    least = [point for point in lattice.points if not any(other < point for other in lattice.points)]
    return "all" if lattice.whole else " or ".join(sorted(" and ".join(sorted(point)) for point in least))


def pattern(text: str) -> str:
    """Format or shared pattern of the result for CSR operands."""
    stmt, _ = infer_format(Assignment(Access(TensorVar("R", CSR), INDICES), parsed(text)))
    return f"pattern of {stmt.lhs.tensor.shares}" if stmt.lhs.tensor.shares else stmt.lhs.tensor.format.name


def operator_rows(arity: int) -> list[tuple[str, ...]]:
    """Rows of an expression, its simplification for each set of absent operands, its iteration space, and the result's pattern."""
    left = [(text, *(remaining(text, absent) for absent in absences(arity))) for text in expressions(arity)]
    return [(*row, visited(row[0]), pattern(row[0])) for row in left]


def reduction_rows() -> list[tuple[str, ...]]:
    """Rows of a reduction's names, its identity, the term of an unstored entry, and the results of empty rows and of rows of size 0."""
    rows: list[tuple[str, ...]] = []
    for op, reduction in REDUCTIONS.items():
        empty = reduction.identity if reduction.of_stored else reduction.evaluate(reduction.identity, 0.0)
        term = "no term" if reduction.of_stored else "the term 0"
        rows.append((spelled(op), f"{reduction.identity:g}", term, f"{empty:g}", f"{reduction.identity:g}"))
        if op == "+=":  # the mean of no coordinates divides by 0
            rows.append((f'`reduce="{MEAN}"`', f"{reduction.identity:g}", term, f"{empty:g}", "nan"))
    for op in ("max=", "min="):  # reductions that test whether terms are nonzero
        start = start_of(op, Binary("!=", TERM, Literal(0.0, "float32")), "float32")
        names = [f'`reduce="{name}"`' for name, joined in JOINED_BY.items() if name in TESTS and joined == op]
        rows.append((", ".join(names), f"{start:g}", "the term 0", "0", f"{start:g}"))
    return rows


def spelled(op: str) -> str:
    """Names of a reduction in the API."""
    named = [name for name, joined in JOINED_BY.items() if name not in (*TESTS, MEAN) and op == ("+=" if joined == "=" else joined)]
    names = [f'`reduce="{name}"`' for name in named]
    return ", ".join(([] if " " in op else [f"`{op}`"]) + names) or "row maximum in `softmax`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def operators_of(arity: int) -> str:
    """Table of operators and functions of an arity."""
    head = ["expression", *(f"{', '.join(absent)} unstored" for absent in absences(arity)), "iteration space", "result, operands in CSR"]
    return table(head, ([*(f"`{cell}`" for cell in row[:-2]), *row[-2:]] for row in operator_rows(arity)))


def reductions() -> str:
    """Table of reductions."""
    head = ["reduction", "identity", "unstored entry", "row without entries", "row of size 0"]
    return table(head, reduction_rows())
