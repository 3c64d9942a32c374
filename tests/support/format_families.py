"""Formats by kind of level: implicit, split, padded, unordered, dense or plain; and random tensors for them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import numscorch as ns

FORMATS: dict[int, dict[str, tuple[str, ...]]] = {
    1: {
        "plain": ("s",),
        "dense": ("d",),
        "unordered": ("(i) -> (i: compressed(ordered=False))", "(i) -> (i: hash)"),
        "padded": ("(i) -> (i: bitmap)", "(i) -> (i: fixed)"),
        "split": (
            "(i) -> (i // 2: dense, i % 2: compressed)",
            "(i) -> (i // 2: compressed, i % 2: dense)",
            "(i) -> (i // 2: dense, i % 2: bitmap)",
            "(i) -> (i // 2: dense, i % 2: causal)",
        ),
    },
    2: {
        "plain": ("ds", "ds", "ss", "oo", "sd", "(i, j) -> (j: dense, i: compressed)", "(i, j) -> (j: compressed, i: compressed)"),
        "dense": ("dd", "(i, j) -> (j: dense, i: dense)"),
        "implicit": (
            "(i, j) -> (i: dense, j: identity)",
            "(i, j) -> (i: compressed, j: identity)",
            "(i, j) -> (j: dense, i: identity)",
            "(i, j) -> (i: dense, j: band(1, 1))",
            "(i, j) -> (i: dense, j: band(0, 2))",
            "(i, j) -> (j: compressed, i: band(1, 0))",
            "(i, j) -> (i: dense, j: causal)",
            "(i, j) -> (j: dense, i: causal)",
            "(i, j) -> (j - i: compressed, i: range, j: offset)",
            "(i, j) -> (j - i: compressed, i: range, j: offset)",
            "(i, j) -> (i - j: compressed, j: range, i: offset)",
        ),
        "split": (
            "(i, j) -> (i // 2: dense, j: dense, i % 2: compressed)",
            "(i, j) -> (i // 2: dense, j: dense, i % 2: bitmap)",
            "(i, j) -> (i // 2: dense, j: dense, i % 2: hash)",
            "(i, j) -> (i // 2: dense, j: compressed, i % 2: bitmap)",
            "(i, j) -> (j // 2: compressed, i: dense, j % 2: dense)",
            "(i, j) -> (j // 3: dense, i: compressed, j % 3: compressed)",
            "(i, j) -> (i: dense, j // 2: compressed, j % 2: dense)",
            "(i, j) -> (i: dense, j // 2: dense, j % 2: compressed)",
            "(i, j) -> (i // 2: dense, j // 2: compressed, i % 2: dense, j % 2: dense)",
            "(i, j) -> (i // 2: dense, j // 3: bitmap, i % 2: dense, j % 3: compressed)",
            "(i, j) -> (i % 2: dense, j: compressed, i // 2: dense)",
            "(i, j) -> (i // 2: dense, j // 2: identity, i % 2: dense, j % 2: dense)",
        ),
        "padded": (
            "(i, j) -> (i: dense, j: fixed)",
            "(i, j) -> (j: dense, i: fixed)",
            "(i, j) -> (i: dense, j: bitmap)",
            "(i, j) -> (j: compressed, i: bitmap)",
            "(i, j) -> (i: bitmap, j: dense)",
        ),
        "unordered": (
            "(i, j) -> (i: dense, j: compressed(ordered=False))",
            "(i, j) -> (j: compressed(ordered=False), i: compressed(ordered=False))",
            "(i, j) -> (i: dense, j: hash)",
            "(i, j) -> (j: hash, i: compressed)",
            "(i, j) -> (i: hash, j: hash)",
        ),
    },
    3: {
        "plain": ("sss", "ooo", "dss", "dds", "sds", "(i, j, k) -> (k: compressed, i: dense, j: compressed)"),
        "dense": ("ddd", "(i, j, k) -> (k: dense, i: dense, j: dense)"),
        "implicit": (
            "(i, j, k) -> (i: dense, j: dense, k: causal)",
            "(i, j, k) -> (i: compressed, j: identity, k: dense)",
            "(i, j, k) -> (i: dense, j: band(1, 1), k: compressed)",
            "(i, j, k) -> (k: dense, j: identity, i: band(0, 1))",
            "(i, j, k) -> (i: dense, j: compressed, k: identity)",
        ),
        "split": (
            "(i, j, k) -> (i // 2: dense, j: dense, i % 2: dense, k: compressed)",
            "(i, j, k) -> (k // 2: dense, i: compressed, j: dense, k % 2: bitmap)",
            "(i, j, k) -> (i: dense, j // 2: compressed, k: dense, j % 2: dense)",
        ),
        "padded": ("(i, j, k) -> (i: dense, j: fixed, k: dense)", "(i, j, k) -> (i: dense, j: bitmap, k: compressed)"),
        "unordered": ("(i, j, k) -> (i: dense, j: hash, k: dense)", "(i, j, k) -> (i: hash, j: compressed, k: compressed(ordered=False))"),
    },
    4: {"plain": ("ssss", "oooo"), "dense": ("dddd",)},
}
FAMILIES = ("implicit", "split", "padded", "unordered", "dense", "plain")
FAMILY_WEIGHTS = (5, 5, 3, 3, 3, 4)
FAMILY_OF = {text: family for of_order in FORMATS.values() for family, texts in of_order.items() for text in texts}
RESULTS = ("plain", "plain", "padded", "unordered", "split", "dense", "implicit")


def packed(full: Tensor, fmt: ns.Format, numbers: np.random.Generator) -> ns.SparseTensor:
    """A tensor with a random subset of the entries that the format can store, including explicit zeros."""
    shape = tuple(full.shape)
    places = np.argwhere(np.ones(shape)).T.reshape(len(shape), -1)
    kept = numbers.random(places.shape[1]) < numbers.choice((0.0, 0.3, 0.6, 1.0), p=(0.1, 0.3, 0.3, 0.3))
    kept &= _has_room(fmt, places, shape)
    places = places[:, kept]
    return ns.from_coo(places, full[tuple(torch.from_numpy(places))], shape).to(fmt)


def _has_room(fmt: ns.Format, places: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Mask of the coordinates that a format with implicit levels can store."""
    room = np.ones(places.shape[1], dtype=bool)
    for level, part, above in zip(fmt.levels[1:], fmt.parts[1:], fmt.parts[:-1], strict=True):
        coordinate, outer = part.of(places, shape), above.of(places, shape)
        if level.spelling == "identity":
            room &= coordinate == outer
        elif level.spelling == "causal":
            room &= coordinate <= outer
        elif level.spelling == "band":
            room &= (coordinate >= outer - level.lower) & (coordinate <= outer + level.upper)
    return room


def with_junk(A: ns.SparseTensor, junk: float) -> Tensor:
    """The values of A, with ``junk`` at padding positions."""
    count = A.values.numel()
    numbered = A.with_values(torch.arange(1.0, count + 1, dtype=torch.float64)).to_dense().flatten().long()
    reached = torch.zeros(count + 1, dtype=torch.bool).index_fill(0, numbered, True)[1:]
    return torch.where(reached.reshape(A.values.shape), A.values, torch.tensor(junk).to(A.dtype))
