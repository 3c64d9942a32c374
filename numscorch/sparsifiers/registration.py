"""register_sparsifier: check a user-defined sparsifier once, and register it by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, Required, TypedDict, Unpack, overload

import torch

from ..errors import OperandError
from ..ir.format import Format, as_format
from .base import REGISTERED, WHOLE, Block, Kind, named
from .sparsify import Sparsifier, named_in_errors

Function = Callable[[torch.Tensor], torch.Tensor]
MATRICES = ((8, 12), (5, 7))  # shapes that every sparsifier has to accept
OPTIONAL_SHAPES = ((1, 1), (0, 3), (3, 0), (0, 0), (6,), (0,), (2, 3, 4), (2, 3, 2, 2))  # shapes that a sparsifier may refuse
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-30, torch.inf, -torch.inf)


@dataclass(frozen=True)
class Registered:
    """A registered sparsifier: a function with its name, kind, block shape (if blocking) and format."""

    function: Sparsifier
    name: str
    kind: Kind
    block: Block | None
    format: Format | None

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.function(tensor)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        # Pickle the registered name: after decoration, the function's name in its module refers to this object.
        return _find_sparsifier, (self.name, _origin(self.function)[0])


class RegistrationOptions(TypedDict, total=False):
    """The keyword arguments of ``register_sparsifier``."""

    kind: Required[Kind | str]
    name: str | None
    format: Format | str | None
    block: Block | None
    check: bool
    replace: bool


@overload
def register_sparsifier(function: Sparsifier, **options: Unpack[RegistrationOptions]) -> Registered: ...


@overload
def register_sparsifier(function: None = None, **options: Unpack[RegistrationOptions]) -> Callable[[Sparsifier], Registered]: ...


def register_sparsifier(
    function: Sparsifier | None = None,
    *,
    kind: Kind | str,
    name: str | None = None,
    format: Format | str | None = None,
    block: Block | None = None,
    check: bool = True,
    replace: bool = False,
) -> Registered | Callable[[Sparsifier], Registered]:
    """Check a user-defined sparsifier, and register it so that ``sparsify`` accepts its name.

    The check runs the sparsifier on small tensors of several shapes and data types. The sparsifier must return a mask of the tensor's
    shape, return the same mask each time, and not write to the tensor. A streaming sparsifier must decide on each entry independently of
    other entries. A blocking one must decide on each block independently of other blocks. Each sparsifier must accept float32 matrices,
    of whole blocks if it has blocks. It may raise errors for other tensors.

    Args:
        function: the sparsifier; if omitted, a decorator is returned.
        kind: ``"streaming"``, ``"blocking"`` or ``"materializing"``; see :class:`Kind`.
        name: its name; by default the name of the function. A new version of a function can take the name of the old one, as when a
            notebook cell runs again. Other functions cannot.
        format: the format in which ``sparsify`` stores the kept entries; CSR by default.
        block: (rows, columns) of the blocks of a blocking sparsifier; -1 stands for the whole extent.
        check: whether to run the check.
        replace: whether to take the name from another sparsifier.

    Returns:
        A sparsifier that calls the function, and has the attributes ``kind``, ``block`` and ``format``; or the decorator.

    Raises:
        OperandError: the check fails; or the function is not callable, the kind is unknown, a block is missing or superfluous, the name
            is taken, or a lambda has no name.
        FormatError: the format is unknown.

    >>> @register_sparsifier(kind="streaming")
    ... def positive(tensor):
    ...     return tensor > 0
    >>> from numscorch.sparsify import sparsify
    >>> sparsify(torch.tensor([[1.0, -2.0]]), "positive").values, positive.kind == "streaming"
    (tensor([1.]), True)
    """
    if function is None:
        return partial(register_sparsifier, kind=kind, name=name, format=format, block=block, check=check, replace=replace)
    if not callable(function):
        raise OperandError(f"register_sparsifier takes a callable that makes a mask of a tensor, not {function!r}")
    if kind not in list(Kind):
        raise OperandError(f"kind={kind!r}: a sparsifier is {', '.join(map(repr, map(str, Kind)))}")
    registered = Registered(
        function, name or named_in_errors(function), Kind(kind), _block(kind, block), None if format is None else as_format(format)
    )
    _check_name(registered, replace)
    if check:
        check_promises(function, registered.name, registered.kind, registered.block)
    REGISTERED[registered.name] = registered
    return registered


def _find_sparsifier(name: str, module: str) -> Any:
    """Return the sparsifier that a pickle names; import its module, which registers it, if needed.

    Pickles refer to this function as ``numscorch._find_sparsifier``.
    """
    if name not in REGISTERED:
        import_module(module)
    return named(name)


def _block(kind: Kind | str, block: Block | None) -> Block | None:
    if kind != Kind.BLOCKING:
        if block is not None:
            raise OperandError(f"block={block!r} of a {kind} sparsifier: only a blocking one decides by blocks")
        return None
    fits = isinstance(block, tuple) and len(block) == 2 and all(isinstance(size, int) and (size > 0 or size == WHOLE) for size in block)
    if not fits:
        raise OperandError(
            f"block={block!r}: a blocking sparsifier decides by blocks of (rows, columns), as in block=(1, 4); -1 is the whole extent"
        )
    return block


def _check_name(registered: Registered, replace: bool) -> None:
    """Check that a name is valid, and that it is new or belongs to an earlier version of the same function."""
    if registered.name == "<lambda>":
        raise OperandError("a lambda has no name to register: give one, as in name='positive'")
    known, origin = REGISTERED.get(registered.name), _origin(registered.function)
    if known is None or replace or registered.function is known.function:
        return
    if origin != _origin(known.function) or "<" in origin[1]:  # local functions and lambdas are never versions
        raise OperandError(
            f"the name {registered.name!r} is taken by another sparsifier, {known.function!r}: give another name=, or replace=True"
        )


def _origin(function: Any) -> tuple[str, str]:
    return getattr(function, "__module__", ""), getattr(function, "__qualname__", repr(function))


def check_promises(function: Function, name: str, kind: Kind, block: Block | None) -> None:
    """Run a sparsifier on small tensors of several shapes and data types.

    Raises:
        OperandError: the sparsifier breaks a promise. The error names the promise and the tensor.

    >>> check_promises(lambda t: t.abs() > t.abs().mean(), "above_mean", Kind.STREAMING, None)
    Traceback (most recent call last):
    ...
    numscorch.OperandError: sparsifier 'above_mean', registered as streaming: of a float32 tensor of shape (8, 12), ...
    """
    multiples = ((2 * _extent(block[0], 3), 3 * _extent(block[1], 4)),) if block else ()
    for shape, dtype in product((*multiples, *(() if block else MATRICES), *OPTIONAL_SHAPES, *(MATRICES if block else ())), DTYPES):
        needed = shape in (multiples or MATRICES) and dtype is torch.float32
        message = f"sparsifier {name!r}, registered as {kind}: of a {str(dtype).removeprefix('torch.')} tensor of shape {shape}"
        for at, tensor in enumerate(examples(shape, dtype)):
            mask = _checked_mask(function, tensor, message, needed and at == 0)
            if mask is not None and (kind is Kind.STREAMING or (block is not None and tensor.ndim == 2)):
                _check_parts(function, tensor, mask, block, message)


def examples(shape: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return normally distributed numbers, and a copy with equal, zero and infinite values; every call returns the same numbers."""
    example = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(0)).to(dtype)
    special = example.clone().reshape(-1)
    special[1::2] = torch.tensor(SPECIAL, dtype=dtype).repeat(-(-len(special) // (2 * len(SPECIAL))))[: len(special) // 2]
    return example, special.reshape(example.shape)


def _extent(size: int, whole: int) -> int:
    return whole if size == WHOLE else size


def _checked_mask(function: Function, tensor: torch.Tensor, message: str, needed: bool) -> torch.Tensor | None:
    """Return the mask; None if the sparsifier refuses a tensor that it need not accept."""
    given = tensor.clone()
    try:
        mask = function(given)
    except Exception as error:
        if not needed:
            return None
        raise OperandError(f"{message}, it raised {type(error).__name__}: {error}") from error
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or mask.layout != torch.strided:
        what = f"a {mask.layout} tensor of {mask.dtype}" if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise OperandError(f"{message}, it returned {what}: a mask is a dense bool tensor, True where an entry is kept")
    if mask.shape != tensor.shape:
        raise OperandError(f"{message}, it returned a mask of shape {tuple(mask.shape)}: a mask has the tensor's shape")
    if given._version != 0 or not torch.equal(given, tensor):
        raise OperandError(f"{message}, it wrote to its input: work on tensor.clone()")
    if not torch.equal(function(given), mask):
        raise OperandError(f"{message}, it returned another mask when called again: draw random numbers from a fixed seed, as random does")
    return mask


def _check_parts(function: Function, tensor: torch.Tensor, mask: torch.Tensor, block: Block | None, message: str) -> None:
    """Check that each part has the same mask alone and within the tensor; the sparsifier may refuse partial blocks at the edges.

    Parts are the blocks of a matrix, or single entries if ``block`` is None.
    """
    extents = tuple(_extent(size, whole) for size, whole in zip(block or (1,) * tensor.ndim, tensor.shape, strict=True))
    for corner in product(*(range(0, size, max(extent, 1)) for size, extent in zip(tensor.shape, extents, strict=True))):
        at = tuple(slice(first, first + extent) for first, extent in zip(corner, extents, strict=True))
        part = tensor[at].clone()
        spans = [f"{first}-{first + size - 1}" for first, size in zip(corner, part.shape, strict=True)]
        where = f"entry {corner}" if block is None else f"the block at rows {spans[0]}, columns {spans[1]}"
        answer = _checked_mask(function, part, f"{message}, {where} alone", part.shape == extents)
        if answer is None or torch.equal(answer, mask[at]):
            continue
        if block is not None:
            raise OperandError(
                f"{message}, {where} has another mask alone than within the tensor: a blocking sparsifier decides within blocks of "
                f"block={block}; one that compares blocks is kind='materializing'"
            )
        within, alone = ("is kept", "isn't") if mask[at] else ("isn't kept", "is")
        raise OperandError(
            f"{message}, {where} = {part.item():g} {within} within the tensor, but {alone} alone: a streaming sparsifier decides by one "
            "value; one that compares values is kind='materializing'"
        )
