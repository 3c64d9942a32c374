"""validate refuses index arrays that violate the properties of their levels, and names the position."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.errors import FormatError
from numscorch.ir.format import COO, CSC, CSF, CSR, DCSR, Format
from numscorch.ir.levels import Compressed, Dense, Singleton
from numscorch.tensors.packing import coordinates, pack
from numscorch.tensors.pattern import Pattern
from numscorch.tensors.validate import disorder, validate


def pattern_of(format: Format, shape: tuple[int, ...], *levels: Any) -> Pattern:
    return Pattern(format, shape, tuple(tuple(torch.tensor(array, dtype=torch.int64) for array in level) for level in levels))


BAD: dict[str, tuple[Format, tuple[int, ...], list[Any], str]] = {
    "pos starts late": (CSR, (2, 3), [(), ([1, 1, 2], [0, 1])], "level 2 (compressed) of CSR: pos[0] = 1, but positions start at 0"),
    "pos falls": (CSR, (3, 3), [(), ([0, 2, 1, 2], [0, 1])], "pos[2] = 1 is less than pos[1] = 2: pos may not decrease"),
    "pos ends early": (CSR, (2, 3), [(), ([0, 1, 1], [0, 1])], "pos ends at 1, but crd has 2 entries"),
    "pos ends late": (CSR, (2, 3), [(), ([0, 1, 3], [0, 1])], "pos ends at 3, but crd has 2 entries"),
    "pos is short": (CSR, (2, 3), [(), ([0, 2], [0, 1])], "pos has 2 entries, but its 2 parents need 3"),
    "pos of a root": (
        DCSR,
        (2, 3),
        [([0, 1, 1], [0]), ([0, 1], [0])],
        "level 1 (compressed) of DCSR: pos has 3 entries, but its 1 parents",
    ),
    "negative": (CSR, (2, 3), [(), ([0, 1, 2], [0, -1])], "crd[1] = -1 is outside dimension 1 of size 3: coordinates lie in 0 to 2"),
    "too large": (CSC, (2, 3), [(), ([0, 1, 1, 2], [0, 2])], "level 2 (compressed) of CSC: crd[1] = 2 is outside dimension 0 of size 2"),
    "nothing fits": (CSR, (2, 0), [(), ([0, 1, 1], [0])], "crd[0] = 0 is outside dimension 1 of size 0: it can't store anything"),
    "unsorted": (CSR, (2, 3), [(), ([0, 0, 2], [2, 1])], "position 1, below parent 1, has coordinate 1 after 2: coordinates must increase"),
    "repeated": (CSR, (2, 3), [(), ([0, 2, 2], [1, 1])], "position 1, below parent 0, repeats the coordinate 1: coordinates must increase"),
    "outer level": (DCSR, (3, 3), [([0, 2], [2, 0]), ([0, 1, 2], [0, 0])], "level 1 (compressed) of DCSR: position 1, below parent 0"),
    "list, unsorted": (COO(2), (3, 3), [([0, 2], [1, 1]), ([2, 0],)], "has coordinate (1, 0) after (1, 2)"),
    "list, repeated": (COO(3), (3, 3, 3), [([0, 2], [1, 1]), ([2, 2],), ([0, 0],)], "repeats the coordinate (1, 2, 0)"),
    "list, lengths": (COO(2), (3, 3), [([0, 2], [1, 2]), ([2],)], "level 2 (singleton) of COO(2): crd has 1 entries, but the level above"),
    "list, range": (COO(2), (3, 3), [([0, 1], [1]), ([3],)], "level 2 (singleton) of COO(2): crd[0] = 3 is outside dimension 1 of size 3"),
    "arrays": (CSR, (2, 3), [(), ([0, 0, 0],)], "level 2 (compressed) of CSR takes 2 index arrays ('pos', 'crd'), not 1"),
    "dimensions": (CSR, (2, 3), [(), ([0, 0, 1], [[1]])], "crd has shape (1, 1): pass a contiguous 1-D tensor"),
}


@pytest.mark.parametrize("name", BAD)
def test_violations_are_refused(name: str) -> None:
    format, shape, levels, text = BAD[name]
    with pytest.raises(FormatError) as caught:
        validate(pattern_of(format, shape, *levels))
    assert text in str(caught.value)


@pytest.mark.parametrize("name", ["unsorted", "repeated", "list, unsorted", "list, repeated", "outer level"])
def test_disorder_recommends_a_fix_and_its_check_is_optional(name: str) -> None:
    format, shape, levels, _ = BAD[name]
    pattern = pattern_of(format, shape, *levels)
    validate(pattern, order=False)
    assert "without assume_sorted=True" in str(disorder(pattern))


@pytest.mark.parametrize("column", [-1, 3])
@pytest.mark.parametrize("fmt", [CSR, Format("(i, j) -> (i: dense, j: compressed(ordered=False))")], ids=str)
def test_unchecked_coordinates_out_of_range_are_found_by_sorting(fmt: Format, column: int) -> None:
    """Kernels that sort would write outside of their arrays."""
    pos, crd = torch.tensor([0, 2, 3]), torch.tensor([2, column, 0])
    A = ns.SparseTensor(Pattern(fmt, (2, 3), ((), (pos, crd))), torch.ones(3))
    assert A.is_coalesced() == (fmt == CSR and column == 3)  # this checks the order only
    for sort in (A.coalesce, lambda: ns.sort(A)):
        with pytest.raises(FormatError, match=rf"crd\[1\] = {column} is outside dimension 1 of size 3"):
            sort()


def test_mixed_dtypes_are_refused() -> None:
    pattern = Pattern(CSR, (1, 3), ((), (torch.tensor([0, 1]), torch.tensor([2], dtype=torch.int32))))
    with pytest.raises(FormatError, match=r"crd has dtype torch\.int32, but the first index array has int64"):
        validate(pattern)


def test_strided_arrays_are_refused() -> None:
    pattern = Pattern(CSR, (1, 3), ((), (torch.tensor([0, 2]), torch.tensor([0, 9, 1, 9])[::2])))
    with pytest.raises(FormatError, match="pass a contiguous 1-D tensor"):
        validate(pattern)


def test_coordinates_may_decrease_between_segments() -> None:
    validate(pattern_of(CSR, (4, 3), (), ([0, 0, 2, 2, 3], [1, 2, 0])))
    validate(pattern_of(COO(2), (3, 3), ([0, 3], [0, 0, 1]), ([1, 2, 0],)))
    validate(pattern_of(Format((Dense(), Compressed(unique=False), Singleton())), (2, 3, 3), (), ([0, 1, 2], [2, 0]), ([2, 0],)))


def test_empty_patterns_are_valid() -> None:
    validate(pattern_of(CSR, (0, 3), (), ([0], [])))
    validate(pattern_of(CSF(3), (2, 2, 2), ([0, 0], []), ([0], []), ([0], [])))
    validate(Pattern(Format("dd"), (2, 2), ((), ())))


@dataclass(frozen=True, slots=True)
class Unordered(Compressed):
    """A level with distinct coordinates in any order."""

    @property
    def is_ordered(self) -> bool:
        return False


def test_unordered_levels_refuse_duplicates() -> None:
    format = Format((Dense(), Unordered()))
    validate(pattern_of(format, (2, 3), (), ([0, 2, 3], [2, 0, 2])))
    with pytest.raises(FormatError, match=r"position 2, below parent 0, repeats the coordinate 2"):
        validate(pattern_of(format, (2, 3), (), ([0, 3, 3], [2, 0, 2])))


def test_a_changed_number_is_refused_or_gives_a_valid_matrix() -> None:
    """`validate` refuses a changed number, or the entries are still sorted, distinct and within the shape."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        format = Format(rng.choice(["ds", "ss", "oo", "dss", "ooo", "sso"]))
        shape = (4, 3, 3)[: format.order]
        pattern = pack(np.argwhere(rng.random(shape) < 0.4).T.astype(np.int64), shape, format)[0]
        arrays = [array for level in pattern.arrays for array in level if array.numel()]
        array = arrays[rng.integers(len(arrays))]
        array[rng.integers(array.numel())] = int(rng.integers(-1, 6))
        try:
            validate(pattern)
        except FormatError:
            continue
        table = [tuple(column) for column in coordinates(pattern).T.tolist()]
        assert table == sorted(set(table))
        assert all(0 <= c < size for column in table for c, size in zip(column, shape, strict=True))
