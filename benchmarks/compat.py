"""Private names of the package that benchmarks use, from wherever a commit has them: ``gate`` runs the suite on older packages, too."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numscorch

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


def first_of(name: str, *modules: str) -> Any:
    """A name of the first of these modules that the package in use has.

    Files decide: an editable installation of another commit would supply a module that this one lacks.

    Raises:
        ModuleNotFoundError: the package has none of them.
    """
    folder = Path(numscorch.__file__).parent
    for module in modules:
        if (folder / f"{module.replace('.', '/')}.py").exists():
            return getattr(import_module(f"numscorch.{module}"), name)
    raise ModuleNotFoundError(f"numscorch has none of {', '.join(modules)}")


if TYPE_CHECKING:
    from numscorch.explanation.roofs import LAST_CACHE, SECOND_CACHE, TIMES_THE_CACHE, copies, multiply_add, rates, triad
    from numscorch.explanation.work import traffic_of, work_of
    from numscorch.files.load import suffix_of
    from numscorch.machine.atomic_files import replacing
    from numscorch.machine.target import host
    from numscorch.tensors.pattern import Pattern
else:
    ROOFS, WORK = ("explanation.roofs", "measuring.roofs"), ("explanation.work", "measuring.work")
    LAST_CACHE, SECOND_CACHE, TIMES_THE_CACHE = (first_of(name, *ROOFS) for name in ("LAST_CACHE", "SECOND_CACHE", "TIMES_THE_CACHE"))
    copies, multiply_add, rates, triad = (first_of(name, *ROOFS) for name in ("copies", "multiply_add", "rates", "triad"))
    traffic_of, work_of = (first_of(name, *WORK) for name in ("traffic_of", "work_of"))
    suffix_of = first_of("suffix_of", "files.load", "io")
    replacing = first_of("replacing", "machine.atomic_files", "files.replacing")
    host = first_of("host", "machine.target", "runtime.target")
    Pattern = first_of("Pattern", "tensors.pattern", "pattern")
