"""Data-parallel training in two processes: gradients of values are averaged, and ranks with different patterns are detected."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pages import ROOT
from two_processes import together, two_processes

import numscorch as ns
from numscorch.nn import SparseLinear
from numscorch.sparsify import GradualPruning, check_patterns, data_parallel, magnitude, schedules


@pytest.mark.process
@two_processes
class TestTwoProcesses:
    def test_gradients_of_values_are_all_reduced(self, tmp_path: Path) -> None:
        """Steps equal those of one process on both halves of the batch. Only gradients of values are sent."""
        program = """
            model, twin = network(), network()
            ddp = data_parallel(model)
            sent = []
            def counted(state, bucket):
                sent.append(bucket.buffer().numel())
                return dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().then(lambda f: f.value()[0])
            ddp.register_comm_hook(None, counted)
            buffers = []
            ddp._sync_module_buffers = lambda *_: buffers.append(ddp._assign_modules_buffers())
            with ns.ledger() as led:
                train(ddp, adam(ddp), 3)
            assert not [entry for entry in led if entry.kind == "densification"], led
            assert not list(ddp.modules_buffers), "index arrays are sent"
            train(twin, adam(twin), 3, part=slice(None))
            close(model, twin)
            alike(model)
            given["sent"] = sum(sent), sum(p.numel() for p in model.parameters())
            """
        for given in together(program, tmp_path):
            total, each = given["sent"]
            assert total == 3 * each == 3 * (19 + 13 + 8 + 4)

    def test_different_patterns_are_refused_or_broadcast(self, tmp_path: Path) -> None:
        program = """
            model = network(seed=rank)
            given["message"] = refused(ns.UnsupportedError, lambda: data_parallel(model))
            optimizer = adam(model)
            train(model, optimizer, 2)
            before = model[0].weight.to_dense().detach()
            broadcast_patterns(model, optimizer)
            after = model[0].weight.to_dense().detach()
            assert torch.equal(after, torch.where(after != 0, before, 0))
            train(model, optimizer)
            check_patterns(model)
            other = network(seed=0, density=0.4 + 0.2 * rank)
            refused(ns.UnsupportedError, lambda: check_patterns(other))
            broadcast_patterns(other, source=1)
            ddp = data_parallel(other)
            train(ddp, adam(ddp), 2)
            alike(other)
            given["nnz"] = other[0].weight.nnz
            lacking = torch.nn.Sequential(network()[rank * 2])
            given["lacking"] = refused(ns.UnsupportedError, lambda: check_patterns(lacking))
            """
        for given in together(program, tmp_path):
            assert given["message"].startswith("the pattern of 0.weight differs between ranks 0 and 1")
            assert "broadcast_patterns(model)" in given["message"]
            assert given["nnz"] == round(0.6 * 48)
            assert "0.weight differs" in given["lacking"]

    def test_torchs_own_wrapper_sends_patterns_with_their_values(self, tmp_path: Path) -> None:
        """DistributedDataParallel broadcasts index arrays and values, without the warning about an average of another pattern."""
        program = """
            import warnings
            model = torch.nn.Sequential(SparseLinear(6, 4, pattern=torch.eye(6).roll(rank, 0)[:4]))
            with warnings.catch_warnings():
                warnings.simplefilter("error", ns.PatternWarning)
                ddp = DistributedDataParallel(model)
                train(ddp, adam(ddp), 2)
            alike(model)
            given["dense"] = model[0].weight.to_dense().detach()
            """
        first, second = (given["dense"] for given in together(program, tmp_path))
        assert torch.equal(first, second)

    def test_torchs_own_wrapper_refuses_different_patterns_that_it_does_not_send(self, tmp_path: Path) -> None:
        """Before the first step, in all processes; equal patterns train as before."""
        program = """
            def refused_by(wrap):
                ddp = wrap(network(seed=rank))
                message = refused(ns.UnsupportedError, lambda: ddp(X[own]))
                assert "weight differs between ranks 0 and 1" in message and "broadcast_patterns" in message, message

            def ignoring(model):
                model._ddp_params_and_buffers_to_ignore = [name for name, _ in model.named_buffers()]
                return DistributedDataParallel(model)

            refused_by(lambda model: DistributedDataParallel(model, broadcast_buffers=False))
            refused_by(lambda model: DistributedDataParallel(model, init_sync=False))
            refused_by(ignoring)
            refused_by(lambda model: DistributedDataParallel(torch.nn.Sequential(model), init_sync=False, forward_sync_buffers=False))
            model = network()
            ddp = DistributedDataParallel(model, broadcast_buffers=False)
            calls = []
            if rank == 0:
                with torch.no_grad():
                    ddp(X[own])
            gather, dist.all_gather_object = dist.all_gather_object, lambda *args, **options: (calls.append(1), gather(*args, **options))
            train(ddp, adam(ddp), 3)
            dist.all_gather_object = gather
            assert calls == [1], "patterns are compared once"
            alike(model)
            """
        together(program, tmp_path)

    def test_rigl_and_set_keep_patterns_equal(self, tmp_path: Path) -> None:
        """RigL selects the entries that one process would select from both halves of the batch. Either half alone selects others."""
        program = """
            for kind, options in ((RigL, {"until": 100}), (SET, {"seed": 3})):
                model, twin, half = network(), network(), network()
                ddp = data_parallel(model)
                for one, part in ((ddp, own), (twin, slice(None)), (half, own)):
                    optimizer = adam(one)
                    dynamic = kind(one, optimizer, every=2, fraction=0.5, **options)
                    train(one, optimizer, 5, dynamic.step, part)
                    if one is ddp:
                        state = dynamic.state_dict()
                close(model, twin)
                alike(model)
                assert set(state["patterns"]) == {"0.weight", "2.weight"}
                if kind is RigL:
                    given["message"] = refused(ns.UnsupportedError, lambda: check_patterns(half))
            """
        for given in together(program, tmp_path):
            assert "differs between ranks 0 and 1" in given["message"]

    def test_gradual_pruning(self, tmp_path: Path) -> None:
        """With sparse_from=None, weights stay masked. Else the model is wrapped again where step() returns True."""
        program = """
            def dense(seed=0):
                torch.manual_seed(seed)
                return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))

            schedule = schedules.linear(0.8, begin=0, end=4)
            model, twin, masked = dense(), dense(), dense()
            optimizer = adam(twin)
            train(twin, optimizer, 6, GradualPruning(twin, optimizer, magnitude, schedule, sparse_from=0.5).step, slice(None))

            ddp = data_parallel(masked)
            optimizer = adam(masked)
            given["message"] = refused(ns.UnsupportedError, lambda: GradualPruning(ddp, optimizer, magnitude, schedule))
            train(ddp, optimizer, 6, GradualPruning(ddp, optimizer, magnitude, schedule, sparse_from=None).step)
            for at in (0, 2):
                torch.testing.assert_close(masked[at].weight.detach(), twin[at].weight.to_dense().detach())

            optimizer = adam(model)
            pruning = GradualPruning(model, optimizer, magnitude, schedule, sparse_from=0.5)
            ddp, wrapped = data_parallel(model), []
            for step in range(6):
                train(ddp, optimizer)
                if pruning.step():
                    wrapped.append(step + 1)
                    ddp = data_parallel(model)
            close(model, twin)
            alike(model)
            given["wrapped"] = wrapped
            """
        for given in together(program, tmp_path):
            assert "give sparse_from=None" in given["message"]
            assert given["wrapped"] == [3, 4]


@pytest.mark.process
@two_processes
def test_the_program_of_the_guide(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "guide" / "training.md").read_text(encoding="utf-8")
    program = text[text.index("model = ns.nn.SparseLinear") : text.index("```", text.index("model = ns.nn.SparseLinear"))]
    before = "torch.manual_seed(rank)\nbatches = [(X[own], Y[own])] * 3\n"
    after = "alike(model)\ngiven['step'] = rigl.count, model.weight.nnz"
    assert [given["step"] for given in together(before + program + after, tmp_path)] == [(3, 12)] * 2


def test_without_processes(plain: None) -> None:
    model = SparseLinear(6, 4, density=0.5)
    for call in (check_patterns, data_parallel):
        with pytest.raises(ns.OperandError, match="there is no process group"):
            call(model)
    assert GradualPruning(model, None, magnitude, schedules.one_shot(0.9, at=1)).step()
