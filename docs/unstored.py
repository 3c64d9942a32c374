"""What operators do to entries that aren't stored: the tables of docs/OPERATORS.md, from ``numscorch.ir.functions``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from numscorch.compute.reductions import JOINED_BY, TESTS
from numscorch.ir.format import CSR
from numscorch.ir.functions import FUNCTIONS, INFIX, REDUCTIONS, simplified, start_of
from numscorch.ir.index import Access, Assignment, Binary, Expr, IndexVar, Literal, TensorVar
from numscorch.ir.lattice import make_lattice
from numscorch.ir.notation import parse_expr
from numscorch.schedule.format_inference import infer_format

NAMES = "ABC"
MEAN = "mean"
INDICES = (IndexVar("i"), IndexVar("j"))
TERM = Access(TensorVar("A", CSR), INDICES)
TENSORS = {name: TensorVar(name, CSR) for name in NAMES}


def expressions(arity: int) -> list[str]:
    """Every operator and function of so many operands."""
    called = [f"{name}({', '.join(NAMES[:arity])})" for name, function in FUNCTIONS.items() if function.arity == arity]
    return [f"A {op} B" for op in INFIX] + called if arity == 2 else called


def parsed(text: str) -> Expr:
    """An expression of matrices."""
    for name in NAMES:
        text = text.replace(name, f"{name}[i,j]")
    return parse_expr(text, TENSORS)


def absences(arity: int) -> list[str]:
    """Each operand alone, and all of them."""
    return [*NAMES[:arity], NAMES[:arity]] if arity > 1 else [NAMES[0]]


def remaining(text: str, absent: Iterable[str]) -> str:
    """What is left of an expression where some operands store nothing."""
    return str(simplified(parsed(text), absent)).replace("[i,j]", "")


def visited(text: str) -> str:
    """At which coordinates the expression is evaluated, by its merge lattice."""
    lattice = make_lattice(INDICES[1], parsed(text))
    least = [point for point in lattice.points if not any(other < point for other in lattice.points)]
    return "all" if lattice.whole else " or ".join(sorted(" and ".join(sorted(point)) for point in least))


def pattern(text: str) -> str:
    """How the result of CSR matrices is stored."""
    stmt, _ = infer_format(Assignment(Access(TensorVar("R", CSR), INDICES), parsed(text)))
    return f"{stmt.lhs.tensor.shares}'s" if stmt.lhs.tensor.shares else stmt.lhs.tensor.format.name


def operator_rows(arity: int) -> list[tuple[str, ...]]:
    """An expression, what is left of it without each set of operands, the coordinates visited, and the result's pattern."""
    left = [(text, *(remaining(text, absent) for absent in absences(arity))) for text in expressions(arity)]
    return [(*row, visited(row[0]), pattern(row[0])) for row in left]


def reduction_rows() -> list[tuple[str, ...]]:
    """Each reduction's names, its identity, what a coordinate without an entry is, and what rows without entries and of size 0 give."""
    rows: list[tuple[str, ...]] = []
    for op, reduction in REDUCTIONS.items():
        empty = reduction.identity if reduction.of_stored else reduction.evaluate(reduction.identity, 0.0)
        term = "no term" if reduction.of_stored else "the term 0"
        rows.append((spelled(op), f"{reduction.identity:g}", term, f"{empty:g}", f"{reduction.identity:g}"))
        if op == "+=":  # the mean's sum is divided by 0 where there are no coordinates
            rows.append((f'`reduce="{MEAN}"`', f"{reduction.identity:g}", term, f"{empty:g}", "nan"))
    for op in ("max=", "min="):  # of tests whether a term is not 0
        start = start_of(op, Binary("!=", TERM, Literal(0.0, "float32")), "float32")
        names = [f'`reduce="{name}"`' for name, joined in JOINED_BY.items() if name in TESTS and joined == op]
        rows.append((", ".join(names), f"{start:g}", "the term 0", "0", f"{start:g}"))
    return rows


def spelled(op: str) -> str:
    """How a user writes a reduction."""
    named = [name for name, joined in JOINED_BY.items() if name not in (*TESTS, MEAN) and op == ("+=" if joined == "=" else joined)]
    names = [f'`reduce="{name}"`' for name in named]
    return ", ".join(([] if " " in op else [f"`{op}`"]) + names) or "the largest entry, in `softmax`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def operators_of(arity: int) -> str:
    """The table of operators and functions of so many operands."""
    head = ["expression", *(f"no {' and no '.join(absent)}" for absent in absences(arity)), "visited", "result of CSR"]
    return table(head, ([*(f"`{cell}`" for cell in row[:-2]), *row[-2:]] for row in operator_rows(arity)))


def reductions() -> str:
    """The table of reductions."""
    head = ["reduction", "identity", "a coordinate without an entry", "a row without entries", "a row of size 0"]
    return table(head, reduction_rows())
