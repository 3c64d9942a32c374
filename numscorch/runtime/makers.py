"""Origin of machine code: the versions that compiled it, and its processor. Other versions and processors cannot use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..errors import BundleError
from ..machine.fingerprints import hashed, processor, python_version
from ..machine.target import host

LIBRARIES = ("numscorch", "numba", "llvmlite")
TEXTS = ("system", "processor", "compiler")
LISTS = ("features", "caches")
WARM = "compile here instead: python -m numscorch cache warm"


def made_by() -> dict[str, Any]:
    """The versions and the processor for which this process compiles, as JSON values; imports Numba.

    >>> sorted(made_by())
    ['caches', 'compiler', 'features', 'processor', 'system', 'versions']
    """
    triple, name, features = processor()
    target = host()
    return {
        "versions": {"python": python_version(), **{library: version(library) for library in LIBRARIES}},
        "system": triple,
        "processor": name,
        "features": sorted(set(features.split(","))),
        "compiler": hashed("", target),
        "caches": [target.cache, target.own_cache],
    }


def tells_maker(facts: Any) -> bool:
    """Whether a value has the keys and types of :func:`made_by`."""
    if not isinstance(facts, dict) or not isinstance(facts.get("versions"), dict):
        return False
    is_listed = all(isinstance(facts.get(name), list) for name in LISTS) and all(isinstance(value, str) for value in facts["features"])
    return is_listed and all(isinstance(facts.get(name), str) for name in TEXTS)


def check_maker(path: Path, theirs: Mapping[str, Any]) -> None:
    """Refuse machine code that this process would not find or could not run.

    Args:
        path: the file with the machine code, for error messages.
        theirs: the value of :func:`made_by` in the process that compiled the machine code.

    Raises:
        BundleError: the versions, the system, the processor or its features differ.
    """
    ours = made_by()
    for name, needed in ours["versions"].items():
        if (other := theirs["versions"].get(name)) != needed:
            raise BundleError(f"{path} was made with {name} {other}, but {needed} is installed: install the same version, or {WARM}")
    if theirs["system"] != ours["system"]:
        raise BundleError(f"{path} was made for {theirs['system']}, but this is {ours['system']}: {WARM}")
    if theirs["processor"] != ours["processor"] or set(theirs["features"]) != set(ours["features"]):
        reason = f"for the processor {theirs['processor']}{_features(theirs['features'], ours['features'])}"
        raise BundleError(f"{path} was made {reason}, but this is {ours['processor']}: {WARM}")
    if theirs["compiler"] != ours["compiler"]:
        raise BundleError(
            f"{path} was made by another build of numscorch {ours['versions']['numscorch']}: install the same build, or {WARM}"
        )


def _features(theirs: Iterable[str], ours: Iterable[str]) -> str:
    """The features that only one of two processors has, as text."""
    only_theirs, only_ours = ({flags[1:] for flags in features if flags.startswith("+")} for features in (theirs, ours))
    parts = [("with", only_theirs - only_ours), ("without", only_ours - only_theirs)]
    return "".join(f" {what} {' '.join(sorted(names))}" for what, names in parts if names)
