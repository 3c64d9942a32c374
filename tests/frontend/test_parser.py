"""einsum expressions parse as in NumPy, and errors mark the position."""

from __future__ import annotations

import numpy as np
import pytest

from numscorch.errors import ExpressionError
from numscorch.frontend.parser import Subscripts, from_sublists, parse_einsum

CAPITALS = "ZYXWVU"

MEANINGS = [
    # implicit result: indices that occur once, in alphabetical order, capitals first
    ("ij,jk", (2, 2), "ij,jk->ik"),
    ("ba", (2,), "ba->ab"),
    ("ij", (2,), "ij->ij"),
    ("ii", (2,), "ii->"),
    ("i,i", (1, 1), "i,i->"),
    ("bA", (2,), "bA->Ab"),
    ("ij,j,i", (2, 1, 1), "ij,j,i->"),
    ("", (0,), "->"),
    (",i", (0, 1), ",i->i"),
    # explicit result
    ("ij->", (2,), "ij->"),
    ("ij->ji", (2,), "ij->ji"),
    ("ij->j", (2,), "ij->j"),
    ("ii->i", (2,), "ii->i"),
    ("iij->ij", (3,), "iij->ij"),
    ("iii->", (3,), "iii->"),
    ("i,j->ji", (1, 1), "i,j->ji"),
    ("ij,jk,kl->il", (2, 2, 2), "ij,jk,kl->il"),
    # spaces are ignored
    (" i j , j k -> i k ", (2, 2), "ij,jk->ik"),
    ("ij , jk", (2, 2), "ij,jk->ik"),
]

ELLIPSES = [
    ("...i", (3,)),
    ("...i->...", (3,)),
    ("i...->...i", (3,)),
    ("...ij,...jk->...ik", (3, 3)),
    ("...ij,jk->...ik", (4, 2)),
    ("...ij,...jk", (4, 3)),
    ("...,...", (2, 1)),
    ("...,...->...", (0, 2)),
    ("b...,...b->...b", (2, 3)),
    ("i...i->...i", (3,)),
    ("...ii->...", (4,)),
    ("i...j->j...i", (2,)),
    (" ... i , j ... -> ... j i", (2, 3)),
]


def explicit_text(subscripts: Subscripts) -> str:
    """The subscripts as explicit text for NumPy, with capitals for dimensions of an ellipsis."""
    letters = {f"e{d}": letter for d, letter in enumerate(CAPITALS)}
    terms = ["".join(letters.get(name, name) for name in term) for term in (*subscripts.operands, subscripts.result)]
    return f"{','.join(terms[:-1])}->{terms[-1]}"


def cubes(ranks: tuple[int, ...]) -> list[np.ndarray]:
    """Arrays of the given ranks, of size 2 in each dimension, with distinct entries."""
    return [np.arange(2.0**rank).reshape((2,) * rank) * 3 + at for at, rank in enumerate(ranks)]


@pytest.mark.parametrize(("expr", "ranks", "meaning"), MEANINGS)
def test_expressions_are_normalized(expr: str, ranks: tuple[int, ...], meaning: str) -> None:
    assert str(parse_einsum(expr, ranks)) == meaning


@pytest.mark.parametrize(("expr", "ranks"), [(e, r) for e, r, _ in MEANINGS] + ELLIPSES)
def test_results_equal_numpys(expr: str, ranks: tuple[int, ...]) -> None:
    arrays = cubes(ranks)
    np.testing.assert_array_equal(np.einsum(explicit_text(parse_einsum(expr, ranks)), *arrays), np.einsum(expr.strip(), *arrays))


def test_tabs_and_lines_are_spaces_too() -> None:
    assert str(parse_einsum("ij,\tjk\n->ik", (2, 2))) == "ij,jk->ik"


def test_ellipsis_dimensions_are_aligned_at_the_right() -> None:
    parsed = parse_einsum("...i,...i->...", (3, 2))
    assert parsed.operands == (("e0", "e1", "i"), ("e1", "i"))
    assert parsed.result == ("e0", "e1")


def test_ellipsis_comes_first_in_an_implicit_result() -> None:
    assert parse_einsum("b...a", (4,)).result == ("e0", "e1", "a", "b")


def test_ellipsis_may_stand_for_nothing() -> None:
    assert str(parse_einsum("...ij,jk->...ik", (2, 2))) == "ij,jk->ik"
    assert str(parse_einsum("...ij->i", (2,))) == "ij->i"


def caret(error: pytest.ExceptionInfo[ExpressionError]) -> tuple[str, str, int]:
    """The message, the marked text, and the position of the caret."""
    why, *text_lines, mark = str(error.value).split("\n  ")
    return why, "\n  ".join(text_lines), mark.index("^")


WRONG = [
    ("ij,jk->iz", (2, 2), 8, "the result's index z is in no operand: the known ones are i, j, k"),
    ("ij,jk->zi", (2, 2), 7, "the result's index z is in no operand"),
    ("ij->ii", (2,), 5, "the result's index i is repeated: name each once"),
    ("ij,jk->iki", (2, 2), 9, "the result's index i is repeated"),
    ("ij,jkl->ik", (2, 2), 3, "'jkl' names 3 dimensions, but its operand has 2: name each, or use ..."),
    ("i,jk->ik", (2, 2), 0, "'i' names 1 dimensions, but its operand has 2"),
    ("ij, j->i", (2, 2), 3, "'j' names 1 dimensions, but its operand has 2"),
    ("...ijk->i", (2,), 0, "names 3 dimensions, but its operand has 2"),
    ("i$j->i", (2,), 1, "'$' is not an index: use letters, commas, one ... in a term, and one ->"),
    ("ij->i$", (2,), 5, "'$' is not an index"),
    ("ij,j1k->i", (2, 2), 4, "'1' is not an index"),
    ("i.j->i", (2,), 1, "'.' is not an index"),
    ("ij..->i", (2,), 2, "'.' is not an index"),
    ("ij->i->j", (2,), 5, "'-' is not an index"),
    ("ij>i", (3,), 2, "'>' is not an arrow"),
    ("ij->i,j", (2,), 5, "',' is not an index"),
    ("ié->i", (2,), 1, "'é' is not an index"),
]


@pytest.mark.parametrize(("expr", "ranks", "position", "why"), WRONG)
def test_errors_mark_the_position(expr: str, ranks: tuple[int, ...], position: int, why: str) -> None:
    with pytest.raises(ExpressionError) as error:
        parse_einsum(expr, ranks)
    sentence, text, at = caret(error)
    assert why in sentence
    assert (text, at) == (expr, position)


@pytest.mark.parametrize(("expr", "ranks"), [("......i", (1,)), ("...i...", (1,)), ("...i...", (2,)), ("...i...,...", (2, 2))])
def test_one_ellipsis_in_a_term(expr: str, ranks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r".*"):
        np.einsum(expr, *cubes(ranks))
    with pytest.raises(ExpressionError, match="is not an index"):
        parse_einsum(expr, ranks)


@pytest.mark.parametrize(
    ("expr", "ranks", "text"),
    [
        ("ij,jk->ik", (2,), "'ij,jk->ik' has 2 terms for 1 operands"),
        ("ij->i", (2, 1), "'ij->i' has 1 terms for 2 operands"),
        ("ij,,jk->ik", (2, 2), "has 3 terms for 2 operands: write one term for each, separated by commas"),
    ],
)
def test_wrong_number_of_operands(expr: str, ranks: tuple[int, ...], text: str) -> None:
    with pytest.raises(ExpressionError) as error:
        parse_einsum(expr, ranks)
    assert text in str(error.value)


SUBLISTS = [
    (([0, 1], [1, 2], [0, 2]), (2, 2)),
    (([0, 1], [1, 2]), (2, 2)),
    (([1, 0],), (2,)),
    (([0, 0],), (2,)),
    (([0, 27], [27, 26]), (2, 2)),
    (([Ellipsis, 0], [Ellipsis]), (3,)),
    (([Ellipsis, 1, 0],), (3,)),
    (((0, 1), (1,), ()), (2, 1)),
    (([np.int64(0), np.int64(1)],), (2,)),
]


@pytest.mark.parametrize(("sublists", "ranks"), SUBLISTS)
def test_sublists_equal_numpys(sublists: tuple[list[int], ...], ranks: tuple[int, ...]) -> None:
    arrays = cubes(ranks)
    args = [x for pair in zip(arrays, sublists, strict=False) for x in pair] + list(sublists[len(arrays) :])
    text, operands = from_sublists(args)
    assert all(operand is array for operand, array in zip(operands, arrays, strict=True))
    np.testing.assert_array_equal(np.einsum(explicit_text(parse_einsum(text, ranks)), *arrays), np.einsum(*args))


@pytest.mark.parametrize("wrong", [[0, 52], [-1], ["i"], 3, "ij", None, [0.0], [Ellipsis, None]])
def test_invalid_sublists_are_refused(wrong: object) -> None:
    with pytest.raises(ExpressionError, match="is not a sublist: give integers from 0 to 51, or"):
        from_sublists([np.ones((2, 2)), wrong])


def test_error_about_a_sublist_does_not_print_a_tensor() -> None:
    with pytest.raises(ExpressionError) as error:
        from_sublists([np.ones((2, 2)), [0, 1], np.ones((200, 200))])
    assert "1., 1." not in str(error.value)


@pytest.mark.parametrize("arrow", [">", "=>", "-"])
def test_a_mistyped_arrow_is_recognized(arrow: str) -> None:
    with pytest.raises(ExpressionError, match=r"is not an arrow: did you mean ->\?"):
        parse_einsum(f"ij,jk{arrow}ik", (2, 2))
