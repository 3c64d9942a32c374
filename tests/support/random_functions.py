"""Seeded random functions of tensors in torch's element-wise operators, which ``fuse`` traces."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Function = Callable[[Any, Any, Any], Any]
OF_ONE: tuple[Callable[[Any], Any], ...] = (
    *(torch.relu, torch.sigmoid, torch.tanh, torch.abs, torch.square, torch.neg, torch.sin, torch.arctan, F.gelu, F.softplus, F.relu6),
    lambda x: F.celu(x, 0.5),
    lambda x: F.leaky_relu(x, 0.2),
    lambda x: torch.clamp(x, -0.5, 0.75),
    lambda x: x.clamp(max=0.5) ** 2,
    lambda x: 1 - x,
)
OF_TWO: tuple[Callable[[Any, Any], Any], ...] = (
    *(torch.add, torch.multiply, torch.sub, torch.rsub, torch.maximum, torch.minimum, torch.fmax),
    lambda x, y: torch.add(x, y, alpha=0.5),
    lambda x, y: x / (y.abs() + 1),
    lambda x, y: torch.addcmul(x, y, x, value=2),
    lambda x, y: torch.lerp(x, y, 0.25),
    lambda x, y: x.clamp_min(y),
    lambda x, y: torch.xlogy(x, y.abs() + 1),
)
TESTS: tuple[Callable[[Any, Any], Any], ...] = (
    *(torch.gt, torch.less, torch.ge, torch.not_equal),
    lambda x, y: x <= 0.25,
    lambda x, y: torch.logical_or(x, y > 0),
    lambda x, y: torch.logical_and(x > y, y),
    lambda x, y: torch.isnan(x - y),
)
OF_TESTS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda a, b: a & b,
    lambda a, b: a | ~b,
    lambda a, b: a ^ b,
    lambda a, b: a * b,
    torch.logical_xor,
    torch.eq,
    torch.maximum,
)


def random_function(seed: int) -> Function:
    """A function of a matrix and two tensors that broadcast to it; its product with the matrix is 0 where the matrix is."""
    draw = random.Random(seed)
    value = _value(draw, 3)
    return lambda A, x, y: A * value(A, x, y)


def _value(draw: random.Random, depth: int) -> Function:
    """A random function whose results are numbers."""
    if depth == 0:
        at = draw.randrange(3)
        return lambda *tensors: tensors[at]
    first, second = _value(draw, depth - 1), _value(draw, draw.randrange(depth))
    match draw.choice(("one", "two", "two", "where", "mask")):
        case "one":
            one = draw.choice(OF_ONE)
            return lambda *tensors: one(first(*tensors))
        case "two":
            two = draw.choice(OF_TWO)
            return lambda *tensors: two(first(*tensors), second(*tensors))
        case kind:
            test = _test(draw, depth - 1)
            if kind == "mask":
                return lambda *tensors: test(*tensors) * first(*tensors)
            return lambda *tensors: torch.where(test(*tensors), first(*tensors), second(*tensors))


def _test(draw: random.Random, depth: int) -> Function:
    """A random function whose results are booleans."""
    if depth > 0 and draw.random() < 0.4:
        join, left, right = draw.choice(OF_TESTS), _test(draw, depth - 1), _test(draw, depth - 1)
        return lambda *tensors: join(left(*tensors), right(*tensors))
    test, first, second = draw.choice(TESTS), _value(draw, depth), _value(draw, depth)
    return lambda *tensors: test(first(*tensors), second(*tensors))
