"""Private names of the package that benchmarks use, from wherever a commit has them: ``gate`` runs the suite on older packages, too."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "LAST_CACHE",
    "SECOND_CACHE",
    "TIMES_THE_CACHE",
    "Pattern",
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


def found(name: str, *modules: str) -> Any:
    """A name of the first of these modules that exists.

    Raises:
        ModuleNotFoundError: none of them exists.
    """
    for module in modules[:-1]:
        try:
            return getattr(import_module(f"numscorch.{module}"), name)
        except ModuleNotFoundError:
            continue
    return getattr(import_module(f"numscorch.{modules[-1]}"), name)


if TYPE_CHECKING:
    from numscorch.explanation.roofs import LAST_CACHE, SECOND_CACHE, TIMES_THE_CACHE, copies, multiply_add, rates, triad
    from numscorch.explanation.work import traffic_of, work_of
    from numscorch.files.load import suffix_of
    from numscorch.machine.atomic_files import replacing
    from numscorch.machine.target import host
    from numscorch.tensors.pattern import Pattern
else:
    ROOFS, WORK = ("explanation.roofs", "measuring.roofs"), ("explanation.work", "measuring.work")
    LAST_CACHE, SECOND_CACHE, TIMES_THE_CACHE = (found(name, *ROOFS) for name in ("LAST_CACHE", "SECOND_CACHE", "TIMES_THE_CACHE"))
    copies, multiply_add, rates, triad = (found(name, *ROOFS) for name in ("copies", "multiply_add", "rates", "triad"))
    traffic_of, work_of = (found(name, *WORK) for name in ("traffic_of", "work_of"))
    suffix_of = found("suffix_of", "files.load", "io")
    replacing = found("replacing", "machine.atomic_files", "files.replacing")
    host = found("host", "machine.target", "runtime.target")
    Pattern = found("Pattern", "tensors.pattern", "pattern")
