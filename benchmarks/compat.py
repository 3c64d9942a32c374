"""Private names of the package for the benchmarks, at their current or former place: ``gate`` runs the suite on older commits."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numscorch as ns

__all__ = [
    "HAS_PLANS",
    "LAST_CACHE",
    "SECOND_CACHE",
    "TIMES_THE_CACHE",
    "Pattern",
    "Recorder",
    "coalesced",
    "copies",
    "host",
    "multiply_add",
    "rates",
    "replacing",
    "suffix_of",
    "traffic_of",
    "triad",
    "work_of",
]


def first_of(names: str, *modules: str) -> Any:
    """The first existing attribute of the first existing module.

    Modules are looked up as files, because an editable installation of another commit could supply modules that this package lacks.

    Args:
        names: the current and the former names of an object, separated by spaces.
        modules: the current and the former modules of the object.

    Raises:
        ModuleNotFoundError: the package has none of the modules.
    """
    folder = Path(ns.__file__).parent
    for module in modules:
        if (folder / f"{module.replace('.', '/')}.py").exists():
            module_object = import_module(f"numscorch.{module}")
            return next(getattr(module_object, name) for name in names.split() if hasattr(module_object, name))
    raise ModuleNotFoundError(f"numscorch has none of {', '.join(modules)}")


if TYPE_CHECKING:
    from numscorch.explanation.roofs import LAST_CACHE, SECOND_CACHE, TIMES_THE_CACHE, copies, multiply_add, rates, triad
    from numscorch.explanation.work import traffic_of, work_of
    from numscorch.files.load import suffix_of
    from numscorch.machine.atomic_files import replacing
    from numscorch.machine.target import host
    from numscorch.tensors.pattern import Pattern

    from .recorded import Recorder
else:
    ROOFS, WORK = ("explanation.roofs", "measuring.roofs"), ("explanation.work", "measuring.work")
    LAST_CACHE, SECOND_CACHE, TIMES_THE_CACHE = (first_of(name, *ROOFS) for name in ("LAST_CACHE", "SECOND_CACHE", "TIMES_THE_CACHE"))
    copies, multiply_add, rates, triad = (first_of(name, *ROOFS) for name in ("copies", "multiply_add", "rates", "triad"))
    traffic_of, work_of = (first_of(name, *WORK) for name in ("traffic_of", "work_of"))
    suffix_of = first_of("suffix_of", "files.load", "io")
    replacing = first_of("replacing", "machine.atomic_files", "files.replacing")
    host = first_of("host", "machine.target", "runtime.target")
    Pattern = first_of("Pattern", "tensors.pattern", "pattern")
    try:
        Recorder = first_of("Recorder", "measuring.recorded")
    except ModuleNotFoundError:  # newer commits have it in benchmarks
        from .recorded import Recorder


HAS_PLANS = "plan" in ns.__all__
COALESCING = {"coalesce": True} if "coalesce" in signature(ns.from_coo).parameters else {}


def coalesced(indices: Any, values: Any, shape: Sequence[int]) -> ns.SparseTensor:
    """A tensor built from unsorted entries; duplicates are summed."""
    from_coo: Any = ns.from_coo
    return cast(ns.SparseTensor, from_coo(indices, values, shape, **COALESCING))
