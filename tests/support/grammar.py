"""Seeded random einsum calls over the whole grammar of numpy, and corrupted calls."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import EllipsisType
from typing import Any

import numpy as np
import torch
from cases import as_operand, random_format

import numscorch as ns

Label = int | EllipsisType  # number of a label, as in a sublist
Term = tuple[Label, ...]
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SPACE = 1500  # maximum size of the iteration space, since each point is a step of plain Python
STRANGERS = "0159$_;:()*+=[]{}'\"\\/|&%#@!?~^`<>-.,éßλ∑"


@dataclass(frozen=True)
class Call:
    """An einsum call. ``text`` is its first argument, or None if terms are sublists."""

    terms: tuple[Any, ...]
    result: Any
    text: str | None
    arrays: tuple[np.ndarray, ...]
    formats: tuple[ns.Format | None, ...]
    as_list: bool = False
    as_arrays: bool = False
    format: str | None = None
    spoiled: str = ""

    def with_numpy(self) -> np.ndarray:
        """Result of numpy; values are small integers, so it is exact in any order."""
        return np.asarray(np.einsum(*self.arguments(self.arrays)))

    def with_torch(self) -> np.ndarray:
        """Result of torch."""
        return np.asarray(torch.einsum(*self.arguments(list(map(torch.from_numpy, self.arrays)))))

    def with_numscorch(self) -> Any:
        """Result of numscorch for dense and sparse operands."""
        operands = [as_operand(array, fmt) for array, fmt in zip(self.arrays, self.formats, strict=True)]
        if self.text is not None and self.as_list:
            return ns.einsum(self.text, operands, format=self.format)
        return ns.einsum(*self.arguments(operands), format=self.format)

    def arguments(self, operands: Sequence[object]) -> list[Any]:
        """Arguments of the call: text and operands, or operands alternating with sublists."""
        if self.text is not None:
            return [self.text, *operands]
        listed = _as_array if self.as_arrays else _listed
        pairs = zip(operands, map(listed, self.terms), strict=True)
        return [*chain.from_iterable(pairs), *([] if self.result is None else [listed(self.result)])]

    @property
    def is_dense(self) -> bool:
        """Whether no operand has a sparse level; such calls are delegated to torch."""
        return all(fmt is None or fmt.is_dense for fmt in self.formats)

    def __str__(self) -> str:
        shown = repr(self.text) if self.text is not None else f"{self.terms} -> {self.result}"
        listed = ", ".join(f"{a.shape} {f.name if f else 'dense'}" for a, f in zip(self.arrays, self.formats, strict=True))
        return f"{self.spoiled or 'call'}: {shown}  {listed}"


def _listed(term: Any) -> Any:
    return list(term) if isinstance(term, tuple) else term


def _as_array(term: Any) -> Any:
    """A sublist as an array, if it contains integers only."""
    return np.array(term) if isinstance(term, tuple) and term and all(type(label) is int for label in term) else _listed(term)


# -- valid calls, with rare exceptions


def random_call(seed: int) -> Call:
    """A call with one to five operands, with ellipses, broadcasting, diagonals, any output and any spelling."""
    rng = random.Random(seed)
    count = rng.choices((1, 2, 3, 4, 5), (4, 6, 4, 2, 1))[0]
    labels = rng.sample(range(52), rng.randint(1, 5))
    hidden = rng.choices((None, 0, 1, 2, 3), (8, 2, 5, 4, 1))[0]
    terms = tuple(_term(rng, labels, hidden is not None) for _ in range(count))
    sizes, ellipsis = _sizes(rng, labels, hidden or 0)
    arrays = tuple(_array(rng, _shape(rng, term, sizes, ellipsis)) for term in terms)
    result = _result(rng, terms)
    text = None if rng.random() < 0.2 else spelled(rng, terms, result)
    formats = _formats(rng, arrays)
    return Call(
        terms, result, text, arrays, formats, rng.random() < 0.2, rng.random() < 0.3, rng.choice((None, None, None, "dense", "infer"))
    )


def _term(rng: random.Random, labels: list[int], ellipses: bool) -> Term:
    rank = rng.choices((0, 1, 2, 3, 4), (2, 6, 8, 3, 1))[0]
    term: list[Label] = list(rng.sample(labels, min(rank, len(labels))))
    if term and rng.random() < 0.15:
        term.insert(rng.randint(0, len(term)), rng.choice(term))
    if ellipses and rng.random() < 0.7:
        term.insert(rng.randint(0, len(term)), ...)
    return tuple(term)


def _sizes(rng: random.Random, labels: list[int], hidden: int) -> tuple[dict[int, int], tuple[int, ...]]:
    """Sizes of the labels and of the ellipsis dimensions, with a bounded product."""
    extents = rng.choices((0, 1, 2, 3, 4, 5, 9, 17), (1, 4, 16, 16, 8, 4, 2, 2), k=len(labels) + hidden)
    while np.prod(extents, dtype=np.int64) > SPACE:
        extents[extents.index(max(extents))] = 2
    return dict(zip(labels, extents, strict=False)), tuple(extents[len(labels) :])


def _shape(rng: random.Random, term: Term, sizes: dict[int, int], ellipsis: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of an operand, sometimes with broadcast dimensions of size 1 and fewer ellipsis dimensions."""
    extents = {label: 1 if rng.random() < 0.06 else sizes[label] for label in term if isinstance(label, int)}
    hidden = ellipsis[rng.choice((0, 0, 0, *range(len(ellipsis) + 1))) :]
    shape: list[int] = []
    for label in term:
        shape += [extents[label]] if isinstance(label, int) else [1 if rng.random() < 0.25 else size for size in hidden]
    return tuple(shape)


def _array(rng: random.Random, shape: tuple[int, ...]) -> np.ndarray:
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    array = numbers.choice([-2.0, 1.0, 2.0, 3.0], shape)
    return np.asarray(array * (numbers.random(shape) < rng.choice((0.1, 0.3, 0.6, 0.9, 1.0, 1.0))))


def _formats(rng: random.Random, arrays: Sequence[np.ndarray]) -> tuple[ns.Format | None, ...]:
    """Formats of the operands; nearly always at least one is sparse."""
    sparse = [array.ndim > 0 and rng.random() < 0.65 for array in arrays]
    if rng.random() < 0.97 and not any(sparse):
        sparse[max(range(len(arrays)), key=lambda at: arrays[at].ndim)] = True
    return tuple(random_format(rng, array.ndim) if s and array.ndim else None for s, array in zip(sparse, arrays, strict=True))


def _result(rng: random.Random, terms: Sequence[Term]) -> Term | None:
    """None, or labels in any order; an ellipsis is rarely missing or superfluous."""
    if rng.random() < 0.25:
        return None
    used = sorted({label for term in terms for label in term if isinstance(label, int)})
    result: list[Label] = [label for label in used if rng.random() < 0.6]
    rng.shuffle(result)
    if rng.random() < (0.9 if any(... in term for term in terms) else 0.04):
        result.insert(rng.randint(0, len(result)), ...)
    return tuple(result)


def spelled(rng: random.Random, terms: Sequence[Term], result: Term | None) -> str:
    """The text, with random spaces where numpy allows them."""
    tokens = []
    for at, term in enumerate(terms):
        tokens += [","] * (at > 0) + list(map(_letter, term))
    tokens += [] if result is None else ["->", *map(_letter, result)]
    share = rng.choice((0, 0, 0.2, 0.6))
    return "".join(" " * (rng.random() < share) * rng.randint(1, 2) + token for token in tokens) + " " * (rng.random() < share)


def _letter(label: Label) -> str:
    return "..." if label is ... else NAMES[label]


# -- corrupted calls


def spoiled_call(seed: int) -> Call:
    """A call with one change, which may be invalid in numpy."""
    rng = random.Random(seed)
    call = random_call(seed)
    ways = (OPERANDS | SUBLISTS) if call.text is None else (OPERANDS | TEXTS)
    name = rng.choice(list(ways))
    return replace(ways[name](rng, call), spoiled=name)


def _change_text(change: Callable[[random.Random, str, int], str]) -> Callable[[random.Random, Call], Call]:
    """Corruption that changes the text at a random position."""

    def spoil(rng: random.Random, call: Call) -> Call:
        text = call.text or ""
        return replace(call, text=change(rng, text, rng.randint(0, len(text))))

    return spoil


def _inserted(choices: Sequence[str]) -> Callable[[random.Random, Call], Call]:
    return _change_text(lambda rng, text, at: text[:at] + rng.choice(choices) + text[at:])


def _in_result(pick: Callable[[random.Random, str], str]) -> Callable[[random.Random, Call], Call]:
    """Corruption that makes the result explicit and appends to it."""

    def change(rng: random.Random, text: str, at: int) -> str:
        explicit = text if "->" in text else text + "->"
        return explicit + pick(rng, explicit)

    return _change_text(change)


def _used(rng: random.Random, text: str) -> str:
    """A letter of the operands, repeated."""
    return rng.choice([c for c in text if c.isalpha()] or ["i"]) * 2


TEXTS: dict[str, Callable[[random.Random, Call], Call]] = {
    "a stranger": _inserted(STRANGERS),
    "a second ellipsis": _inserted(["..."]),
    "a dot": _inserted([".", "..", ". . .", ".. ."]),
    "another letter": _inserted(NAMES),
    "another comma": _inserted([",", ", ", ",,"]),
    "another arrow": _inserted(["->", "-> ", "- >", "-", ">", "=>"]),
    "a character left out": _change_text(lambda rng, text, at: text[:at] + text[at + 1 :]),
    "a character twice": _change_text(lambda rng, text, at: text[:at] + text[at : at + 1] * 2 + text[at + 1 :]),
    "a character moved": _change_text(lambda rng, text, at: (text[:at] + text[at + 1 :]) + text[at : at + 1]),
    "a letter instead": _change_text(lambda rng, text, at: text[:at] + rng.choice(NAMES) + text[at + 1 :]),
    "the end cut off": _change_text(lambda rng, text, at: text[:at]),
    "the start cut off": _change_text(lambda rng, text, at: text[at:]),
    "an unknown letter in the result": _in_result(lambda rng, text: rng.choice(sorted(set(NAMES) - set(text)))),
    "a repeated letter in the result": _in_result(_used),
    "a second arrow": _in_result(lambda rng, text: "->" + text.split("->")[1]),
}


def _other_operand(rng: random.Random, call: Call) -> Call:
    """Replace an array by another one, dense or in a format."""
    at = rng.randrange(len(call.arrays))
    shape = list(call.arrays[at].shape)
    way = rng.randrange(3)
    if way == 0 and shape:
        shape[rng.randrange(len(shape))] += rng.choice((1, 1, 2))
    elif way == 1 and shape:
        shape.pop(rng.randrange(len(shape)))
    else:
        shape.insert(rng.randint(0, len(shape)), rng.choice((1, 2)))
    array = _array(rng, tuple(shape))
    fmt = random_format(rng, array.ndim) if array.ndim and rng.random() < 0.6 else None
    return replace(
        call,
        arrays=(*call.arrays[:at], array, *call.arrays[at + 1 :]),
        formats=(*call.formats[:at], fmt, *call.formats[at + 1 :]),
    )


def _more_operands(rng: random.Random, call: Call) -> Call:
    if call.text is None:
        return _other_operand(rng, call)
    array = _array(rng, (2,) * rng.randint(0, 2))
    return replace(call, arrays=(*call.arrays, array), formats=(*call.formats, random_format(rng, array.ndim) if array.ndim else None))


def _fewer_operands(rng: random.Random, call: Call) -> Call:
    if call.text is None or len(call.arrays) == 1:
        return _other_operand(rng, call)
    return replace(call, arrays=call.arrays[:-1], formats=call.formats[:-1])


OPERANDS: dict[str, Callable[[random.Random, Call], Call]] = {
    "another operand": _other_operand,
    "one operand more": _more_operands,
    "one operand less": _fewer_operands,
}


def _other_sublist(choices: Sequence[Any]) -> Callable[[random.Random, Call], Call]:
    """Corruption that puts one of the choices into a sublist of an operand or of the result."""

    def spoil(rng: random.Random, call: Call) -> Call:
        at = rng.randint(0, len(call.terms))
        old = call.result or () if at == len(call.terms) else call.terms[at]
        place = rng.randint(0, len(old))
        new = (*old[:place], rng.choice(choices), *old[place + rng.randint(0, 1) :])
        return replace(call, result=new) if at == len(call.terms) else replace(call, terms=(*call.terms[:at], new, *call.terms[at + 1 :]))

    return spoil


def _no_sublist(rng: random.Random, call: Call) -> Call:
    return replace(call, result=rng.choice([3, 1.5, "ij"]))


SUBLISTS: dict[str, Callable[[random.Random, Call], Call]] = {
    "another label": _other_sublist(range(52)),
    "no label": _other_sublist([52, -1, 1000, "i", None, 0.5, [0], "..."]),
    "an ellipsis more": _other_sublist([...]),
    "no sublist": _no_sublist,
}
