"""Which modules have a sparse version, and what is told of those that haven't."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import DenseFallbackWarning, OperandError, UnsupportedError
from ..ir.format import Format
from ..sparsifiers.sparsify import Sparsifier
from ..tensors.ledgers import is_strict, note
from ..tensors.parameter import SparseParameter

Convert = Callable[[Any, Sparsifier, Format | None], torch.nn.Module]
Adapt = Callable[[Any], torch.nn.Module]

_versions: dict[tuple[type[torch.nn.Module], str], Convert] = {}
_readers: dict[type[torch.nn.Module], Adapt] = {}
_adapted: set[type[torch.nn.Module]] = set()


def register_sparse_module(kind: type[torch.nn.Module], convert: Convert, weight: str = "weight") -> None:
    """Say what :func:`sparsify_model` puts in the place of modules of a type. Subclasses are types of their own.

    Args:
        kind: a class of modules.
        convert: from a module, a sparsifier and a format, or None, to a new module, which holds the weight as a
            :class:`~numscorch.nn.Parameter` of a SparseTensor under the same name. The sparsifier takes the weight as a matrix, a
            row for each output, and the module stays as it is. :func:`densify_model` calls the new one's ``to_dense()``.
        weight: the name of the parameter that becomes sparse.

    Raises:
        OperandError: no class of modules, or nothing to call.

    >>> class Mine(torch.nn.Linear):
    ...     "A layer that computes as torch's does."
    >>> from numscorch.nn import SparseLinear
    >>> register_sparse_module(Mine, SparseLinear.from_dense)
    """
    if not isinstance(kind, type) or not issubclass(kind, torch.nn.Module):
        raise OperandError(f"register_sparse_module({kind!r}, ...): give a class of modules, as torch.nn.Linear")
    if not callable(convert):
        raise OperandError(f"register_sparse_module({kind.__name__}, {convert!r}): give a function (module, sparsifier, format) -> module")
    _versions[kind, weight] = convert


def register_reader(kind: type[torch.nn.Module], adapt: Adapt, sparse_kind: type[torch.nn.Module] | None = None) -> None:
    """Say what stands for a module that reads parameters of its children, if sparse: itself, or a ``made``, with ``to_dense()``."""
    _readers[kind] = adapt
    if sparse_kind is not None:
        _adapted.add(sparse_kind)


def is_adapted(module: torch.nn.Module) -> bool:
    """Whether a module stands for one that reads parameters of its children."""
    return type(module) in _adapted


def version_of(module: torch.nn.Module, weight: str) -> Convert | None:
    """What makes a sparse version of a module with this weight, if anything does."""
    return _versions.get((type(module), weight))


def adapted(module: torch.nn.Module) -> torch.nn.Module:
    """What stands for a module whose children may be sparse: mostly itself.

    Raises:
        UnsupportedError: its children can't be.
    """
    adapt = _readers.get(type(module))
    return module if adapt is None else adapt(module)


def converted(module: torch.nn.Module, weight: str, sparsifier: Sparsifier, format: Format | None) -> torch.nn.Module:
    """The sparse version of a module.

    Raises:
        OperandError: what was registered for its type makes none.
    """
    layer = _versions[type(module), weight](module, sparsifier, format)
    if not isinstance(layer, torch.nn.Module) or not isinstance(getattr(layer, weight, None), SparseParameter):
        raise OperandError(
            f"the conversion registered for {type(module).__name__} returned {type(layer).__name__}: return a module whose {weight!r} is"
            " ns.nn.Parameter(ns.sparsify.sparsify(weight, sparsifier, format))"
        )
    return layer


@dataclass(frozen=True)
class Missing:
    """A parameter of a module that has no sparse version."""

    name: str
    kind: type[torch.nn.Module]
    weight: str
    bytes: int

    @property
    def why(self) -> str:
        """Why it stays dense."""
        return f"{self.kind.__name__} has no sparse version; register_sparse_module takes one"


def tell_missing(missing: list[Missing]) -> None:
    """Warn once of all that stays dense as there is no sparse version, with what a user could paste; list it in the ledger.

    Raises:
        UnsupportedError: in strict mode, before anything is changed.
    """
    if not missing:
        return
    kinds = {(site.kind, site.weight): [other.name for other in missing if other.kind is site.kind] for site in missing}
    message = "\n".join([f"{len(missing)} weights stay dense, as there is no sparse version of their modules", *_templates(kinds)])
    if is_strict():
        raise UnsupportedError(f"{message}\n  within ns.strict(), layers that stay dense are refused")
    warnings.warn(message, DenseFallbackWarning, stacklevel=3)
    for site in missing:
        note("densification", f"{site.name}: {site.kind.__name__} has no sparse version", site.bytes, asked=False)


def _templates(kinds: Mapping[tuple[type[torch.nn.Module], str], list[str]]) -> list[str]:
    """A registration for each type, to be completed.

    >>> print(_templates({(torch.nn.Bilinear, "weight"): ["head.weight"]})[0])
    # head.weight
    def sparse_bilinear(layer, sparsifier, format):
        made = ...  # a module with forward() and to_dense()
        made.weight = ns.nn.Parameter(ns.sparsify.sparsify(layer.weight.detach(), sparsifier, format))
        return made
    ns.sparsify.register_sparse_module(torch.nn.Bilinear, sparse_bilinear)
    """
    lines = []
    for (kind, weight), names in kinds.items():
        function = f"sparse_{kind.__name__.lower()}"
        home = "torch.nn." if kind.__module__.startswith("torch.nn.") else ""
        last = "" if weight == "weight" else f', "{weight}"'
        lines.append(
            f"# {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}\n"
            f"def {function}(layer, sparsifier, format):\n"
            "    made = ...  # a module with forward() and to_dense()\n"
            f"    made.{weight} = ns.nn.Parameter(ns.sparsify.sparsify(layer.{weight}.detach(), sparsifier, format))\n"
            "    return made\n"
            f"ns.sparsify.register_sparse_module({home}{kind.__name__}, {function}{last})"
        )
    return lines
