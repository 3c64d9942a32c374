"""Surroundings of a call: transforms of torch.func, modes of torch, and gradients, each as a function of the call and its arguments.

A surrounding calls ``call(*operands)``, whose operands are the leaves: values of sparse tensors and dense tensors. For numscorch
``call`` makes sparse tensors of values; for torch it takes dense tensors in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from net_outcomes import attempt, outcome
from net_rows import Row
from net_samples import Setting, Value, sample
from op_sweep import Outcome, dense_of, leaves as leaves_in
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, grad_and_value, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

Call = Callable[..., Any]


def total(result: Any) -> Tensor:
    """A differentiable number of a result."""
    parts = result if isinstance(result, tuple | list) else (result,)
    parts = [part.real if part.is_complex() else part for part in parts if isinstance(part, Tensor)]
    return sum((part.double() * torch.arange(1.0, 1.0 + part.numel(), dtype=torch.float64).reshape(part.shape)).sum() for part in parts)


def one(at: int, call: Call, leaves: Sequence[Tensor]) -> Callable[[Tensor], Any]:
    """The call as a function of one leaf."""
    return lambda leaf: call(*leaves[:at], leaf, *leaves[at + 1 :])


def gradients(call: Call, leaves: Sequence[Tensor]) -> list[Tensor]:
    """The gradients in all leaves."""
    trained = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    result = total(call(*trained))
    if not result.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    pairs = zip(leaves, torch.autograd.grad(result, trained, allow_unused=True), strict=True)
    return [torch.zeros_like(leaf) if gradient is None else gradient for leaf, gradient in pairs]


def inference_first(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    with torch.inference_mode():
        result = call(*leaves)
    result = result.clone() if isinstance(result, Tensor) else result
    return result, gradients(call, leaves)


def trained(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    return gradients(call, leaves)


def batched(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    return vmap(one(at, call, leaves))(torch.stack([leaves[at], 2 * leaves[at]]))


def batched_gradient(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    return vmap(grad(lambda leaf: total(one(at, call, leaves)(leaf))))(torch.stack([leaves[at], 2 * leaves[at]]))


def functional_gradient(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    return grad(lambda leaf: total(one(at, call, leaves)(leaf)))(leaves[at])


def pulled_back(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    result, pull = vjp(lambda leaf: total(one(at, call, leaves)(leaf)), leaves[at])
    return result, pull(torch.ones_like(result))[0]


def tangent(leaf: Tensor, A: Any) -> Tensor:
    """Numbers from 1 to 2, at the stored entries of a sparse tensor only."""
    numbers = torch.linspace(1, 2, (leaf if A is None else A.values).numel(), dtype=leaf.dtype)
    return numbers.reshape(leaf.shape) if A is None else A.with_values(numbers).to_dense()


def pushed_forward(at: int, call: Call, leaves: Sequence[Tensor], A: Any = None) -> Any:
    return jvp(lambda leaf: total(one(at, call, leaves)(leaf)), (leaves[at],), (tangent(leaves[at], A),))


def along(at: int, call: Call, leaves: Sequence[Tensor], A: Any) -> Any:
    """The tangent from the gradient, from which torch's tangents of functions such as fmax differ at ties."""
    slopes, value = grad_and_value(lambda leaf: total(one(at, call, leaves)(leaf)))(leaves[at])
    change = tangent(leaves[at], A)
    return value, torch.where(change != 0, slopes * change, 0).sum().to(value.dtype)


def dual(at: int, call: Call, leaves: Sequence[Tensor], A: Any = None) -> Any:
    with forward_ad.dual_level():
        result = total(one(at, call, leaves)(forward_ad.make_dual(leaves[at], tangent(leaves[at], A))))
        change = forward_ad.unpack_dual(result).tangent
        return result.detach(), torch.zeros_like(result).detach() if change is None else change


def reverse_jacobian(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    return jacrev(lambda leaf: torch.stack([total(one(at, call, leaves)(leaf)), leaf.sum().double()]))(leaves[at])


def batched_backward(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    leaf = leaves[at].detach().clone().requires_grad_()
    result = torch.stack([total(one(at, call, leaves)(leaf)), leaf.sum().double()])
    return torch.autograd.grad(result, leaf, torch.eye(2, dtype=result.dtype), is_grads_batched=True)[0]


def second_derivative(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    leaf = leaves[at].detach().clone().requires_grad_()
    (first,) = torch.autograd.grad(total(one(at, call, leaves)(leaf)), leaf, create_graph=True)
    return torch.autograd.grad(total(first), leaf)[0] if first.requires_grad else torch.zeros_like(leaf)


def traced(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    return make_fx(one(at, call, leaves))(leaves[at])(2 * leaves[at])


def of_meta(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    with torch.device("meta"):
        return call(*leaves)


def with_default_float64(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return call(*leaves)
    finally:
        torch.set_default_dtype(before)


def counted(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    with FlopCounterMode(display=False):
        return call(*leaves), gradients(call, leaves)


def checkpointed(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    return gradients(lambda *operands: checkpoint(call, *operands, use_reentrant=False), leaves)


def hooked(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        return gradients(call, leaves)


def without_grad(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    with torch.no_grad():
        return call(*(leaf.clone().requires_grad_() for leaf in leaves))


def faked(at: int, call: Call, leaves: Sequence[Tensor]) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        result = one(at, call, leaves)(mode.from_tensor(leaves[at]))
        return torch.empty(result.shape, dtype=result.dtype, device="meta") if isinstance(result, Tensor) else result


SURROUNDINGS: dict[str, Callable[[int, Call, Sequence[Tensor]], Any]] = {
    "training": trained,
    "training without entries": trained,
    "training, dense last": trained,
    "inference mode first": inference_first,
    "vmap": batched,
    "vmap of grad": batched_gradient,
    "torch.func.grad": functional_gradient,
    "torch.func.vjp": pulled_back,
    "torch.func.jvp": pushed_forward,
    "made within torch.func.grad": functional_gradient,
    "made within torch.func.vjp": pulled_back,
    "made within torch.func.jacrev": reverse_jacobian,
    "torch.func.jacrev": reverse_jacobian,
    "a dual tensor": dual,
    "batched gradients": batched_backward,
    "second derivative": second_derivative,
    "make_fx": traced,
    "meta device": of_meta,
    "default float64": with_default_float64,
    "FlopCounterMode": counted,
    "checkpoint": checkpointed,
    "saved tensor hooks": hooked,
    "no_grad": without_grad,
    "fake mode": faked,
}

UNTRACED = {"save", "to_scipy", "to_pydata", "nnz", "repr", "card", "explain", "with_values", "SparseTensor"}  # no functions of tensors
FORMAT_OF = {"training without entries": 0, "training, dense last": 6}  # in net_samples.FORMATS
OF_ALL_LEAVES = {
    "training",
    "training without entries",
    "training, dense last",
    "inference mode first",
    "checkpoint",
    "saved tensor hooks",
    "FlopCounterMode",
}  # gradients in every leaf
FORWARD = {"torch.func.jvp", "a dual tensor"}  # take the tangent's pattern
ONCE = (OF_ALL_LEAVES - {"training without entries"}) | {"meta device", "default float64", "no_grad"}  # do not depend on the leaf
OF_VALUES = ONCE | OF_ALL_LEAVES | FORWARD | {"torch.func.grad"}  # apply to values of sparse tensors, too


class Leaves:
    """A sample call as a function of its floating-point operands."""

    def __init__(self, call: Call, values: Sequence[Value], ours: bool, is_inside: bool = False):
        self.call, self.values, self.ours, self.is_inside = call, values, ours, is_inside
        self.flat = [part for value in values for part in (value.parts or (value,))]
        self.places = [
            at for at, value in enumerate(self.flat) if value.role in ("sparse", "dense", "input") and value.value.is_floating_point()
        ]
        self.sparse = [self.flat[at].argument(True) if self.flat[at].role == "sparse" else None for at in self.places]
        pairs = zip(self.places, self.sparse, strict=True)
        self.leaves = [A.values if A is not None and ours else self.flat[at].value.clone() for at, A in pairs]

    def __call__(self, *leaves: Tensor) -> Any:
        sparse = [
            self.flat[at].argument(True) if A is not None and self.is_inside else A for at, A in zip(self.places, self.sparse, strict=True)
        ]
        given = [A.with_values(leaf) if A is not None and self.ours else leaf for A, leaf in zip(sparse, leaves, strict=True)]
        by_place = dict(zip(self.places, given, strict=True))
        operands = iter([by_place[at] if at in by_place else value.argument(self.ours) for at, value in enumerate(self.flat)])
        arguments = [[next(operands) for _ in value.parts] if value.parts else next(operands) for value in self.values]
        args = [argument for argument, value in zip(arguments, self.values, strict=True) if not value.name]
        kwargs = {value.name: argument for argument, value in zip(arguments, self.values, strict=True) if value.name}
        result = self.call(*args, **kwargs)
        return tuple(map(dense_of, leaves_in(result))) if isinstance(result, tuple | list) else dense_of(result)

    def at_entries(self, at: int, gradient: Any) -> Any:
        """A gradient at the entries that the operand stores, as a dense tensor."""
        A = self.sparse[at]
        if A is None:
            return gradient
        if self.ours:
            return A.with_values(gradient.detach()).to_dense()
        return torch.where(A.with_values(torch.ones_like(A.values)).to_dense() != 0, gradient, 0)


def run_within(row: Row, call: Call, kind: str, at: int, seed: str) -> Outcome | None:
    """The outcome of a sample call within a surrounding; None if it does not apply."""
    if row.name in UNTRACED:
        return None
    values = sample(row.tokens, Setting(format=FORMAT_OF.get(kind)), seed)
    if kind == "training without entries":
        values = [_without_entries(value) if place == at else value for place, value in enumerate(values)]
    ours, theirs = Leaves(call, values, True, kind.startswith("made within")), Leaves(row.dense or call, values, False)
    if at >= min(len(ours.leaves), len(values)) or not any(A is not None for A in ours.sparse) or (kind in ONCE and at > 0):
        return None
    if ours.sparse[at] is not None and kind not in OF_VALUES:
        return None
    plain, plain_error = attempt(theirs, *theirs.leaves)
    is_differentiable = any(isinstance(part, Tensor) and part.is_floating_point() for part in leaves_in(plain))
    if plain_error is not None or not (is_differentiable or kind in ("meta device", "vmap", "default float64", "make_fx", "fake mode")):
        return None
    surrounding = SURROUNDINGS[kind]
    pattern = (ours.sparse[at],) if kind in FORWARD else ()
    expected, their_error = attempt(surrounding, at, theirs, theirs.leaves, *pattern)
    result, error = attempt(surrounding, at, ours, ours.leaves)
    if kind == "meta device":
        expected, their_error = plain, None
    if error is not None or their_error is not None:
        return None if error is None else outcome(row.name, kind, (None, error), (None, their_error))
    if kind in OF_ALL_LEAVES or kind == "torch.func.grad":
        result, expected = _masked(kind, at, ours, result), _masked(kind, at, theirs, expected)
    if kind in FORWARD and not bool(result[1].any()) and bool(expected[1].any()):
        return Outcome("wrong", "the tangent is lost")
    if kind in FORWARD:
        if not (bool(result[1].isfinite()) and bool(expected[1].isfinite())):
            return None  # an infinite slope times a tangent of 0 at an unstored entry
        by_gradient = along(at, theirs, theirs.leaves, *pattern)
        expected = by_gradient if torch.isclose(by_gradient[1].double(), result[1].double()) else expected
    if kind == "fake mode":
        is_fake = not isinstance(expected, Tensor) or (isinstance(result, Tensor) and result.is_meta and result.shape == expected.shape)
        return Outcome("same" if is_fake else "wrong", f"{result} is no fake tensor")
    return outcome(row.name, kind, (result, None), (expected, None))


def _without_entries(value: Value) -> Value:
    return replace(value, value=torch.zeros_like(value.value)) if value.role == "sparse" else value


def _masked(kind: str, at: int, call: Leaves, result: Any) -> list[Any]:
    """Results, and gradients at stored entries."""
    if kind == "torch.func.grad":
        return [call.at_entries(at, result)]
    heads, gradients_ = ([result[0]], result[1]) if kind in ("inference mode first", "FlopCounterMode") else ([], result)
    return [*heads, *(call.at_entries(place, gradient) for place, gradient in enumerate(gradients_))]
