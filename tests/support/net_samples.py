"""Arguments of sample calls: tokens of ``net_rows`` to tensors, sizes and numbers, each with its role."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

import torch

import numscorch as ns

FORMATS: dict[int, tuple[str, ...]] = {
    1: ("(i) -> (i: compressed)", "(i) -> (i: hash)", "(i) -> (i: dense)"),
    2: (
        "CSR",
        "COO(2)",
        "DCSR",
        "CSC",
        "(i, j) -> (i: dense, j: hash)",
        "(i, j) -> (j: dense, i: hash)",
        "(i, j) -> (i: compressed, j: dense)",
        "BCSR(2, 2)",
        "(i, j) -> (i: hash, j: hash)",
        "ELL",
        "(i, j) -> (i: dense, j: dense)",
    ),
    3: (
        "(i, j, k) -> (i: dense, j: compressed, k: dense)",
        "COO(3)",
        "CSF(3)",
        "(i, j, k) -> (i: dense, j: hash, k: dense)",
        "(i, j, k) -> (k: compressed, i: dense, j: compressed)",
        "(i, j, k) -> (i: dense, j: dense, k: dense)",
    ),
}
SPARSE = {"S": "mn", "R": "mn", "Q": "nm", "P": "mm", "W": "2mn", "s": "n", "B": "mn"}  # shapes
DENSE = {"D": "mn", "X": "n3", "v": "n", "u": "m", "Y": "2n3", "H": "2mn"}
FIXED = {  # arguments of constructors and layers
    "C": ("index", torch.tensor([[0, 0, 1, 3, 3], [1, 4, 2, 0, 5]])),
    "C.columns": ("index", torch.tensor([1, 4, 2, 0, 5])),
    "pos": ("index", torch.tensor([0, 2, 3, 3, 5])),
    "E": ("index", torch.tensor([[0, 1, 1, 3, 2], [1, 0, 2, 2, 3]])),
    "I": ("index", torch.tensor([1, 0, 3, 2, 2])),
    "o": ("index", torch.tensor([0, 2])),
    "c": ("dense", torch.tensor([1.0, 2, 3, 4, 5])),
    "c.all": ("dense", torch.arange(24.0)),
    "x4": ("input", torch.arange(20.0).reshape(5, 4) / 7 - 1),
    "x4.batch": ("input", torch.arange(20.0).reshape(1, 5, 4) / 7 - 1),
    "x4.nodes": ("input", torch.arange(16.0).reshape(4, 4) / 7 - 1),
    "image": ("input", torch.arange(16.0).reshape(1, 1, 4, 4)),
    "T": ("sparse", torch.ones(5, 5).tril() > 0),
    "repeats": ("index", torch.arange(4) % 3),
    "values": ("dense", torch.tensor([1.0, 2.0])),
}


@dataclass(frozen=True)
class Setting:
    """Sizes and data type of the tensors of a sample call."""

    m: int = 4
    n: int = 6
    dtype: torch.dtype = torch.float32
    format: int | None = None  # among the formats of each number of dimensions; random by default

    def shape(self, letters: str) -> tuple[int, ...]:
        return tuple(getattr(self, letter) if letter in "mn" else int(letter) for letter in letters)

    def numbers(self, seed: int, shape: tuple[int, ...]) -> torch.Tensor:
        halves = torch.randint(-6, 7, shape, generator=torch.Generator().manual_seed(seed)).double() / 2
        halves = halves.abs() if self.dtype is torch.uint8 else halves
        return (halves if self.dtype.is_floating_point or self.dtype.is_complex else halves * 2).to(self.dtype)

    def sparse(self, seed: int, shape: tuple[int, ...]) -> torch.Tensor:
        keep = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.45
        return torch.where(keep, self.numbers(seed, shape), torch.zeros((), dtype=self.dtype))


@dataclass(frozen=True)
class Value:
    """An argument before any oddness: its role, and its value as torch takes it."""

    role: str
    value: Any
    format: str = "CSR"
    name: str = ""  # of a keyword
    parts: tuple[Value, ...] = ()  # of a list

    def argument(self, ours: bool) -> Any:
        """A fresh argument for numscorch or for torch."""
        if self.parts:
            return [part.argument(ours) for part in self.parts]
        if not isinstance(self.value, torch.Tensor):
            return self.value
        return ns.from_torch(self.value.clone(), self.format) if ours and self.role == "sparse" else self.value.clone()


def sample(tokens: tuple[str, ...], setting: Setting, seed: str) -> list[Value]:
    """The arguments of a sample call, with random formats."""
    rng, values, parts = random.Random(seed), [], None
    for token in tokens:
        if token.startswith("["):
            parts, token = [], token[1:]
        if parts is None:
            values.append(_value(token, setting, rng))
            continue
        parts.append(_value(token.removesuffix("]"), setting, rng))
        if token.endswith("]"):
            values.append(Value("list", None, parts=tuple(parts)))
            parts = None
    return values


def _value(token: str, setting: Setting, rng: random.Random) -> Value:
    if keyword := re.match(r"(\w+)=(.+)", token):
        inner = _value(keyword[2], setting, rng)
        return Value(inner.role, inner.value, inner.format, keyword[1])
    names = {"m": setting.m, "n": setting.n, "torch": torch}
    if token.startswith("="):
        return Value("plain", eval(token[1:], names))
    if ":" in token:
        role, _, text = token.partition(":")
        return Value(role, eval(f"({text},)" if role == "size" and not text.startswith("(") else text, names))
    return _tensor(token, setting, rng)


def _format(order: int, setting: Setting, rng: random.Random) -> str:
    names = FORMATS[order]
    return rng.choice(names) if setting.format is None else names[setting.format % len(names)]


def _tensor(token: str, setting: Setting, rng: random.Random) -> Value:
    """The value of a tensor's letter, and of its suffix."""
    letter, _, suffix = token.partition(".")
    m, n = setting.m, setting.n
    if token in FIXED:
        role, fixed = FIXED[token]
        return Value(role, fixed.to(setting.dtype) if role in ("dense", "input") else fixed)
    if letter in SPARSE:
        shape = setting.shape(SPARSE[letter])
        full = setting.sparse(1 + "SRQPWsB".index("S" if suffix == "same" else letter), shape)
        full = full != 0 if letter == "B" else full
        changes = {
            "complex": lambda: full.to(torch.complex64),
            "int": lambda: full.real.int().abs(),
            "share": lambda: (full.real.float() / 3).abs(),
        }
        return Value("sparse", changes[suffix]() if suffix in changes else full, _format(len(shape), setting, rng))
    if letter in DENSE:
        full = setting.numbers(11 + "DXvuYH".index(letter), setting.shape(DENSE[letter]))
        changes = {"t": lambda: full.mT, "3": lambda: full[..., :3], "turned": lambda: full.new_ones(n, m)}
        return Value("dense", changes[suffix]() if suffix in changes else full)
    if letter in "MN":
        shape = {"rows": (m,), "square": (8, 8)}.get(suffix, (m, n) if letter == "M" else (n,))
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(5)) < 0.4
        return Value("dense", mask.to(setting.dtype)) if suffix == "float" else Value("mask", mask)
    places = {"k": torch.tensor([1, 0, 1]), "k.rows": torch.arange(m) % max(n, 1), "K": torch.arange(m)[:, None] % 2}
    return Value("index", places[token])
