"""The libraries that are measured, as far as they are installed."""

from __future__ import annotations

from .aocl import Aocl
from .eigen import Eigen
from .genten import Genten
from .hand import Hand
from .library import Library
from .librsb import Librsb
from .mkl import Mkl
from .native import MissingError
from .python_libraries import GraphBlas, Pyg, Scipy, TopN, Torch

LIBRARIES: tuple[type[Library], ...] = (Scipy, Torch, Pyg, GraphBlas, Mkl, Aocl, Librsb, Eigen, Genten, TopN, Hand)


def installed(threads: int) -> tuple[list[Library], dict[str, str]]:
    """The installed libraries, set to a number of threads, and the reasons why others are missing."""
    libraries, missing = list[Library](), dict[str, str]()
    for library in LIBRARIES:
        try:
            libraries.append(library(threads))
        except (MissingError, ImportError) as why:
            missing[library.name] = str(why)
    return libraries, missing
