"""register_sparsifier: check a user-defined sparsifier once, and register it by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Required, TypedDict, Unpack, overload

import torch

from ..errors import OperandError
from ..ir.format import Format, as_format
from .kinds import WHOLE, Block, Kind
from .names import REGISTERED, named
from .promises import check_promises
from .sparsify import Sparsifier, named_in_errors


@dataclass(frozen=True)
class Registered:
    """A registered sparsifier: a function with its name, kind, block shape (if blocking) and format."""

    function: Sparsifier
    name: str
    kind: Kind
    block: Block | None
    format: Format | None

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the mask of kept entries."""
        return self.function(tensor)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        # By the registered name: after decoration, the function's name in its module refers to this object.
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

    The check runs the sparsifier on small tensors of several shapes and data types. It has to return a mask of the
    tensor's shape, return the same mask each time, and not write to the tensor. A streaming sparsifier has to decide on
    each entry independently of other entries, and a blocking one on each block independently of other blocks. It has to accept float32
    matrices (of whole blocks, if it has blocks), and may raise on other tensors.

    Args:
        function: the sparsifier; if omitted, a decorator is returned.
        kind: "streaming", "blocking" or "materializing"; see :class:`Kind`.
        name: its name; by default the function's name. A registered name can be taken only by a new version of the same
            function, as when a notebook cell runs again.
        format: the format in which ``sparsify`` stores the kept entries; CSR by default.
        block: (rows, columns) of the blocks of a blocking sparsifier; -1 is the whole extent.
        check: whether to run the check.
        replace: whether to take the name from another sparsifier.

    Returns:
        The sparsifier, with ``kind``, ``block`` and ``format``.

    Raises:
        OperandError: the sparsifier breaks a promise; or the kind is unknown, a block is missing, or the name is taken.

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
    registered = Registered(
        function, name or named_in_errors(function), _kind(kind), _block(kind, block), None if format is None else as_format(format)
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


def _kind(kind: Kind | str) -> Kind:
    if kind not in list(Kind):
        raise OperandError(f"kind={kind!r}: a sparsifier is {', '.join(map(repr, map(str, Kind)))}")
    return Kind(kind)


def _block(kind: Kind | str, block: Block | None) -> Block | None:
    """Check the block shape against the kind."""
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
    known = REGISTERED.get(registered.name)
    if known is not None and not replace and not _is_version(registered.function, known.function):
        raise OperandError(
            f"the name {registered.name!r} is taken by another sparsifier, {known.function!r}: give another name=, or replace=True"
        )


def _is_version(new: Any, old: Any) -> bool:
    """Return whether a function is a new version of another one; local functions and lambdas are never versions."""
    return new is old or (_origin(new) == _origin(old) and "<" not in _origin(new)[1])


def _origin(function: Any) -> tuple[str, str]:
    return getattr(function, "__module__", ""), getattr(function, "__qualname__", repr(function))
