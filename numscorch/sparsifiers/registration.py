"""register_sparsifier: a sparsifier of the user's own, with what it declares, checked once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, overload

import torch

from ..errors import OperandError
from ..ir.format import Format, as_format
from .kinds import WHOLE, Block, Kind
from .names import REGISTERED, named
from .promises import check_promises
from .sparsify import Sparsifier, named_in_errors


@dataclass(frozen=True)
class Registered:
    """A function as a sparsifier, with its name, its kind, the block that a blocking one decides by, and its format."""

    function: Sparsifier
    name: str
    kind: Kind
    block: Block | None
    format: Format | None

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mask of what is kept."""
        return self.function(tensor)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        return _find_sparsifier, (self.name, _origin(self.function)[0])  # a decorator took the function's name in its module


@overload
def register_sparsifier(
    function: Sparsifier,
    *,
    kind: Kind | str,
    name: str | None = None,
    format: Format | str | None = None,
    block: Block | None = None,
    check: bool = True,
    replace: bool = False,
) -> Registered: ...


@overload
def register_sparsifier(
    function: None = None,
    *,
    kind: Kind | str,
    name: str | None = None,
    format: Format | str | None = None,
    block: Block | None = None,
    check: bool = True,
    replace: bool = False,
) -> Callable[[Sparsifier], Registered]: ...


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
    """Declare what a sparsifier of your own needs to see, after checking it, and let ``sparsify`` call it by name.

    It is run on small tensors of several shapes and data types: it returns a mask of their shape, the same one each time, and
    doesn't write to them. A streaming one answers for each entry what it answers for that entry alone, a blocking one likewise
    for each block. It takes float32 matrices (of whole blocks, if it has some), and may refuse other tensors by raising.

    Args:
        function: the sparsifier; without it, a decorator is returned.
        kind: how much it has to see: "streaming", "blocking" or "materializing".
        name: by default, the function's own. One that was registered before is taken only by a new version of the same function
            of a module, as when a notebook's cell is run again.
        format: how ``sparsify`` stores what it keeps; by default in CSR.
        block: (rows, columns) of the blocks of a blocking one, -1 for the whole extent.
        check: run the check.
        replace: take the name from whatever has it.

    Returns:
        The sparsifier, with ``kind``, ``block`` and ``format``.

    Raises:
        OperandError: a promise is broken, and how; or the kind is unknown, a block is missing, or the name is taken.

    >>> @register_sparsifier(kind="streaming")
    ... def positive(tensor):
    ...     return tensor > 0
    >>> from numscorch.sparsify import sparsify
    >>> sparsify(torch.tensor([[1.0, -2.0]]), "positive").values, positive.kind == "streaming"
    (tensor([1.]), True)
    """
    if function is None:

        def decorate(function: Sparsifier) -> Registered:
            return register_sparsifier(function, kind=kind, name=name, format=format, block=block, check=check, replace=replace)

        return decorate
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
    """The sparsifier that a pickle names; importing its module registers it. Pickles name this function ``numscorch._find_sparsifier``."""
    if name not in REGISTERED:
        import_module(module)
    return named(name)


def _kind(given: Kind | str) -> Kind:
    if given not in list(Kind):
        raise OperandError(f"kind={given!r}: a sparsifier is {', '.join(map(repr, map(str, Kind)))}")
    return Kind(given)


def _block(kind: Kind | str, block: Block | None) -> Block | None:
    """The block that goes with a kind."""
    if kind != Kind.BLOCKING:
        if block is not None:
            raise OperandError(f"block={block!r} of a {kind} sparsifier: only a blocking one decides by blocks")
        return None
    fits = isinstance(block, tuple) and len(block) == 2 and all(isinstance(size, int) and (size > 0 or size == WHOLE) for size in block)
    if not fits:
        raise OperandError(
            f"block={block!r}: a blocking sparsifier decides by blocks of (rows, columns), as block=(1, 4); -1 is the whole extent"
        )
    return block


def _check_name(registered: Registered, replace: bool) -> None:
    """That a name is one, and new or that of an earlier version of the same function."""
    if registered.name == "<lambda>":
        raise OperandError("a lambda has no name to be called by: give one, as name='positive'")
    known = REGISTERED.get(registered.name)
    if known is not None and not replace and not _is_version(registered.function, known.function):
        raise OperandError(
            f"the name {registered.name!r} is that of another sparsifier, {known.function!r}: give name= one of its own, or replace=True"
        )


def _is_version(new: Any, old: Any) -> bool:
    """Whether it is the same, or a new version of a module's function: those that functions make may be any, and so may lambdas."""
    return new is old or (_origin(new) == _origin(old) and "<" not in _origin(new)[1])


def _origin(function: Any) -> tuple[str, str]:
    return getattr(function, "__module__", ""), getattr(function, "__qualname__", repr(function))
