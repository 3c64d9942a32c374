"""Places of parameters in a model, the registry of sparse versions of modules, and the warning about modules without a sparse version."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ..errors import DenseFallbackWarning, OperandError, UnsupportedError
from ..ir.format import Format
from ..nn.embedding import SparseEmbedding
from ..nn.sparse_layers import SparseConv2d, SparseLinear, SparseMultiheadAttention
from ..sparsifiers.sparsify import Sparsifier
from ..tensors.ledgers import is_strict, note
from ..tensors.parameter import SparseParameter

Convert = Callable[[Any, Sparsifier, Format | None], torch.nn.Module]

# The function that makes the sparse version of a type of modules, by the type and the name of the weight.
VERSIONS: dict[tuple[type[torch.nn.Module], str], Convert] = {
    (torch.nn.Linear, "weight"): SparseLinear.from_dense,
    (NonDynamicallyQuantizableLinear, "weight"): SparseLinear.from_dense,
    (torch.nn.Conv2d, "weight"): SparseConv2d.from_dense,
    (torch.nn.Embedding, "weight"): SparseEmbedding.from_dense,
    (torch.nn.MultiheadAttention, "in_proj_weight"): SparseMultiheadAttention.from_dense,
}


def without_nesting(encoder: torch.nn.TransformerEncoder) -> torch.nn.TransformerEncoder:
    """Switch off nested tensors: torch would pass them to the encoder's layers, and sparse layers do not support them."""
    encoder.use_nested_tensor = False
    return encoder


# Some modules read parameters of their children, which may be sparse. These functions adapt such a module: they return the module, or its
# replacement, a module with ``to_dense()``. For example, torch's attention reads the weight of its output projection, but
# SparseMultiheadAttention calls the projection.
READERS: dict[type[torch.nn.Module], Callable[[Any], torch.nn.Module]] = {
    torch.nn.MultiheadAttention: SparseMultiheadAttention.around,
    torch.nn.TransformerEncoder: without_nesting,
}


def register_sparse_module(kind: type[torch.nn.Module], convert: Convert, weight: str = "weight") -> None:
    """Register the function that makes sparse versions of a class of modules. Subclasses need their own registration.

    Args:
        kind: a class of modules.
        convert: a function from a module, a sparsifier and a format (or None) to a new module. The new module holds the weight as a
            :class:`~numscorch.nn.Parameter` of a SparseTensor under the same name. The sparsifier takes the weight as a matrix, with a
            row for each output. The function must not change the old module. :func:`densify_model` calls ``to_dense()`` of the new
            module.
        weight: the name of the parameter that becomes sparse.

    Raises:
        OperandError: ``kind`` is not a class of modules, or ``convert`` is not callable.

    >>> class Mine(torch.nn.Linear):
    ...     "A linear layer."
    >>> from numscorch.nn import SparseLinear
    >>> register_sparse_module(Mine, SparseLinear.from_dense)
    """
    if not isinstance(kind, type) or not issubclass(kind, torch.nn.Module):
        raise OperandError(f"register_sparse_module({kind!r}, ...): give a class of modules, such as torch.nn.Linear")
    if not callable(convert):
        raise OperandError(f"register_sparse_module({kind.__name__}, {convert!r}): give a function (module, sparsifier, format) -> module")
    VERSIONS[kind, weight] = convert


def adapted(module: torch.nn.Module) -> torch.nn.Module:
    """Return the replacement of a module whose children may be sparse; usually the module itself.

    Raises:
        UnsupportedError: the children of this module cannot be sparse.
    """
    return READERS[type(module)](module) if type(module) in READERS else module


def converted(module: torch.nn.Module, weight: str, sparsifier: Sparsifier, format: Format | None) -> torch.nn.Module:
    """Return the sparse version of a module; the state of torch's random generator does not change.

    Raises:
        OperandError: the registered function returns no module with a sparse weight.
    """
    with torch.random.fork_rng(devices=()), torch.no_grad():  # modules draw initial values, which are then replaced
        layer = VERSIONS[type(module), weight](module, sparsifier, format)
    if not isinstance(layer, torch.nn.Module) or not isinstance(getattr(layer, weight, None), SparseParameter):
        raise OperandError(
            f"the conversion registered for {type(module).__name__} returned {type(layer).__name__}: return a module whose {weight!r} is"
            " ns.nn.Parameter(ns.sparsify.sparsify(weight, sparsifier, format))"
        )
    return layer


@dataclass(frozen=True, eq=False)
class Site:
    """One place of a parameter in a model."""

    name: str
    module: torch.nn.Module
    key: str

    @property
    def home(self) -> str:
        """The name of the module."""
        return self.name[: -len(self.key) - 1]

    @property
    def parameter(self) -> torch.nn.Parameter | SparseParameter:
        return getattr(self.module, self.key)


def sites_of(model: torch.nn.Module) -> Iterator[Site]:
    """Yield every parameter at every place, dense or sparse."""
    for home, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, SparseParameter):
            held = {**module._parameters, **{key: child for key, child in module._modules.items() if isinstance(child, SparseParameter)}}
            yield from (Site(f"{home}.{key}" if home else key, module, key) for key, child in held.items() if child is not None)


def tell_missing(missing: list[Site]) -> None:
    """Warn once of all weights that stay dense because their modules have no sparse version.

    The warning includes code for the registrations. The ledger lists the weights.

    Raises:
        UnsupportedError: within ``ns.strict()``, before any change.
    """
    if not missing:
        return
    kinds: dict[tuple[type[torch.nn.Module], str], list[str]] = {}
    for site in missing:
        kinds.setdefault((type(site.module), site.key), []).append(site.name)
    message = "\n".join([f"{len(missing)} weights stay dense, because their modules have no sparse version", *_templates(kinds)])
    if is_strict():
        raise UnsupportedError(f"{message}\n  within ns.strict(), layers that stay dense are an error")
    warnings.warn(message, DenseFallbackWarning, stacklevel=3)
    for site in missing:
        note("densification", f"{site.name}: {type(site.module).__name__} has no sparse version", site.parameter.nbytes, asked=False)


def _templates(kinds: Mapping[tuple[type[torch.nn.Module], str], list[str]]) -> list[str]:
    """Return the code of a registration for each type of modules, which the user has to complete.

    >>> print(_templates({(torch.nn.Bilinear, "weight"): ["head.weight"]})[0])
    # head.weight
    def sparse_bilinear(layer, sparsifier, format):
        sparse_layer = ...  # a module with forward() and to_dense()
        sparse_layer.weight = ns.nn.Parameter(ns.sparsify.sparsify(layer.weight.detach(), sparsifier, format))
        return sparse_layer
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
            "    sparse_layer = ...  # a module with forward() and to_dense()\n"
            f"    sparse_layer.{weight} = ns.nn.Parameter(ns.sparsify.sparsify(layer.{weight}.detach(), sparsifier, format))\n"
            "    return sparse_layer\n"
            f"ns.sparsify.register_sparse_module({home}{kind.__name__}, {function}{last})"
        )
    return lines
