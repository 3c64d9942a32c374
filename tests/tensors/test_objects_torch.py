"""SparseTensors as objects of Python and torch: copied, pickled, saved, shared between processes, batched."""

from __future__ import annotations

import copy
import io
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from programs import run_program
from torch.utils.data import BatchSampler, DataLoader, TensorDataset, default_collate

import numscorch as ns
from numscorch.tensors.pattern import named_arrays

pytestmark = pytest.mark.usefixtures("interpreted")
D = torch.tensor([[0.0, 2.0, 0.0, 5.0], [3.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 4.0]])
FORMATS = [ns.CSR, ns.CSC, ns.COO(2), ns.BCSR(3, 2), ns.ELL, ns.DIA, ns.Format("(i, j) -> (i: hash, j: bitmap)")]
formats = pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)


class TwoLayers(torch.nn.Module):
    """Two layers with one weight, and a SparseTensor that is not a parameter."""

    def __init__(self, format: ns.Format = ns.CSR) -> None:
        super().__init__()
        self.first = ns.nn.SparseLinear(4, 3, pattern=D, format=format)
        self.second = ns.nn.SparseLinear(4, 3, pattern=D)
        self.second.weight = self.first.weight
        self.fixed = ns.from_torch(D)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.first(inputs) + self.second(inputs) + inputs @ self.fixed.t()


def read_back(value: Any) -> Any:
    """Saves and loads the value with torch, which runs no code of the file."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@formats
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles(format: ns.Format, protocol: int) -> None:
    A = ns.from_torch(D, format)
    loaded, again = pickle.loads(pickle.dumps((A, A), protocol))
    assert loaded is again
    assert (loaded.format, loaded.dtype, loaded.shape) == (A.format, A.dtype, A.shape)
    assert torch.equal(loaded.values, A.values)
    assert torch.equal(loaded.to_dense(), D)


@formats
def test_files_of_torch(format: ns.Format) -> None:
    A = ns.from_torch(D, format)
    read = read_back({"A": A, "both": [A, A.with_values(A.values * 2)]})
    assert read["A"].format == A.format
    assert torch.equal(read["A"].values, A.values)
    assert torch.equal(read["both"][1].to_dense(), 2 * D)


def test_copies_keep_requires_grad() -> None:
    A = ns.from_torch(D)
    A = A.with_values(A.values.requires_grad_())
    for copied in (copy.deepcopy(A), pickle.loads(pickle.dumps(A)), read_back(A)):
        assert copied.requires_grad
        assert copied.values.is_leaf


@formats
def test_a_shallow_copy_shares_and_a_deep_one_does_not(format: ns.Format) -> None:
    A = ns.from_torch(D, format)
    assert copy.copy(A).values is A.values
    assert copy.copy(A).pattern is A.pattern
    deep = copy.deepcopy(A)
    deep.values.zero_()
    assert torch.equal(A.to_dense(), D)
    assert not deep.to_dense().any()


@formats
def test_a_deep_copy_shares_the_pattern_and_its_derived_data(format: ns.Format) -> None:
    A = ns.from_torch(D, format)
    transposed = A.pattern.permuted((1, 0))
    copied = copy.deepcopy(A)
    assert copied.pattern is A.pattern
    assert copied.pattern.permuted((1, 0)) is transposed
    assert copied.values.data_ptr() != A.values.data_ptr()
    assert copy.copy(A.pattern) is A.pattern


@formats
def test_a_deep_copy_of_a_parameter_copies_index_arrays(format: ns.Format) -> None:
    """Index arrays of parameters are buffers. Writing to those of the copy changes neither the original nor its transpose."""
    weight = ns.nn.Parameter(ns.from_torch(D, format))
    weight.pattern.permuted((1, 0))
    for copied in (copy.deepcopy(weight), copy.deepcopy(torch.nn.ModuleList([weight]))[0]):
        buffers = dict(copied.named_buffers())
        assert list(buffers) == [name for name, _ in weight.named_buffers()]
        assert copied.pattern.stores_as(weight.pattern)
        for (name, array), original in zip(named_arrays(copied.pattern), weight.buffers(), strict=True):
            assert buffers[name] is array
            assert array.data_ptr() != original.data_ptr()
            array.zero_()
        assert torch.equal(weight.to_dense(), D)
        assert torch.equal(weight.t().to_dense(), D.t())


def test_tensors_of_a_module_with_one_pattern_share_it_in_a_deep_copy() -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = ns.nn.Parameter(ns.from_torch(D))
            self.other = ns.nn.Parameter(self.weight.tensor.with_values(torch.ones(self.weight.nnz)))
            self.plain = self.weight.tensor.detach()

    net = Both()
    copied = copy.deepcopy(net)
    assert copied.weight.pattern is copied.other.pattern is copied.plain.pattern
    assert copied.weight.pattern is not net.weight.pattern
    assert copied.weight.level1_crd is copied.other.level1_crd


def test_deep_copies_preserve_sharing() -> None:
    A = ns.from_torch(D)
    first, second, other = copy.deepcopy([A, A, A.with_values(A.values * 2)])
    assert first is second
    assert other.pattern is first.pattern
    net = copy.deepcopy(TwoLayers())
    assert net.first.weight is net.second.weight
    assert len(list(net.parameters())) == 3
    assert net.first.weight.level1_crd.data_ptr() == net.first.weight.pattern.arrays[1][1].data_ptr()


def test_a_deep_copy_preserves_sharing_of_values_alone() -> None:
    first, second = (ns.nn.SparseLinear(4, 3, pattern=D) for _ in range(2))
    second.weight.values = first.weight.values
    pair = copy.deepcopy(torch.nn.ModuleList([first, second]))
    assert pair[0].weight.values is pair[1].weight.values
    assert pair[0].weight.values is not first.weight.values


@formats
def test_a_model_and_its_optimizer_resume(format: ns.Format) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(5, 4)

    def step(net: TwoLayers, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        net(inputs).square().sum().backward()
        optimizer.step()

    net = TwoLayers(format)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    step(net, optimizer)
    state = read_back({"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    other = TwoLayers(format)
    resumed = torch.optim.Adam(other.parameters())
    assert other.load_state_dict(state["net"]) == ([], [])
    resumed.load_state_dict(state["optimizer"])
    step(net, optimizer)
    step(other, resumed)
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, other.get_parameter(name)), name


def test_a_whole_module_is_pickled() -> None:
    net, inputs = TwoLayers(), torch.ones(2, 4)
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(inputs), net(inputs))


@pytest.mark.parametrize("strict", [True, False])
def test_the_values_of_another_pattern_are_not_loaded(strict: bool) -> None:
    layer, other = ns.nn.SparseLinear(4, 3, pattern=D), ns.nn.SparseLinear(4, 3, pattern=torch.ones(3, 4))
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(RuntimeError, match=r"weight\.values \(stores 12 entries in the state, other "):
        layer.load_state_dict(other.state_dict(), strict=strict)
    assert all(torch.equal(layer.state_dict()[name], array) for name, array in before.items() if name != "bias")


def test_strict_loading_names_missing_keys() -> None:
    layer = ns.nn.SparseLinear(4, 3, pattern=D)
    state = layer.state_dict()
    del state["weight.values"]
    with pytest.raises(RuntimeError, match=r"Missing key.*weight\.values"):
        layer.load_state_dict(state)
    assert layer.load_state_dict(state, strict=False).missing_keys == ["weight.values"]
    with pytest.raises(RuntimeError, match="Unexpected key"):
        layer.load_state_dict(layer.state_dict() | {"more": torch.ones(1)})


@formats
def test_safetensors(format: ns.Format, tmp_path: Path) -> None:
    files = pytest.importorskip("safetensors.torch", reason="its files are tested where it is installed")
    net = torch.nn.Sequential(ns.nn.SparseLinear(4, 3, pattern=D, format=format), torch.nn.ReLU(), ns.nn.SparseLinear(3, 4, density=0.5))
    files.save_file(net.state_dict(), tmp_path / "net.safetensors")
    other = copy.deepcopy(net)
    for parameter in other.parameters():
        parameter.data.zero_()
    assert other.load_state_dict(files.load_file(tmp_path / "net.safetensors")) == ([], [])
    assert all(torch.equal(array, other.state_dict()[name]) for name, array in net.state_dict().items())
    assert torch.equal(other(torch.ones(2, 4)), net(torch.ones(2, 4)))


def test_values_are_one_memory_for_torch_and_numpy() -> None:
    A = ns.from_torch(D)
    assert len(A.values) == A.nnz
    for view in (A.values.numpy(), np.from_dlpack(A.values), torch.from_dlpack(A.values), torch.from_numpy(A.values.numpy())):
        view[0] += 1
    assert A.to_dense()[0, 1] == 6
    with pytest.raises(ns.UnsupportedError, match="is not a NumPy array"):
        np.asarray(A)


def test_hashes_and_comparisons() -> None:
    """Hashes are by identity, and comparisons by entry, as for torch's tensors."""
    A, B = ns.from_torch(D), ns.from_torch(D)
    names = {A: "A", B: "B"}
    assert (names[A], names[B], len({A, B, A})) == ("A", "B", 2)
    assert A in [A]
    assert torch.equal((A == B).to_dense() if isinstance(A == B, ns.SparseTensor) else A == B, torch.ones(3, 4, dtype=torch.bool))
    parameter = ns.nn.Parameter(A)
    assert {parameter: 1}[parameter] == 1
    assert (len(A), len(parameter)) == (3, 3)


def test_weak_references() -> None:
    A = ns.from_torch(D)
    references = [weakref.ref(A), weakref.ref(A.pattern)]
    assert references[0]() is A
    _ = A @ torch.ones(4), A.T @ torch.ones(3)
    del A
    assert [reference() for reference in references] == [None, None]


def test_batches_hold_tensors_in_trees() -> None:
    A, B = ns.from_torch(D), ns.from_torch(torch.eye(3, 4))
    batch = default_collate([{"x": A, "pair": (A, 1)}, {"x": B, "pair": (A, 2)}])
    assert torch.equal(batch["x"].to_dense(), torch.stack([D, torch.eye(3, 4)]))
    assert torch.equal(batch["pair"][0].to_dense(), torch.stack([D, D]))
    assert batch["pair"][1].tolist() == [1, 2]
    with pytest.raises(ns.NumscorchError):
        default_collate([A, B.T])


@formats
def test_batches_of_rows_one_by_one_and_at_once(format: ns.Format) -> None:
    full = torch.eye(9, 5) + torch.eye(9, 5).flip(0)
    A = ns.from_torch(full, format)
    one_by_one = DataLoader([A[row] for row in range(9)], batch_size=4)
    at_once = (A[rows] for rows in BatchSampler(range(9), 4, drop_last=False))
    for batch, rows, expected in zip(one_by_one, at_once, full.split(4), strict=True):
        assert torch.equal(batch.to_dense(), expected)
        assert torch.equal(rows.to_dense(), expected)


def test_pinned_batches_and_datasets() -> None:
    """Without an accelerator, pinning does nothing."""
    data = TensorDataset(ns.from_torch(D), torch.arange(3))
    assert len(data) == 3
    for at, (rows, numbers) in enumerate(DataLoader(data, batch_size=1, pin_memory=torch.cuda.is_available())):
        assert torch.equal(rows.to_dense(), D[at : at + 1])
        assert numbers.tolist() == [at]


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning")
def test_pinning_without_an_accelerator_does_nothing() -> None:
    (batch,) = DataLoader([ns.from_torch(D)] * 2, batch_size=2, pin_memory=True)
    assert torch.equal(batch.to_dense(), torch.stack([D, D]))


@formats
def test_share_memory_moves_all_arrays(format: ns.Format) -> None:
    A = ns.from_torch(D, format)
    before = A @ torch.ones(4)
    assert not A.is_shared()
    assert A.share_memory_() is A
    assert A.is_shared()
    assert torch.equal(A @ torch.ones(4), before)


PROCESSES = """
import sys, torch, numscorch as ns
import torch.multiprocessing as processes

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = ns.nn.Parameter(ns.from_torch(torch.eye(3)))

def child(A, net, inbox, outbox):
    sent = inbox.get()
    outbox.put((sent * 2, torch.equal(sent.to_dense(), torch.eye(3)), A.is_shared()))
    A.values.add_(1)
    with torch.no_grad():
        net.weight.values.mul_(5)
    inbox.get()

if __name__ == "__main__":
    context = processes.get_context(sys.argv[1])
    A, net = ns.from_torch(2 * torch.eye(3)).share_memory_(), Net().share_memory()
    inbox, outbox = context.Queue(), context.Queue()
    started = context.Process(target=child, args=(A, net, inbox, outbox))
    started.start()
    inbox.put(ns.from_torch(torch.eye(3)))
    doubled, same, shared = outbox.get()
    assert same and shared and torch.equal(doubled.to_dense(), 2 * torch.eye(3))
    inbox.put(None)
    started.join(60)
    assert started.exitcode == 0
    assert torch.equal(A @ torch.eye(3), 3 * torch.eye(3))
    assert torch.equal(net.weight @ torch.eye(3), 5 * torch.eye(3))
    print("right")
"""


@pytest.mark.process
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_sees_shared_memory(method: str, tmp_path: Path) -> None:
    assert run_program(PROCESSES, tmp_path, method, NUMBA_DISABLE_JIT="1") == ["right"]


def failing() -> dict[str, tuple[Callable[[], object], tuple[Any, ...]]]:
    """Calls that raise errors, each with the operands that must not change."""
    A, B = ns.from_torch(D), ns.from_torch(torch.eye(3, 4))
    x, out, numbers = torch.arange(8.0).reshape(4, 2), torch.full((2, 2), 7.0), ns.from_torch(D.long())
    return {
        "shapes": (lambda: A @ x.t(), (A, x)),
        "shapes, added": (lambda: A + B.T, (A, B)),
        "data types": (lambda: A @ x.double(), (A, x)),
        "a device": (lambda: A @ x.to("meta"), (A, x)),
        "an index": (lambda: A[3], (A,)),
        "an index among many": (lambda: A[[0, 9]], (A,)),
        "copy_ of a pattern": (lambda: A.copy_(B), (A, B)),
        "copy_ of a shape": (lambda: A.copy_(x), (A, x)),
        "add_ of a pattern": (lambda: A.add_(B), (A, B)),
        "add_ of a number": (lambda: A.add_(1.0), (A,)),
        "mul_ of a shape": (lambda: A.mul_(x), (A, x)),
        "mul_ of a type": (lambda: numbers.mul_(0.5), (numbers,)),
        "out= of a shape": (lambda: ns.einsum("ij,jk->ik", A, x, out=out), (A, x, out)),
        "a dimension": (lambda: A.sum(2), (A,)),
        "reshape": (lambda: A.reshape(5, 2), (A,)),
        "cat": (lambda: torch.cat([A, B.T]), (A, B)),
        "values": (lambda: setattr(A, "values", torch.ones(1)), (A,)),
        "an expression": (lambda: ns.einsum("ij,jk->iz", A, x), (A, x)),
        "a format": (lambda: A.to("dz"), (A,)),
        "grad of integers": (lambda: numbers.values.requires_grad_(), (numbers,)),
    }


def bytes_of(operand: Any) -> list[bytes]:
    arrays = [operand.values, *map(torch.from_numpy, operand.pattern.views)] if isinstance(operand, ns.SparseTensor) else [operand]
    return [array.detach().numpy().tobytes() for array in arrays]


@pytest.mark.parametrize("name", list(failing()))
def test_errors_leave_operands_unchanged(name: str) -> None:
    call, operands = failing()[name]
    patterns = [getattr(operand, "pattern", None) for operand in operands]
    before = [bytes_of(operand) for operand in operands]
    with pytest.raises((ns.NumscorchError, RuntimeError, ValueError, TypeError, IndexError)):
        call()
    assert [bytes_of(operand) for operand in operands] == before
    assert [getattr(operand, "pattern", None) for operand in operands] == patterns


def test_in_place_writes_are_visible_through_shared_values() -> None:
    A = ns.from_torch(D)
    transposed, other = A.T, A.with_values(A.values.clone())
    A.mul_(2)
    assert torch.equal(transposed.to_dense(), 2 * D.t())
    assert torch.equal(other.to_dense(), D)
    assert other.pattern is A.pattern


def test_a_gradient_of_integers_is_refused() -> None:
    numbers = ns.from_torch(D.long())
    with pytest.raises(RuntimeError, match="floating point"):
        ns.nn.Parameter(numbers)
    assert not ns.nn.Parameter(numbers, requires_grad=False).requires_grad


@pytest.mark.parametrize(
    ("make", "data", "suggestion"),
    [
        (ns.nn.SparseParameter, torch.ones(2, 2), "SparseParameter takes a SparseTensor, not Tensor: convert it with ns.from_torch"),
        (ns.nn.SparseParameter, sp.eye_array(2), "not dia_array: convert it with ns.from_scipy"),
        (ns.nn.Parameter, [1.0], "Parameter takes SparseTensors and torch tensors, not list: convert it with torch.tensor"),
        (ns.nn.Parameter, 1.0, "not float: convert it with torch.tensor"),
        (ns.nn.Parameter, sp.eye_array(2), "not dia_array: convert it with ns.from_scipy"),
        (ns.nn.Parameter, np.ones(2), "not ndarray: convert it with torch.from_numpy"),
    ],
)
def test_parameters_of_other_objects_are_refused(make: Any, data: object, suggestion: str) -> None:
    with pytest.raises(ns.OperandError, match=suggestion):
        make(data)


def test_parameters_of_parameters_share_values_and_pattern() -> None:
    """As torch.nn.Parameter of a parameter does."""
    weight = ns.nn.Parameter(ns.from_torch(torch.eye(2)))
    for again in (ns.nn.Parameter(weight, requires_grad=False), ns.nn.SparseParameter(weight, requires_grad=False)):
        assert isinstance(again, ns.nn.SparseParameter) and again is not weight
        assert again.pattern is weight.pattern and again.values.data_ptr() == weight.values.data_ptr()
        assert weight.requires_grad and not again.requires_grad
