"""Calls of einsum, as one value from the public function to the plan."""

from __future__ import annotations

from typing import Any, NamedTuple


class EinsumCall(NamedTuple):  # made at each call of einsum: a frozen dataclass takes four times as long
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

        >>> EinsumCall("ij->i", reduce="max", format="dense").options()
        {'format': 'dense', 'reduce': 'max'}
        """
        given = zip(self._fields[2:], self[2:], strict=True)
        return {name: value for name, value in given if value is not None and not (name == "reduce" and value == "sum")}

    def takes_only(self, *names: str) -> bool:
        """Whether no other options are given."""
        return self.options().keys() <= set(names)
