"""``benchmarks.paper`` at its quick size: sections run on random data, peers agree, plots and records are written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")

from benchmarks.paper import __main__ as paper
from benchmarks.paper.runs import Run, summary
from benchmarks.paper.tables import BARS, QUICK, SPARSE

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # torch warns of sparse tensors
]
PLOTS = {"gcn": "figure-5-gcn", "autoencoder": "figure-6-autoencoder", "attention": "figure-7-transformer", "spmm": "figure-8-spmm"}


@pytest.fixture(autouse=True)
def restored_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Unset the folder of data, and restore the number of threads."""
    monkeypatch.delenv("NUMSCORCH_BENCH_DATA", raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("section", paper.SECTIONS)
def test_each_section_compares_and_records(section: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = paper.main([section, "--quick", "--seconds", "0.001", "--threads", "1", "--out", str(tmp_path)])
    assert not run.failures
    assert run.records == json.loads((tmp_path / "records.json").read_text(encoding="utf-8"))
    assert all(record["ours"] > 0 and record["seconds"] > 0 for record in run.records)
    assert [path.stem for path in tmp_path.glob("*.png")] == ([PLOTS[section]] if section in PLOTS else [])
    output = capsys.readouterr().out
    assert all(record["case"] in output for record in run.records)
    assert all(any(bar.takes(record) for record in run.records) == (f"| {bar.title} |" in output) for bar in BARS)


def test_wrong_results_are_failures_without_a_record() -> None:
    run = Run(QUICK, 0.001, tell=lambda line: None)
    run.attempt(lambda run: run.compare("spmm", "wrong", lambda: torch.ones(2), {SPARSE: lambda: torch.zeros(2)}))
    assert not run.records
    assert "differs from torch.sparse" in run.failures[0]


def test_bars_are_met_by_mean_and_worst_case() -> None:
    def record(ratio: float, case: str) -> dict[str, object]:
        facts = {"kernel": "gcn", "peer": "torch, CSR features", "case": case, "few": True, "layout": "CSR"}
        return facts | {"ratio": ratio, "ratio_of_minima": ratio}

    lines = summary([record(1.3, "slow"), record(4.0, "fast")]).splitlines()
    assert lines[-1].split(" | ")[1:7] == ["2", "2.28x", "1.8x", "1.30x (1.30x) slow", "1.2x", "met"]
    assert "**not met**" in summary([record(1.1, "slow"), record(4.0, "fast")])
    assert "**not met**" in summary([record(1.3, "slow"), record(1.4, "fast")])


def test_unknown_sections_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        paper.main(["gnc"])
    assert "no section gnc: choose from gcn, training" in capsys.readouterr().err
