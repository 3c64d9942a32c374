"""Performance targets (bars) of the kernels: one row of the report each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .peers import DENSE_LAYER, OUR_CSR, SCIPY_LAYER, TRANSPOSED
from .records import Record

LARGE = 10_000  # smallest number of nonzeros of a case that counts for the worst-case bar
STRUCTURED = ((50, 1.9), (75, 3.6), (90, 7.0))
GROUPED = ((50, 1.2), (75, 2.0), (88, None), (90, 4.0))


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the report: records of a kernel, and bars for their ratios (the best peer's time over ours).

    Args:
        title: the first cell.
        kernel: the kernel of the records.
        mean: bar of the geometric mean.
        worst: bar of the worst case with at least ``LARGE`` nonzeros.
        only: required values of record keys; a tuple lists alternatives.
        beside: report the ratio to this baseline instead of the best peer.
    """

    title: str
    kernel: str
    mean: float | None = None
    worst: float | None = None
    only: Mapping[str, Any] = field(default_factory=dict)
    beside: str | None = None

    def takes(self, record: Record) -> bool:
        """Whether a record belongs to this row.

        >>> Row("", "spmm", only={"k": (2, 7)}).takes({"kernel": "spmm", "k": 7, "ratio": 1.5})
        True
        """
        if record["kernel"] != self.kernel or "ratio" not in (record["beside"].get(self.beside, {}) if self.beside else record):
            return False
        pairs = ((record.get(name), value) for name, value in self.only.items())
        return all(actual in value if isinstance(value, tuple) else actual == value for actual, value in pairs)

    def ratio(self, record: Record) -> float:
        """The ratio that this row reports."""
        return float(record["beside"][self.beside]["ratio"] if self.beside else record["ratio"])


ROWS = (
    Row("SpMM, CSR x dense", "spmm", mean=2.5),
    Row("- k = 2, 7", "spmm", worst=1.1, only={"k": (2, 7)}),
    Row("- k = 16 to 256", "spmm", worst=1.3, only={"k": (16, 33, 64, 128, 256)}),
    Row("SpMM, other formats x dense", "formats", mean=2.5, worst=1.2),
    *(Row(f"- {name}", "formats", only={"format": name}) for name in ("COO", "CSC", "DCSR", "BCSR(4, 4)", "ELL")),
    Row("dense x CSR", "linear", mean=2.0, worst=1.0, only={"form": "x @ A"}),
    Row("- baseline: SciPy", "linear", only={"form": "x @ A"}, beside=SCIPY_LAYER),
    Row("- baseline: dense F.linear", "linear", only={"form": "x @ A"}, beside=DENSE_LAYER),
    Row("dense x CSC, x @ W.t()", "linear", mean=2.0, worst=1.0, only={"form": "x @ A.t()"}),
    Row("- baseline: torch, result left transposed", "linear", only={"form": "x @ A.t()"}, beside=TRANSPOSED),
    Row("- baseline: dense F.linear", "linear", only={"form": "x @ A.t()"}, beside=DENSE_LAYER),
    Row("x @ W.t(), BCSR(16, 1), 50 % zeros", "blocks", mean=1.9, worst=1.5, only={"zeros": 50}),
    Row("x @ W.t(), BCSR(16, 1), 75 % zeros", "blocks", mean=3.6, worst=2.5, only={"zeros": 75}),
    Row("x @ W.t(), BCSR(16, 1), 90 % zeros", "blocks", mean=7.0, worst=5.0, only={"zeros": 90}),
    *(Row(f"x @ W.t(), NM(n, m, rows=16), {z} % zeros", "n:m, 16 rows", worst=bar, only={"zeros": z}) for z, bar in STRUCTURED),
    *(Row(f"x @ W.t(), NMG(n, m, 16), {z} % zeros", "n:m:g", worst=bar, only={"zeros": z}) for z, bar in GROUPED),
    *(Row(f"- baseline: {OUR_CSR}, {z} % zeros", "n:m:g", only={"zeros": z}, beside=OUR_CSR) for z, _ in GROUPED),
    Row("SpMV, CSR, CSC, COO", "spmv", mean=1.05, worst=0.9, only={"uniform": False}),
    *(Row(f"- {name}", "spmv", only={"format": name, "uniform": False}) for name in ("CSR", "CSC", "COO")),
    Row("SpMV, uniform matrices", "spmv", mean=1.15, worst=0.9, only={"uniform": True}),
    Row("SpMV, banded, four times the last cache", "banded"),
    Row("SDDMM, CSR pattern", "sddmm", mean=2.0, worst=1.2),
    Row("SpGEMM, rows unordered", "spgemm", mean=2.0, worst=1.2, only={"rows": "unordered"}),
    Row("SpGEMM, rows sorted", "spgemm", mean=1.2, worst=0.7, only={"rows": "sorted"}),
    Row("SpGEMM, bool and semirings", "spgemm, reduced", mean=1.0, worst=0.6),
    Row("SpGEMM with a mask", "masked", mean=1.0, worst=0.6),
    Row("triangle counting", "triangles", mean=1.0, worst=0.6),
    Row("CSR + CSR, CSR * CSR, 3-way sum", "sums", mean=2.0, worst=1.0),
    *(Row(f"- {name}", "sums", only={"what": name}) for name in ("A + B", "A * B", "A + B + C")),
    Row("MTTKRP, TTM, TTV, order 3 to 5", "tensors", mean=3.0, worst=1.5),
    *(Row(f"- {name}", "tensors", only={"product": name}) for name in ("MTTKRP", "TTM", "TTV")),
    Row("conversions of a fresh pattern", "convert", mean=1.5, worst=0.9),
    *(
        Row(f"- {name}", "convert", only={"what": name})
        for name in ("COO to CSR", "CSR to CSC", "dense to CSR", "CSR to dense", "sort", "coalesce")
    ),
    Row("training step, 784-1024-10, 90 % zeros", "training", mean=1.0, worst=1.0, only={"zeros": 90}),
    *(Row(f"- {zeros} % zeros", "training", only={"zeros": zeros}) for zeros in (80, 95, 99)),
    Row("training epoch of a GCN, dense features", "training", only={"model": "GCN epoch"}),
    Row("models, inference", "models"),
    *(Row(f"- {name}", "models", only={"model": name}) for name in ("GCN", "pruned MLP", "sparse attention", "MoE")),
    Row("softmax, max, sum of rows", "rows", mean=2.0, worst=1.0),
    *(Row(f"- {name}", "rows", only={"what": name}) for name in ("softmax", "max", "sum")),
)
