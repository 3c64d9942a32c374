"""Texts of formats, and packed entries."""

from collections.abc import Iterator
from itertools import permutations, product
from math import prod

import numpy as np
import pytest

from numscorch.convert.conversions import converted
from numscorch.errors import FormatError, SizeError
from numscorch.ir.format import COO, CSC, CSF, CSR, DCSR, Format, dense
from numscorch.ir.implicit import Identity
from numscorch.ir.levels import Compressed, Dense, Singleton
from numscorch.tensors.coordinate_order import sorting
from numscorch.tensors.packing import coordinates, index_dtype_for, pack
from numscorch.tensors.pattern import Pattern
from numscorch.tensors.validate import validate

ORDERS = (1, 2, 3, 4)
LETTERS = ["".join(letters) for order in ORDERS for letters in product("dso", repeat=order)]
SIZES = (0, 1, 2, 3, 5)


def random_entries(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Distinct coordinates in random order, often with empty rows."""
    filled = rng.random(shape) < rng.choice([0.0, 0.2, 0.6, 1.0])
    return rng.permutation(np.argwhere(filled)).T.reshape(len(shape), -1).astype(np.int64)


def walk(pattern: Pattern, level: int = 0, position: int = 0, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], int]]:
    """Coordinates and position of each stored entry, read one by one according to the levels."""
    if level == pattern.format.order:
        order = pattern.format.mode_order
        yield tuple(path[order.index(d)] for d in range(len(order))), position
        return
    kind, arrays, size = pattern.format.levels[level], pattern.level_arrays(level), pattern.shape[pattern.format.mode_order[level]]
    if kind.full:
        children = [(c, position * size + c) for c in range(size)]
    elif kind.branchless:
        children = [(int(arrays[0][position]), position)]
    else:
        children = [(int(arrays[1][p]), p) for p in range(arrays[0][position], arrays[0][position + 1])]
    for coordinate, child in children:
        yield from walk(pattern, level + 1, child, (*path, coordinate))


def check_packed(indices: np.ndarray, shape: tuple[int, ...], fmt: Format) -> None:
    pattern, slots, order = pack(indices, shape, fmt)
    validate(pattern)
    values = np.arange(1.0, indices.shape[1] + 1)
    expected = np.zeros(shape)
    expected[tuple(indices)] = values
    stored = np.zeros(pattern.nnz)
    stored[slots] = values[order]

    walked = list(walk(pattern))
    assert [position for _, position in walked] == list(range(pattern.nnz))
    table = coordinates(pattern)
    assert [tuple(column) for column in table.T.tolist()] == [coordinate for coordinate, _ in walked]

    unpacked = np.zeros(shape)
    np.add.at(unpacked, tuple(table.numpy()), stored)
    np.testing.assert_array_equal(unpacked, expected)
    if not any(level.full for level in fmt.levels):
        assert pattern.nnz == indices.shape[1]


@pytest.mark.parametrize("letters", LETTERS)
def test_all_mixes_of_levels_store_packed_entries(letters: str) -> None:
    rng = np.random.default_rng(len(letters))
    orders = list(permutations(range(len(letters))))
    for mode_order in orders if len(orders) < 7 else [orders[k] for k in rng.integers(len(orders), size=6)]:
        for _ in range(3):
            shape = tuple(int(s) for s in rng.choice(SIZES, size=len(letters), p=[0.06, 0.14, 0.2, 0.3, 0.3]))
            check_packed(random_entries(rng, shape), shape, Format(letters, mode_order))


@pytest.mark.parametrize("shape", [(0,), (1,), (0, 3), (3, 0), (1, 1), (0, 0), (1, 0, 2), (1, 1, 1)])
@pytest.mark.parametrize("level", "dso")
def test_empty_and_single_dimensions(shape: tuple[int, ...], level: str) -> None:
    check_packed(np.argwhere(np.ones(shape)).T.astype(np.int64), shape, Format(level * len(shape)))


def test_order_zero_stores_one_value() -> None:
    pattern, slots, _ = pack(np.empty((0, 1), dtype=np.int64), (), Format(""))
    assert pattern.nnz == 1
    assert slots.tolist() == [0]
    assert coordinates(pattern).shape == (0, 1)


def test_arrays_of_common_formats() -> None:
    indices = np.array([[2, 0, 2], [1, 3, 0]])

    def arrays(fmt: Format) -> list[list[list[int]]]:
        return [[array.tolist() for array in level] for level in pack(indices, (3, 4), fmt)[0].arrays]

    assert arrays(CSR) == [[], [[0, 1, 1, 3], [3, 0, 1]]]
    assert arrays(CSC) == [[], [[0, 1, 2, 2, 3], [2, 2, 0]]]
    assert arrays(DCSR) == [[[0, 2], [0, 2]], [[0, 1, 3], [3, 0, 1]]]
    assert arrays(COO(2)) == [[[0, 3], [0, 2, 2]], [[3, 0, 1]]]
    assert arrays(Format("sd")) == [[[0, 2], [0, 2]], []]
    assert arrays(dense(2)) == [[], []]


def test_equal_coordinates_share_a_position() -> None:
    pattern, slots, order = pack(np.array([[1, 0, 1], [2, 1, 2]]), (2, 3), CSR)
    assert pattern.nnz == 2
    assert slots.tolist() == [0, 1, 1]
    assert order.tolist() == [1, 0, 2]


def test_sorted_entries_stay_where_they_are() -> None:
    indices = np.array([[0, 0, 1], [0, 2, 1]])
    assert sorting([indices[0], indices[1]], (2, 3), 3)[0].tolist() == [0, 1, 2]
    assert sorting([indices[1], indices[0]], (3, 2), 3)[0].tolist() == [0, 2, 1]


def test_shapes_beyond_a_linear_key_are_sorted_by_columns() -> None:
    shape = (2**40, 2**40)
    indices = np.array([[5, 2**39, 5], [7, 1, 2**39]])
    order, columns = sorting([indices[0], indices[1]], shape, 3)
    assert order.tolist() == [0, 2, 1]
    assert np.array(columns).tolist() == indices[:, order].tolist()
    pattern, _, _ = pack(indices, shape, DCSR)
    assert pattern.index_dtype == "int64"
    assert coordinates(pattern).tolist() == indices[:, order].tolist()


def test_index_dtype_is_promoted_never_narrowed() -> None:
    entry = np.array([[0], [1]])
    assert pack(entry, (2, 2), CSR)[0].index_dtype == "int32"
    assert pack(entry, (2, 2), CSR, np.int64)[0].index_dtype == "int64"
    assert pack(entry, (2, 2**31), CSR, np.int32)[0].index_dtype == "int64"
    assert index_dtype_for((2,), 2**31) == np.int64
    assert index_dtype_for((2**31 - 1,), 2**31 - 1) == np.int32


def test_a_singleton_below_a_unique_level() -> None:
    fmt = Format((Dense(), Singleton()))
    check_packed(np.array([[0, 1, 2], [2, 0, 2]]), (3, 3), fmt)
    check_packed(np.array([[0, 2], [2, 0]]), (3, 3), Format((Compressed(), Singleton())))
    check_packed(np.array([[0, 2], [2, 0], [1, 1]]), (3, 3, 2), Format((Compressed(), Singleton(unique=False), Singleton())))
    with pytest.raises(FormatError, match=r"level 2 \(singleton\).* position 1 has 0: use a compressed level"):
        pack(np.array([[0, 2], [2, 0]]), (3, 3), fmt)
    with pytest.raises(FormatError, match=r"position 0 has 2: use a compressed level"):
        pack(np.array([[1, 1], [2, 0]]), (3, 3), Format((Compressed(), Singleton())))


def test_entries_that_cannot_be_packed_are_refused() -> None:
    entry = np.array([[0], [1]])
    with pytest.raises(FormatError, match=r"COO\(3\) has 3 dimensions, but shape \(2, 2\) has 2:"):
        pack(entry, (2, 2), COO(3))
    with pytest.raises(FormatError, match=r"level 2 \(identity\) .* cannot store the coordinates \(0, 1\): use a compressed level"):
        pack(entry, (2, 2), Format((Compressed(), Identity())))
    with pytest.raises(SizeError, match=r"level 1 \(dense\) of dense: storing 1099511627776 positions"):
        pack(entry, (2**40, 2**40), dense(2))


def test_derived_data_is_cached() -> None:
    pattern, _, _ = pack(np.array([[0, 1], [1, 0]]), (2, 2), CSR)
    assert coordinates(pattern) is coordinates(pattern)
    assert converted(pattern, CSC) is converted(pattern, CSC)
    assert ("converted", CSC) in pattern.derived


@pytest.mark.parametrize("letters", [letters for letters in LETTERS if len(letters) < 4])
def test_formats_print_as_they_parse(letters: str) -> None:
    for mode_order in permutations(range(len(letters))):
        fmt = Format(letters, mode_order)
        assert Format(str(fmt)) == fmt
        assert eval(repr(fmt), {"Format": Format}) == fmt
        assert fmt.permuted(mode_order).permuted(np.argsort(mode_order).tolist()) == fmt


def test_names() -> None:
    named = {"CSR": CSR, "CSC": CSC, "DCSR": DCSR, "COO(2)": COO(2), "COO(3)": COO(3), "CSF(3)": CSF(3), "dense": dense(3)}
    assert {name: fmt.name for name, fmt in named.items()} == {name: name for name in named}
    assert Format("sd", (1, 0)).name == "sd[1, 0]"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("dx",), "unknown level 'x' in format 'dx'"),
        (("ds", (0, 0)), "mode order [0, 0] is not an order of the 2 dimensions"),
        (("(i, j) -> (i: dense, k: dense)",), "'k' in '(i, j) -> (i: dense, k: dense)' is not one of the dimensions"),
        (("(i, j) -> (i: dense, j: packed)",), "unknown level 'packed'"),
        (("(i) -> (i: singleton)",), "the first level can't be singleton"),
        (("(i) -> (i: compressed(unique=False))",), "so a singleton level must follow it, not None"),
        (("(i) -> (i: dense)", (0,)), "leave it out"),
    ],
)
def test_bad_formats(arguments: tuple[object, ...], text: str) -> None:
    with pytest.raises(FormatError) as caught:
        Format(*arguments)
    assert text in str(caught.value)


def test_dense_positions_are_row_major_in_mode_order() -> None:
    pattern, slots, order = pack(np.array([[0, 1], [2, 1]]), (2, 3), Format("dd", (1, 0)))
    assert (slots.tolist(), order.tolist()) == ([3, 4], [1, 0])
    assert pattern.nnz == prod(pattern.shape)


@pytest.mark.parametrize("text", ["COO(100000)", "CSF(65)", " coo( 2000000000 ) "])
def test_orders_above_64_are_refused_before_levels_are_created(text: str) -> None:
    with pytest.raises(FormatError, match="but a tensor has at most 64"):
        Format(text)
