"""Selections and other rearrangements of a tensor of any order, as functions that serve dense and sparse tensors alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

KEYS: dict[str, Callable[[int], Any]] = {
    "0": lambda n: 0,
    "-1": lambda n: -1,
    "::2": lambda n: slice(None, None, 2),
    "1:-1": lambda n: slice(1, -1),
    "-2::3": lambda n: slice(-2, None, 3),
    "n:": lambda n: slice(n, None),
    "[0, 0]": lambda n: [0, 0],
    "[2, 0, 1]": lambda n: [2 % n, 0, 1],
    "[-1, 1, -1]": lambda n: [-1, 1, -1],
    "[]": lambda n: [],
    "all, backwards": lambda n: list(range(n))[::-1],
    "int32 tensor": lambda n: torch.tensor([n - 1, 0, 0], dtype=torch.int32),
    "array": lambda n: np.array([1, 0]),
    "mask": lambda n: torch.arange(n) % 3 != 1,
    "list mask": lambda n: [at % 2 == 1 for at in range(n)],
    "empty mask": lambda n: torch.zeros(n, dtype=torch.bool),
}  # fmt: skip


def _at(dim: int, key: Any) -> tuple[Any, ...]:
    return (*[slice(None)] * dim, key)


def _getitem(A: Any, key: Any) -> Any:
    return A[key]


def _along(dim: int, n: int) -> dict[str, Callable[[Any], Any]]:
    """Operators along one dimension of size n."""
    picked = torch.tensor([n - 1, 0, n - 1])
    return {
        **{f"A[{':, ' * dim}{name}]": partial(_getitem, key=_at(dim, key(n))) for name, key in KEYS.items()},
        f"index_select({dim}, [n - 1, 0, n - 1])": lambda A: torch.index_select(A, dim, picked),
        f"index_select({dim}, [])": lambda A: torch.index_select(A, dim, picked[:0]),
        f"narrow({dim}, 1, n - 1)": lambda A: torch.narrow(A, dim, 1, n - 1),
        f"narrow({dim}, -1, 1)": lambda A: A.narrow(dim, -1, 1),
        f"select({dim}, 1)": lambda A: torch.select(A, dim, 1),
        f"split(2, {dim})": lambda A: torch.split(A, 2, dim)[-1],
        f"split([1, n - 1], {dim})": lambda A: torch.split(A, [1, n - 1], dim)[1],
        f"chunk(2, {dim})": lambda A: torch.chunk(A, 2, dim)[0],
        f"tensor_split(3, {dim})": lambda A: torch.tensor_split(A, 3, dim)[1],
        f"unbind({dim})": lambda A: torch.unbind(A, dim)[-1],
        f"flip({dim})": lambda A: torch.flip(A, [dim]),
        f"roll(2, {dim})": lambda A: torch.roll(A, 2, dim),
        f"repeat_interleave(2, {dim})": lambda A: torch.repeat_interleave(A, 2, dim),
        f"cat({dim})": lambda A: torch.cat([A, A[_at(dim, [1, 0])]], dim),
        f"stack({dim})": lambda A: torch.stack([A, 2 * A], dim),
        f"unsqueeze({dim})": lambda A: torch.unsqueeze(A, dim),
        f"transpose(0, {dim})": lambda A: torch.transpose(A, 0, dim),
        f"gather({dim})": lambda A: torch.gather(A, dim, torch.full(_with(A.shape, dim, 2), n - 1)),
        f"take_along_dim({dim})": lambda A: torch.take_along_dim(A, torch.full(_with((1,) * A.ndim, dim, 3), 1), dim),
        f"cumsum({dim})": lambda A: torch.cumsum(A, dim),
        f"diff({dim})": lambda A: torch.diff(A, dim=dim),
        f"sum({dim})": lambda A: torch.sum(A, dim),
        f"amax({dim})": lambda A: torch.amax(A, dim),
        f"topk(2, {dim})": lambda A: torch.topk(A, 2, dim).values.detach(),  # zeros tie
        f"argmax({dim})": lambda A: torch.argmax(A, dim),
        f"A[{':, ' * dim}[1, 0]][{':, ' * dim}::2]": lambda A: A[_at(dim, [1, 0, 1])][_at(dim, slice(None, None, 2))],
    }


def _with(shape: Any, dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _of_pairs(first: int, second: int) -> dict[str, Callable[[Any], Any]]:
    """Operators on two dimensions."""
    both = f"{first}, {second}"
    diagonals = {f"diagonal({k}, {both})": partial(torch.diagonal, offset=k, dim1=first, dim2=second) for k in (-2, 0, 1)}
    return {
        **diagonals,
        f"diagonal({second}, {first})": lambda A: torch.diagonal(A, 0, second, first),
        f"roll({both})": lambda A: torch.roll(A, (1, -2), (first, second)),
        f"flip({both})": lambda A: torch.flip(A, (first, second)),
        f"rot90({both})": lambda A: torch.rot90(A, 1, (first, second)),
        f"transpose({both})": lambda A: torch.transpose(A, first, second),
        f"list at {first}, slice at {second}": lambda A: A[_at(first, [1, 0, 0])][_at(second, slice(1, None, 2))],
        f"slice at {first}, list at {second}": lambda A: A[(*_at(first, slice(1, None)), *_at(second - first - 1, [2, 0]))],
        f"lists at {both}": lambda A: A[(*_at(first, [1, 0, 0]), *_at(second - first - 1, [2, 0, -1]))],
        f"number at {first}, list at {second}": lambda A: A[(*_at(first, -1), *_at(second - first - 1, [1, 1, 0]))],
    }


def _of_whole(shape: tuple[int, ...]) -> dict[str, Callable[[Any], Any]]:
    """Operators on all entries."""
    return {
        "count_nonzero": torch.count_nonzero,
        "count_nonzero(0)": lambda A: torch.count_nonzero(A, 0),
        "nonzero": torch.nonzero,
        "argwhere": torch.argwhere,
        "0 in A": lambda A: 0 in A,
        "2 in A": lambda A: 2 in A,
        "all": torch.all,
        "any(0)": lambda A: torch.any(A, 0),
        "A == A[backwards]": lambda A: torch.flip(A, [0]) == A,
        "A != 0": lambda A: A != 0,
        "logical_not": torch.logical_not,
        "logical_xor": lambda A: torch.logical_xor(A, torch.flip(A, [0])),
        "equal": lambda A: torch.equal(A, torch.flip(torch.flip(A, [0]), [0])),
        "not equal": lambda A: torch.equal(A, torch.flip(A, [0])),
        "min": torch.min,
        "max": torch.max,
        "argmin": torch.argmin,
        "cummax": lambda A: torch.cummax(A, 0).values,
        "cummin": lambda A: torch.cummin(A, -1).values,
        "cumprod": lambda A: torch.cumprod(A, -1),
        "logcumsumexp": lambda A: torch.logcumsumexp(A, 0),
        "nan_to_num": torch.nan_to_num,
        "where": lambda A: torch.where(A != 0, A, 3 * A),
        "sign": torch.sgn,
        "real": torch.real,
        "conj": lambda A: torch.conj(A) * 1,
        "A / 2": lambda A: A / 2,
        "A * scalar": lambda A: A * 2,
        "exp": torch.exp,
        "concat": lambda A: torch.concat([torch.flip(A, [0]), A, A[:1]]),
        "concat of two types": lambda A: torch.cat([A, A != 0]),
        "list": lambda A: list(A)[1],
        "len": len,
        "tolist": lambda A: A.tolist(),
        "new_zeros": lambda A: A.new_zeros(2),
        "ones_like, dense": lambda A: torch.ones_like(A, layout=torch.strided),
        "reshape_as": lambda A: A.reshape_as(torch.empty(shape[::-1])),
        "view_as": lambda A: A.view_as(torch.empty(1, *shape)),
        "expand_as": lambda A: A.expand_as(torch.empty(2, *shape)),
        "sum_to_size": lambda A: A.sum_to_size(*shape[:-1], 1),
        "type_as": lambda A: A.type_as(torch.empty(1, dtype=torch.float64)),
        "squeeze": lambda A: A[:1].squeeze(),
        "mul_": lambda A: A.clone().mul_(A[-1]),
        "A[[0, 1]] = 0": lambda A: _assigned(A, [0, 1], 0),
        "A[::2] = A[::2]": lambda A: _assigned(A, slice(None, None, 2), 2 * A[::2]),
        "A[A != 0] = 1": lambda A: _assigned(A, A != 0, 1),
        "outer": lambda A: torch.outer(A.flatten()[:5], A.flatten()[-5:]),
        "tensordot": lambda A: torch.tensordot(A, torch.flip(A, [0]), len(shape)),
        "norm": lambda A: torch.linalg.vector_norm(A),
        "mean(0)": lambda A: torch.mean(A, 0),
        "var(-1)": lambda A: torch.var(A, -1),
        "logsumexp(-1)": lambda A: torch.logsumexp(A, -1),
        "prod(-1)": lambda A: torch.prod(A, -1),
        "softplus": torch.nn.functional.softplus,
    }


def _assigned(A: Any, key: Any, value: Any) -> Any:
    A = A.clone()
    A[key] = value
    return A


def selections(shape: tuple[int, ...]) -> dict[str, Callable[[Any], Any]]:
    """All selections from tensors of a shape with at least two coordinates in each dimension."""
    order, dims = len(shape), range(len(shape))
    table: dict[str, Callable[[Any], Any]] = {}
    for dim in dims:
        table |= _along(dim, shape[dim])
    for first in dims:
        for second in dims[first + 1 :]:
            table |= _of_pairs(first, second)
    table |= {
        "A[all numbers]": lambda A: A[(1,) * order],
        "A[..., None]": lambda A: A[..., None],
        "A[None, ::2]": lambda A: A[None, ::2],
        "A[..., 1:]": lambda A: A[..., 1:],
        "A[index]": lambda A: A[torch.tensor([[0, 1], [2, 0]])],
        "A[A > 0]": lambda A: A[A > 0],
        "A[dense mask]": lambda A: A[torch.arange(A.numel()).reshape(A.shape) % 3 == 0],
        "masked_select": lambda A: torch.masked_select(A, torch.arange(shape[-1]) % 2 == 0),
        "masked_fill": lambda A: torch.masked_fill(A, torch.arange(shape[-1]) % 2 == 0, 0),
        "take": lambda A: torch.take(A, torch.tensor([[0, -1], [5, 5]])),
        "reshape(-1)": lambda A: torch.reshape(A, (-1,)),
        "permute": lambda A: torch.permute(A, tuple(dims)[::-1]),
        "flip all": lambda A: torch.flip(A, tuple(dims)),
        "roll all": lambda A: torch.roll(A, 3),
        "tile": lambda A: torch.tile(A, (2,)),
        "expand": lambda A: A.unsqueeze(0).expand(2, *shape),
        "pad": lambda A: torch.nn.functional.pad(A, (1, -1)),
        "clone": lambda A: A.clone(),
        "A + A[backwards]": lambda A: A + torch.flip(A, [0]),
        "A * A[backwards]": lambda A: A * torch.flip(A, [0]),
        "sum": lambda A: A.sum(),
    }
    table |= _of_whole(shape)
    if order > 1:
        table |= {
            "fliplr": torch.fliplr,
            "flipud": torch.flipud,
            "adjoint": torch.adjoint,
            "vsplit": lambda A: torch.vsplit(A, [1])[1],
            "swapaxes": lambda A: torch.swapaxes(A, 0, 1),
            "moveaxis": lambda A: torch.moveaxis(A, 0, 1),
            "A[:, [1, 0]] = 0": lambda A: _assigned(A, _at(1, [1, 0]), 0),
            **{f"tril({k})": partial(torch.tril, diagonal=k) for k in (-1, 0, 2)},
            **{f"triu({k})": partial(torch.triu, diagonal=k) for k in (-1, 0, 2)},
            "flatten(0, 1)": lambda A: torch.flatten(A, 0, 1),
            "A[mask of two]": lambda A: A[torch.arange(shape[0] * shape[1]).reshape(shape[:2]) % 4 == 1],
        }
    if order == 2:
        table |= {
            "trace": torch.trace,
            "diag(1)": lambda A: torch.diag(A, 1),
            "A[[0, 2]] @ A.t()": lambda A: A[[0, 2]] @ A.t(),
            "rows of a product": lambda A: (A @ A.t())[[1, 1, 0]],
            "vstack": lambda A: torch.vstack([A, A[1]]),
            "hstack": lambda A: torch.hstack([A, A[:, [0]]]),
            "block_diag": lambda A: torch.block_diag(A, A[:2]),
            "repeat_interleave by counts": lambda A: torch.repeat_interleave(A, torch.arange(shape[0]) % 3, 0),
        }
    return {name if name.startswith("A") else f"A.{name}": operator for name, operator in table.items()}
