"""Kinds of odd but legal arguments: what numscorch gets, and what torch gets, in place of a sample's argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch

import numscorch as ns

HASHED = {1: "(i) -> (i: hash)", 2: "(i, j) -> (i: dense, j: hash)", 3: "(i, j, k) -> (i: dense, j: hash, k: dense)"}


class Sub(torch.Tensor):
    """A subclass of Tensor."""


@dataclass(frozen=True)
class Oddity:
    """A kind of odd argument: what numscorch gets, and what torch gets, from the sample's value."""

    roles: tuple[str, ...]
    ours: Callable[[Any], Any]
    theirs: Callable[[Any], Any] | None = None  # None: the sample's own value


def both(roles: str, change: Callable[[Any], Any]) -> Oddity:
    """A kind that torch takes, too; inputs of layers, which torch's layers take as tensors only, can be odd in these ways."""
    return Oddity(tuple(roles.replace("dense", "dense input").split()), change, change)


def ours(roles: str, change: Callable[[Any], Any]) -> Oddity:
    """A kind that torch does not take: numscorch's result is that of the sample's own value."""
    return Oddity(tuple(roles.split()), change)


def strided(t: torch.Tensor) -> torch.Tensor:
    """The same numbers with gaps in memory, and dimensions in reversed order."""
    wide = torch.zeros([2 * size for size in reversed(t.shape)], dtype=t.dtype)[tuple([slice(None, None, 2)] * t.ndim)]
    result = wide.permute(*reversed(range(t.ndim)))
    return result.copy_(t)


def backwards(t: torch.Tensor) -> np.ndarray:
    """The same numbers as a NumPy array with negative strides."""
    array = np.ascontiguousarray(np.flip(t.numpy()))
    return np.flip(array)


def read_only(t: torch.Tensor) -> np.ndarray:
    array = t.numpy().copy()
    array.flags.writeable = False
    return array


def conjugated(t: torch.Tensor) -> torch.Tensor:
    return torch.conj(torch.complex(t.float(), t.float() + 1) if not t.is_complex() else t)


def scipys(kind: str) -> Callable[[torch.Tensor], Any]:
    return lambda t: getattr(scipy.sparse, kind)(t.numpy()) if t.ndim in (1, 2) else t.no_such_layout


def layouts(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: getattr(t, name)((1, 1)) if "bs" in name else getattr(t, name)()


def converted(t: torch.Tensor, dtype: str) -> torch.Tensor:
    return (t.abs() if dtype.startswith("u") and t.dtype != torch.bool else t).to(getattr(torch, dtype))


def stacked(t: torch.Tensor) -> torch.Tensor:
    return t[:1] if t.ndim else t


ARGUMENTS: dict[str, Oddity] = {
    "NumPy array": ours("dense index mask", lambda t: t.numpy()),
    "NumPy, negative strides": ours("dense index mask", backwards),
    "NumPy, read-only": ours("dense index mask", read_only),
    "NumPy, big-endian": ours("dense index", lambda t: t.numpy().astype(t.numpy().dtype.newbyteorder(">"))),
    "NumPy matrix": ours("dense", lambda t: np.asmatrix(t.numpy()) if t.ndim == 2 else t.no_such_layout),
    "list": ours("dense index mask", lambda t: t.tolist()),
    "not contiguous": both("dense index mask", strided),
    "expanded": both("dense", lambda t: t[..., :1].expand_as(t)),
    "conjugated": both("dense", conjugated),
    "negated": both("dense", lambda t: torch._neg_view(t)),
    "subclass": both("dense index mask", lambda t: t.as_subclass(Sub)),
    "nn.Parameter": both("dense", lambda t: torch.nn.Parameter(t)),
    "one row": both("dense mask", stacked),
    "no dimensions": both("dense mask", lambda t: t.flatten()[0].clone() if t.numel() else t.sum()),
    "on meta": both("dense index mask", lambda t: t.to("meta")),
    **{f"torch {name}": ours("dense mask", layouts(f"to_sparse_{name}")) for name in ("coo", "csr", "csc", "bsr", "bsc")},
    **{f"SciPy {name}": ours("dense mask", scipys(name)) for name in ("csr_array", "coo_matrix", "dia_array", "bsr_array")},
    "a SparseTensor": ours("dense mask", lambda t: ns.from_torch(t)),
    "a hashed SparseTensor": ours("dense mask", lambda t: ns.from_torch(t, HASHED[t.ndim])),
    **{
        f"{dtype} operand": both("dense mask", lambda t, dtype=dtype: converted(t, dtype))
        for dtype in ("uint8", "bool", "int8", "int32", "float64", "bfloat16", "complex64", "uint16", "float8_e4m3fn")
    },
    **{f"torch {name} first": ours("sparse", layouts(f"to_sparse_{name}")) for name in ("coo", "csr", "csc", "bsr")},
    "SciPy first": ours("sparse", scipys("csr_array")),
    "SciPy coo first": ours("sparse", scipys("coo_array")),
    **{
        f"{dtype} values": both("sparse", lambda t, dtype=dtype: converted(t, dtype))
        for dtype in ("uint8", "bool", "int8", "int32", "int64", "float64", "float16", "bfloat16", "complex64")
    },
    "all zero": both("sparse", torch.zeros_like),
    "nothing unstored": both("sparse", lambda t: t + 10 if t.dtype != torch.bool else torch.ones_like(t)),
    "infinite and NaN": both(
        "sparse", lambda t: torch.where(t > 1, torch.inf, torch.where(t < -1, torch.nan, t)) if t.is_floating_point() else t
    ),
    "a SparseParameter": Oddity(("sparse",), lambda t: ns.nn.Parameter(ns.from_torch(t)), torch.nn.Parameter),
    "read-only values": ours("sparse", lambda t: (A := ns.from_torch(t)).with_values(read_only(A.values))),
    "values backwards in memory": ours("sparse", lambda t: (A := ns.from_torch(t)).with_values(backwards(A.values))),
    "values with gaps": ours("sparse", lambda t: (A := ns.from_torch(t)).with_values(strided(A.values))),
    "negated values": Oddity(
        ("sparse",), lambda t: (A := ns.from_torch(t)).with_values(torch._neg_view(A.values)), lambda t: torch.where(t == 0, t, -t)
    ),
    "conjugated values": Oddity(
        ("sparse",),
        lambda t: (A := ns.from_torch(t.to(torch.complex64) * (1 + 1j))).with_values(A.values.conj()),
        lambda t: t.to(torch.complex64) * (1 - 1j),
    ),
    "subclass as values": ours("sparse", lambda t: (A := ns.from_torch(t)).with_values(A.values.as_subclass(Sub))),
    "NumPy integer": both("dim int", lambda d: np.int64(d) if isinstance(d, int) else tuple(map(np.int64, d))),
    "NumPy uint8": both("dim int", lambda d: np.uint8(d) if isinstance(d, int) else tuple(map(np.uint8, d))),
    "NumPy 0-d integer": ours("dim int", lambda d: np.array(d)),
    "0-d tensor": ours("dim int", lambda d: torch.tensor(d) if isinstance(d, int) else tuple(map(torch.tensor, d))),
    "negative": both("dim", lambda d: d - 2 if isinstance(d, int) else tuple(each - 2 for each in d)),
    "far out": both("dim int", lambda d: 2**40 if isinstance(d, int) else (2**40,)),
    "beyond 64 bits": both("dim int", lambda d: 2**70),
    "minus one": both("int", lambda d: -1),
    "zero": both("int dim", lambda d: 0),
    "minus 2^63": both("int dim", lambda d: -(2**63)),
    "a list": both("dim", lambda d: [d] if isinstance(d, int) else list(d)),
    "an empty list": both("dim", lambda d: []),
    "an empty tuple": both("dim", lambda d: ()),
    "True": both("dim int", lambda d: True),
    "a fraction": both("dim int", lambda d: 1.5),
    "a whole float": both("dim int", lambda d: 1.0),
    "None": both("dim int", lambda d: None),
    "float64 scalar": both("num", lambda x: np.float64(x)),
    "float32 scalar": both("num", lambda x: np.float32(x)),
    "int64 scalar": both("num", lambda x: np.int64(x)),
    "int8 scalar": both("num", lambda x: np.int8(x)),
    "bool scalar": both("num", lambda x: np.bool_(x)),
    "complex scalar": both("num", lambda x: np.complex64(x + 1j)),
    "0-d NumPy": ours("num", lambda x: np.array(x)),
    "0-d torch": both("num", lambda x: torch.tensor(x)),
    "1-element torch": both("num", lambda x: torch.tensor([x])),
    "bool number": both("num", bool),
    "complex number": both("num", lambda x: x + 1j),
    "infinity": both("num", lambda x: float("inf")),
    "nan": both("num", lambda x: float("nan")),
    "2^63": both("num", lambda x: 2**63),
    "-2^63": both("num", lambda x: -(2**63)),
    "int index list": ours("index", lambda t: t.tolist()),
    "int32 index": both("index", lambda t: t.int()),
    "int16 index": both("index", lambda t: t.short()),
    "uint8 index": both("index", lambda t: t.byte()),
    "bool index": both("index", lambda t: t.bool()),
    "float index": both("index", lambda t: t.float()),
    "no index": both("index", lambda t: t[:0]),
    "empty list index": both("index", lambda t: []),
    "negative index": both("index", lambda t: t - 2),
    "index out of range": both("index", lambda t: t + 100),
    "NumPy int32 index": ours("index", lambda t: t.numpy().astype(np.int32)),
    "list of sizes": both("size", list),
    "torch.Size": both("size", torch.Size),
    "NumPy sizes": both("size", lambda s: tuple(map(np.int64, s))),
    "array of sizes": ours("size", lambda s: np.array(s)),
    "tensor sizes": ours("size", lambda s: tuple(map(torch.tensor, s))),
    "negative sizes": both("size", lambda s: tuple(-2 for _ in s)),
    "huge sizes": both("size", lambda s: tuple(2**40 for _ in s)),
    "float sizes": both("size", lambda s: tuple(map(float, s))),
    "no sizes": both("size", lambda s: ()),
}
