"""Records of a run besides times: work, memory, kernels, compile times, and the roofs of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from numscorch.measuring.peak_memory import growth
from numscorch.measuring.this_machine import this_machine, versions
from numscorch.measuring.turns import Function

from .compat import Recorder, rates, traffic_of, work_of
from .peers import missing

if TYPE_CHECKING:
    from .recorded import Recording

OVERHEAD = 0.05  # seconds of calls over which the median overhead is taken
Asked = tuple[Any, ...]  # a request and its operands, or a text of statements and a dictionary of operands


@dataclass
class Notes:
    """Records of a run, and the facts stored once per run."""

    suite: str
    recorder: Recorder = field(default_factory=Recorder)
    records: list[dict[str, Any]] = field(default_factory=list)
    kernels: dict[str, dict[str, str]] = field(default_factory=dict)
    threads: set[int] = field(default_factory=set)

    def first_call(self, ours: Function) -> Recording:
        """Call ``ours`` for the first time and note its kernels."""
        seen = self.recorder.record(ours)
        self.kernels |= {name: asdict(kernel) for name, kernel in seen.kernels.items()}
        return seen

    def facts(self, ours: Function, seen: Recording, request: Asked | None) -> dict[str, Any]:
        """Keys of a record other than times."""
        work = _work(seen, request) | {
            "kernels": list(seen.kernels),
            "compile_seconds": seen.compile_seconds,
            "load_seconds": seen.load_seconds,
        }
        seen.result, seen.calls = None, ()  # free their memory
        peak = growth(ours)
        return work | {"overhead_seconds": seen.overhead(OVERHEAD)} | ({} if peak is None else {"peak_bytes": peak})

    def as_json(self) -> dict[str, Any]:
        """Content of a results file under the package's name (see ``records.py``)."""
        return {
            "suite": self.suite,
            "machine": this_machine().as_json(),
            "versions": versions(),
            "roofs": {str(count): asdict(rates(count)) for count in sorted(self.threads)},
            "kernels": self.kernels,
            "missing": list(missing()),
        }


def _work(seen: Recording, request: Asked | None) -> dict[str, int]:
    """Bytes and operations of the request, or of the single recorded request; for several requests, only the bytes of the result."""
    if request is None and len(seen.calls) == 1:
        request = (seen.calls[0].request, *seen.calls[0].operands)
    if request is None:
        return {"result_bytes": traffic_of((), seen.result)}
    operands = request[1] if isinstance(request[1], dict) else request[1:]
    work = work_of(request[0], operands, seen.result)
    return {"bytes": work.bytes, "flops": work.flops, "result_bytes": _written(operands, seen.result)}


def _written(operands: Sequence[Any] | dict[str, Any], result: Any) -> int:
    """Bytes of the result that no operand shares; a result may share the pattern of an operand."""
    tensors = list(operands.values()) if isinstance(operands, dict) else list(operands)
    tensors = [operand for operand in tensors if hasattr(operand, "ndim")]
    return traffic_of(tensors, result) - traffic_of(tensors, None)
