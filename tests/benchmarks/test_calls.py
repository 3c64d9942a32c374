"""In the table of calls, both sides of a row compute the same."""

from __future__ import annotations

import pytest
import torch

from benchmarks import calls


@pytest.mark.usefixtures("interpreted")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_rows_agree_and_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SIZES", range(3, 6)), ("SIZE", 8), ("CALLS", 3)):
            patch.setattr(calls, name, value)
        calls.main(["--rounds", "1", "--threads", str(threads)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["row", "ours", "peer", "ratio", "bar"]
    assert len(lines) == 13
