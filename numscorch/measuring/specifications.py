"""Requests from the command line: an expression, and a specification of each operand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..convert.construct import from_torch
from ..errors import ExpressionError, FormatError, OperandError
from ..explanation.explanation import read_format
from ..files.load import load, suffix_of
from ..frontend.datatypes import LISTED, STORED
from ..frontend.requests import NAMES
from ..frontend.statements import tensor_names
from ..interface.api import einsum, evaluate
from ..ir.format import COO, CSR
from ..machine.memory import available
from ..operators.creation import rand
from ..tensors.sparse_tensor import SparseTensor

SPECS = "a file (.mtx .smtx .tns .npz), a .tns file and its shape as FILE.tns:NxMxK, dense:NxK, or uniform:NxM:DENSITY"
SEED = 1


@dataclass(frozen=True, slots=True)
class BoundRequest:
    """An einsum or statements, with the operands by name, in order."""

    expr: str
    operands: Mapping[str, Any]
    format: str | None = None
    descriptions: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_einsum(self) -> bool:
        """Whether the expression is an einsum, with positional operands."""
        return "=" not in self.expr

    def __call__(self) -> Any:
        if self.is_einsum:
            return einsum(self.expr, *self.operands.values(), format=self.format)
        return evaluate(self.expr, format=self.format, **self.operands)

    def __str__(self) -> str:
        return "\n".join([self.expr, *(f"  {name}: {description}" for name, description in self.descriptions.items())])


def read_request(
    expr: str,
    specs: Mapping[str, str],
    *,
    formats: Mapping[str, str] | None = None,
    dtype: str = "float32",
    result: str | None = None,
    seed: int = SEED,
) -> BoundRequest:
    """Read a request and create its operands.

    Args:
        expr: an einsum as for :func:`numscorch.einsum`, with operands named A, B, ... in order; or statements as for
            :func:`numscorch.evaluate`, with the operands named there.
        specs: for each operand: a file that :func:`numscorch.load` reads; ``a.tns:10x20x30`` for a file with its shape; ``dense:100x64``
            for a strided tensor of random numbers; or ``uniform:100x200:0.01`` for a sparse tensor with this density and uniformly
            random coordinates.
        formats: the formats of operands, or ``dense``. By default matrices are CSR, and other tensors COO.
        dtype: the data type of the values.
        result: the format of the result.
        seed: the seed of the random numbers.

    Raises:
        ExpressionError: the expression can't be parsed, or its operands and the given ones differ.
        FormatError: a specification or a format is invalid, or a file is malformed.
        OperandError: the data type is unknown.
        OSError: a file can't be read.

    >>> request = read_request("ij,jk->ik", {"A": "uniform:4x6:0.5", "B": "dense:6x2"})
    >>> request().shape
    torch.Size([4, 2])
    >>> print(request)
    ij,jk->ik
      A: 4x6 CSR float32, 12 stored
      B: 6x2 dense float32
    """
    names, chosen = operands_of(expr), dict(formats or {})
    _check_names(expr, names, specs, chosen)
    kind, generator = _dtype(dtype), torch.Generator().manual_seed(seed)
    operands = {name: _operand(specs[name], chosen.get(name), kind, generator) for name in names}
    return BoundRequest(expr, operands, result, {name: describe(operand) for name, operand in operands.items()})


def operands_of(expr: str) -> tuple[str, ...]:
    """The names of the operands of a request, in order.

    >>> operands_of("ij,j->i"), operands_of("y[i] = S[i,j] * x[j]")
    (('A', 'B'), ('S', 'x'))
    """
    if "=" in expr:
        return tuple(sorted(tensor_names(expr)))
    count = expr.partition("->")[0].count(",") + 1
    if count > len(NAMES):
        raise ExpressionError(
            f"{expr!r} has {count} operands, but the command line names at most {len(NAMES)}: call numscorch.einsum from Python"
        )
    return tuple(NAMES[:count])


def _check_names(expr: str, names: tuple[str, ...], specs: Mapping[str, str], formats: Mapping[str, str]) -> None:
    expected = f"its operands are {', '.join(names)}{'' if '=' in expr else ', in this order'}"
    if unknown := [name for name in (*specs, *formats) if name not in names]:
        raise ExpressionError(f"{unknown[0]} is not an operand of {expr!r}: {expected}")
    if missing := [name for name in names if name not in specs]:
        raise ExpressionError(f"operand {missing[0]} of {expr!r} is missing: {expected}; give each {SPECS}")


def _dtype(name: str) -> torch.dtype:
    dtype = {known.name: stored for stored, known in STORED.items()}.get(name)
    if dtype is None:
        raise OperandError(f"{name!r} is not a supported data type: use one of {LISTED}")
    return dtype


def _operand(spec: str, format: str | None, dtype: torch.dtype, generator: torch.Generator) -> Any:
    kind, _, arguments = spec.partition(":")
    match kind, arguments.split(":") if arguments else []:
        case "dense", [sizes]:
            shape = _sizes(spec, sizes)
            if (nbytes := 8 * prod(shape)) > available():  # the random numbers are drawn in double precision
                raise FormatError(f"{spec!r} takes {nbytes / 2**30:.3g} GiB, more than is free: give smaller sizes")
            return _in_format(_numbers(shape, dtype, generator), format)
        case "uniform", [sizes, share]:
            shape = _sizes(spec, sizes)
            tensor = rand(*shape, format=CSR if len(shape) == 2 else COO(len(shape)), density=_share(spec, share), generator=generator)
            return _in_format(tensor.with_values(_numbers((tensor.nnz,), dtype, generator)), format)
    file, file_shape = _file_and_shape(spec)
    if kind in ("dense", "uniform") or (suffix_of(file) is None and not Path(file).exists()):
        raise FormatError(f"{spec!r} is not an operand: give {SPECS}")
    return _in_format(load(file, dtype=dtype, shape=file_shape), format)


def _file_and_shape(spec: str) -> tuple[str, tuple[int, ...] | None]:
    """Split a specification into the file and its optional shape; file names may contain colons.

    >>> _file_and_shape("a.tns:3x4x5"), _file_and_shape("b:2.mtx")
    (('a.tns', (3, 4, 5)), ('b:2.mtx', None))
    """
    file, colon, sizes = spec.rpartition(":")
    if not colon or suffix_of(file) is None or suffix_of(spec) is not None or Path(spec).exists():
        return spec, None
    return file, _sizes(spec, sizes)


def _sizes(spec: str, text: str) -> tuple[int, ...]:
    parts = text.split("x")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise FormatError(f"{spec!r} needs sizes, such as 1000x64: give {SPECS}")
    return tuple(map(int, parts))


def _share(spec: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise FormatError(f"{spec!r} needs a density, such as 0.01: give {SPECS}") from error


def _numbers(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Small random numbers, so that sums of a few of them don't overflow."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.rand(shape, dtype=torch.float64, generator=generator).to(dtype)
    return torch.randint(1, 4, shape, generator=generator).to(dtype)


def _in_format(tensor: Any, format: str | None) -> Any:
    if format is None:
        return tensor
    target = read_format(format, tensor.ndim)
    if target.is_dense:
        return tensor.to_dense() if isinstance(tensor, SparseTensor) else tensor
    return tensor.to(target) if isinstance(tensor, SparseTensor) else from_torch(tensor, target, copy=False)


def describe(operand: Any) -> str:
    """A short description of an operand, such as ``4x6 CSR float32, 12 stored``."""
    sizes, dtype = "x".join(map(str, operand.shape)) or "scalar", str(operand.dtype).removeprefix("torch.")
    if isinstance(operand, SparseTensor):
        return f"{sizes} {operand.format.name} {dtype}, {operand.nnz:,} stored"
    return f"{sizes} dense {dtype}"
