"""Statements as text: they print as they parse, and malformed ones are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from numscorch.errors import ExpressionError, ScheduleError
from numscorch.ir.format import COO, CSC, CSF, CSR, Format, dense
from numscorch.ir.index import (
    SCALAR,
    Access,
    Assignment,
    Binary,
    Blend,
    Blocks,
    Each,
    Expr,
    FlatSum,
    Forall,
    Gallop,
    IndexVar,
    Literal,
    Parallel,
    Positions,
    Serial,
    Specialize,
    Stmt,
    Tag,
    TensorVar,
    Tile,
    Unroll,
    Vector,
    Where,
    accesses_in,
    assignments,
    loops_of,
    map_expr,
    operands_of,
    product,
    result_of,
    variables_in,
)
from numscorch.ir.notation import parse_stmt
from numscorch.ir.verify import verify

TAGS: list[Tag] = [
    Serial(),
    Parallel(),
    Vector(8, 4),
    Vector(16, 0, 3, True),
    Vector(4, 7, 6),
    Vector(8, 2, 1, True),
    Vector(16, 6, overlapped=True),
    Unroll(4),
    Unroll(12),
    Positions(16),
    Positions(4),
    FlatSum(8, 4),
    FlatSum(1, 1),
    Each(),
    Gallop("A"),
    Blend(),
    Blocks(64),
    Tile(64),
    Specialize("kinds"),
    Specialize("tiles"),
    Specialize("coordinates"),
]
TEXTS = [
    "y[i] = A[i,j] * x[j]",
    "s += x[i]",
    "forall(i, y[i] = x[i])",
    "forall(i, forall(j, y[i] += A[i,j] * x[j]))",
    "forall(i, where(y[i] = t, forall(j, t += A[i,j] * x[j])))",
    "where(s = t, parallel_forall(i, where(t += u, unroll_forall<4>(j, u += A[i,j]))))",
    "parallel_forall(i, vector_forall<8 x 4, rest 2, masked>(k, where(C[i,k] = t, forall(j, t += A[i,j] * B[j,k]))))",
    "forall(i, where(y[i] = t, gallop_forall<A1>(j, t += A1[i,j] * B[i,j])))",
    "tile_forall<64>(k, parallel_forall(i, vector_forall<8 x 8, rest 5, masked>(k, where(C[i,k] = t, forall(j, t += A[i,j] * B[j,k])))))",
    "forall(e0, forall(i1, y[e0] += A[e0,i1] * 2))",
    "where(s = t, parallel_forall(i: sums<64, 4096>, unroll_forall<4>(j: sums, t += A[i,j])))",
    "forall(i, y[i] = 0.5 * x[i])",
    "s = t",
]


def tensors_in(stmt: Stmt) -> dict[str, TensorVar]:
    """The tensors of a statement by name; its text does not describe them."""
    return {a.tensor.name: a.tensor for s in assignments(stmt) for a in [s.lhs, *accesses_in(s.rhs)]}


@pytest.mark.parametrize("text", TEXTS)
def test_texts_print_as_they_parse(text: str) -> None:
    assert str(parse_stmt(text)) == text


@pytest.mark.parametrize("tag", TAGS, ids=str)
def test_statement_parses_back_with_every_tag(tag: Tag) -> None:
    stmt = parse_stmt("forall(i, where(y[i] = t, forall(j, t += A[i,j] * x[j] * 3)))", {"A": TensorVar("A", CSR)})
    assert isinstance(stmt, Forall)
    outer = replace(stmt, tag=tag)
    assert isinstance(stmt.body, Where)
    inner = replace(stmt, body=replace(stmt.body, producer=replace(stmt.body.producer, tag=tag)))
    for tagged in (outer, inner):
        assert parse_stmt(str(tagged), tensors_in(tagged)) == tagged
        assert str(tag) in str(tagged)


@pytest.mark.parametrize("fmt", [CSR, CSC, COO(2), Format("ss"), Format("dd", (1, 0))], ids=str)
def test_tensors_are_passed_with_the_text(fmt: Format) -> None:
    A = TensorVar("A", fmt, "float64", "int32")
    stmt = parse_stmt("forall(i, forall(j, y[i] += A[i,j]))", {"A": A})
    assert operands_of(stmt)[0].tensor is A
    assert result_of(stmt).tensor == TensorVar("y", dense(1), strides="1")


def test_spaces_are_ignored() -> None:
    assert parse_stmt(" forall( i ,y[ i ]=x[i]*\n z[i]) ") == parse_stmt("forall(i, y[i] = x[i] * z[i])")


@pytest.mark.parametrize("number", [0.0, 1.0, 2.0, 0.5, 1e-05, 1234567.0, 0.1, 1e30])
def test_numbers_parse_back(number: float) -> None:
    text = str(Assignment(Access(TensorVar("s", SCALAR), ()), Literal(number, "float32")))
    parsed = parse_stmt(text)
    assert isinstance(parsed, Assignment)
    assert parsed.rhs == Literal(number, "float32")


MALFORMED = [
    ("forall(i, y[i] = x[i]", "expected ), found the end", 21),
    ("forall(i y[i] = x[i])", "expected ,, found y", 9),
    ("y[i] x[i]", "expected = or +=, *=, max=, min=, found x", 5),
    ("y[i] = x[i] z[i]", "expected the end", 12),
    ("y[i] =", "expected more, found the end", 6),
    ("", "expected more, found the end", 0),
    ("some_forall<3>(i, y[i] = x[i])", "unknown loop some_forall<3>", None),
    ("vector_forall<8>(i, y[i] = x[i])", "unknown loop vector_forall<8>", None),
    ("tile_forall<0>(i, y[i] = x[i])", "unknown loop tile_forall<0>", None),
    ("forall(i: sums<0>, y += x[i])", "expected sums, found sums<0>", None),
    ("where(y[i] = t)", "expected ,, found )", 14),
    # an operator or bracket is not a name
    ("y[i] = *", "", 7),
    ("y[,] = x[i]", "", 2),
    ("forall(=, y[i] = x[i])", "", 7),
    ("( = x[i]", "", 0),
    # unknown characters are refused
    ("y[i] = $x[i]", "", 7),
    ("y[i] = x[i] ? z[i]", "", 12),
]


@pytest.mark.parametrize(("text", "why", "position"), MALFORMED)
def test_malformed_text_is_refused_with_its_position(text: str, why: str, position: int | None) -> None:
    with pytest.raises(ExpressionError) as error:
        parse_stmt(text)
    sentence, *text_lines, mark = str(error.value).split("\n  ")
    assert why in sentence
    assert text_lines == [text]
    if position is not None:
        assert mark.index("^") == position


def test_nodes_are_values() -> None:
    first, second = (parse_stmt("forall(i, forall(j, y[i] += A[i,j] * x[j]))") for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert len({first, second, map_expr(first, lambda a: replace(a, tensor=replace(a.tensor, dtype="float64")))}) == 2


def test_walkers() -> None:
    stmt = parse_stmt("forall(i, where(y[i] = b[i] * t, forall(j, t += A[i,j] * x[j])))")
    assert [str(a) for a in assignments(stmt)] == ["y[i] = b[i] * t", "t += A[i,j] * x[j]"]
    assert [str(loop.var) for loop in loops_of(stmt)] == ["i", "j"]
    assert [str(a) for a in operands_of(stmt)] == ["A[i,j]", "b[i]", "x[j]"]
    assert str(result_of(stmt)) == "y[i]"
    factors: list[Expr] = [Access(TensorVar(n, dense(1)), (IndexVar(v),)) for n, v in ("ai", "bj", "ci")]
    assert str(product(factors)) == "a[i] * b[j] * c[i]"
    assert [str(v) for v in variables_in(product(factors))] == ["i", "j"]
    assert isinstance(product(factors), Binary)


def nest(text: str, **formats: Format) -> Stmt:
    """A statement whose named operands have the given formats."""
    return parse_stmt(text, {name: TensorVar(name, fmt) for name, fmt in formats.items()})


@pytest.mark.parametrize(
    "stmt",
    [
        nest("forall(i, forall(j, y[i] += A[i,j] * x[j]))", A=CSR),
        nest("forall(j, forall(i, y[i] += A[i,j] * x[j]))", A=CSC),
        nest("forall(j, forall(k, forall(i, C[i,k] += A[i,j] * B[j,k])))", A=CSC),
        nest("forall(i, where(y[i] = t, forall(j, t += A[i,j])))", A=COO(2)),
        nest("forall(i, forall(j, forall(k, y[k] += A[i,j,k])))", A=Format("sds")),
        nest("y[i] = A[i,j] * x[j]", A=CSC),
        nest("tile_forall<8>(j, forall(i, forall(j, y[i] += X[i,j])))"),
        nest("tile_forall<8>(k, tile_forall<8>(l, forall(i, forall(j, forall(k, forall(l, s += A[i,j] * X[j,k,l]))))))", A=CSR),
        nest("tile_forall<8>(i, where(forall(i, y[i] = w[i]), forall(i, w[i] = x[i])))"),
    ],
    ids=str,
)
def test_well_formed_statements_are_returned_unchanged(stmt: Stmt) -> None:
    assert verify(stmt) is stmt


@pytest.mark.parametrize(
    ("stmt", "why"),
    [
        (nest("forall(i, y[i] = x[j])"), "x[j] uses j, which no loop binds"),
        (nest("forall(i, y[j] = x[i])"), "y[j] uses j, which no loop binds"),
        (nest("forall(i, forall(i, y[i] = x[i]))"), "i is bound twice in forall(i, y[i] = x[i])"),
        (nest("forall(i, where(y[i] = t, forall(i, t += x[i])))"), "i is bound twice"),
        (
            nest("forall(j, forall(i, y[i] += A[i,j] * x[j]))", A=CSR),
            "A[i,j] ((i, j) -> (i: dense, j: compressed)) can't be read in the order j, i",
        ),
        (nest("forall(i, forall(j, y[i] += A[i,j]))", A=CSC), "can't be read in the order i, j"),
        (nest("forall(j, forall(i, y[i] += A[i,j]))", A=COO(2)), "can't be read in the order j, i"),
        (nest("forall(k, forall(i, forall(j, s += A[i,j,k])))", A=CSF(3)), "can't be read in the order k, i, j"),
        (nest("forall(i, forall(k, forall(j, y[j] += A[i,j,k])))", A=Format("sds")), "can't be read in the order i, k, j"),
        (nest("where(s = t, forall(i, t += A[i,j]))", A=CSR), "uses j, which no loop binds"),
        (nest("tile_forall<8>(i, y[i] = x[i])"), "no loop runs over the tiles of i in tile_forall<8>(i, y[i] = x[i])"),
        (nest("forall(i, tile_forall<8>(i, forall(i, y[i] = x[i])))"), "i is bound outside of its tiles in tile_forall<8>"),
        (nest("tile_forall<64>(i, tile_forall<8>(i, forall(i, y[i] = x[i])))"), "i is tiled twice in tile_forall<64>"),
        (nest("tile_forall<8>(i, forall(i, forall(i, y[i] = x[i])))"), "i is bound twice in forall(i, y[i] = x[i])"),
    ],
)
def test_malformed_statements_are_refused(stmt: Stmt, why: str) -> None:
    with pytest.raises(ScheduleError) as error:
        verify(stmt)
    assert why in str(error.value)
