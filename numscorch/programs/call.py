"""Calls of einsum, as one value from the public function to the plan."""

from __future__ import annotations

from typing import Any, NamedTuple

DEFAULTS: dict[str, Any] = {"format": None, "out": None, "reduce": "sum", "mask": None, "schedule": None, "sparsifier": None}


class Call(NamedTuple):  # made at each call of einsum: a frozen dataclass takes four times as long
    """What is asked of which operands, and how the result is made; the fields are the arguments of :func:`numscorch.einsum`."""

    expr: Any
    operands: tuple[Any, ...] = ()
    format: Any = None
    out: Any = None
    reduce: Any = "sum"
    mask: Any = None
    schedule: Any = None
    sparsifier: Any = None

    def options(self) -> dict[str, Any]:
        """The options that are given.

        >>> Call("ij->i", reduce="max", format="dense").options()
        {'format': 'dense', 'reduce': 'max'}
        """
        given = {name: getattr(self, name) for name in DEFAULTS}
        return {name: value for name, value in given.items() if value is not DEFAULTS[name] and (name, value) != ("reduce", "sum")}

    def takes_only(self, *names: str) -> bool:
        """Whether no other options are given."""
        return self.options().keys() <= set(names)
