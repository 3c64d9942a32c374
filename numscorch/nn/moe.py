"""MoE: a mixture of experts with sparse gating, which computes only the selected experts of each token."""

from __future__ import annotations

import operator
from math import sqrt
from typing import Any

import numpy as np
import torch

from ..errors import SizeError, UnsupportedError
from ..interface.api import einsum
from ..ir.format import CSR
from ..operators.elementwise import is_sparse
from ..programs.gradients import attached
from ..tensors.graph_breaks import graph_break, traced
from ..tensors.modes import as_numpy
from ..tensors.packing import of_rows
from ..tensors.parameter import unwrapped
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .csr_patterns import ones_at
from .weights import check_device, check_dtype

GROUP = 4  # tokens per group; a group loads its expert's weights once


class MoE(torch.nn.Module):
    """A mixture of n linear experts: each token's output is the gate-weighted sum of its ``top_k`` experts' outputs.

    The gates are a sparse matrix (tokens, n). Dispatch, experts and combination are einsums.

    Args:
        experts: the number of experts, or their weights (n, d_in, d_out). A ``torch.nn.Parameter`` is shared; a tensor is copied.
        top_k: number of experts per token. The experts with the largest scores are selected.
        d_in, d_out: sizes of input and output, if experts is a number.
        gate: whether the module has a linear layer ``gate`` that scores the experts for each token. Without it, calls take scores or
            sparse gates.
        normalize: whether to divide the gates of a token by their sum. With top_k=1, all gates are then 1, and ``gate`` gets no
            gradient.
        device: only the CPU is supported.
        dtype: data type of the parameters, if experts is a number.

    Shape:
        input (\\*, d_in), output (\\*, d_out).

    Raises:
        SizeError: top_k is not between 1 and the number of experts, or ``experts`` has another shape.
        UnsupportedError: d_in or d_out is missing, top_k is not an integer, or the device is not the CPU.

    Complexity:
        O((tokens * top_k + n) * d_in * d_out) operations for the experts, and O(tokens * n * d_in) for ``gate``.

    Source: Shazeer and others, "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer", 2017, section 2;
    Fedus, Zoph, Shazeer, "Switch Transformers", 2021, for the softmax over all experts.

    >>> layer = MoE(8, top_k=2, d_in=6, d_out=5)
    >>> layer(torch.ones(3, 10, 6)).shape
    torch.Size([3, 10, 5])
    """

    def __init__(
        self,
        experts: int | torch.Tensor,
        top_k: int = 1,
        d_in: int | None = None,
        d_out: int | None = None,
        *,
        gate: bool = True,
        normalize: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_device(self, device)
        is_given = isinstance(experts, torch.Tensor)
        if isinstance(experts, torch.Tensor):
            weight = experts
        elif d_in is None or d_out is None:
            raise UnsupportedError(f"MoE of {experts} experts: give d_in= and d_out=, or experts as a weight (n, d_in, d_out)")
        else:
            weight = torch.empty(experts, d_in, d_out, dtype=dtype)
        if weight.ndim != 3:
            raise SizeError(f"experts has shape {tuple(weight.shape)}: give weights of experts as (n, d_in, d_out)")
        if is_given and ((d_in or weight.shape[1]), (d_out or weight.shape[2])) != tuple(weight.shape[1:]):
            raise SizeError(f"experts has shape {tuple(weight.shape)}, but d_in={d_in} and d_out={d_out}: leave them out")
        self.top_k, self.normalize = _checked_top_k(top_k, len(weight)), normalize
        self.experts = weight if isinstance(weight, torch.nn.Parameter) else torch.nn.Parameter(weight.detach().clone())
        self.gate = torch.nn.Linear(weight.shape[1], len(weight), bias=False, dtype=weight.dtype) if gate else None
        if not is_given:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize the parameters; each expert is initialized like a ``torch.nn.Linear``."""
        bound = 1 / sqrt(max(self.experts.shape[1], 1))
        torch.nn.init.uniform_(self.experts, -bound, bound)
        if self.gate is not None:
            self.gate.reset_parameters()

    def forward(self, input: torch.Tensor, gates: torch.Tensor | SparseTensor | None = None) -> torch.Tensor:
        """Return the weighted sum of the experts' outputs, (\\*, d_out).

        Args:
            input: tokens (\\*, d_in) with the data type of the experts.
            gates: None to use ``gate``; dense scores (\\*, n), whose top_k largest per token become the gates; or sparse gates
                (tokens, n) with any number of entries per row.

        Raises:
            SizeError: the sizes of input, gates and experts do not match.
            RuntimeError: ``gate`` is used, and the last dimension of the input is not d_in.
            UnsupportedError: the module has no ``gate`` and none are given, or the data types of input and experts differ.
        """
        check_dtype(self, self.experts, input)
        if gates is None:
            if self.gate is None:
                raise UnsupportedError("MoE with gate=False needs gates: call it with scores (*, n) or with sparse gates (tokens, n)")
            gates = self.gate(input).softmax(-1)
        if not is_sparse(unwrapped(gates)):
            flat = input.reshape(-1, input.shape[-1])
            output: torch.Tensor = routed(flat, gates.reshape(-1, gates.shape[-1]), self.experts, self.top_k, self.normalize)
            return output.reshape(*input.shape[:-1], output.shape[-1])
        output = mixture(input.reshape(-1, input.shape[-1]), gates, self.experts)
        return output.reshape(*input.shape[:-1], output.shape[-1])

    def extra_repr(self) -> str:
        """Return the numbers and sizes that ``repr`` shows."""
        count, d_in, d_out = self.experts.shape
        return f"experts={count}, top_k={self.top_k}, d_in={d_in}, d_out={d_out}, density={self.top_k / count:.3g}"


@graph_break
def top_k_gates(scores: torch.Tensor, top_k: int, *, normalize: bool = False) -> SparseTensor:
    """Return the top_k largest scores of each row as a CSR matrix. Differentiable.

    Args:
        scores: shape (tokens, n).
        top_k: number of scores per row.
        normalize: whether to divide each row by its sum.

    Raises:
        SizeError: top_k is not between 1 and n.
        UnsupportedError: top_k is not an integer.

    >>> top_k_gates(torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.1, 0.4]]), 2).to_dense()
    tensor([[0.0000, 0.7000, 0.2000],
            [0.5000, 0.0000, 0.4000]])
    """
    if scores.ndim != 2:
        raise SizeError(f"scores has shape {tuple(scores.shape)}: give scores of experts as (tokens, n)")
    top_k = _checked_top_k(top_k, scores.shape[1])
    if top_k == 1:  # torch.max takes 1/4 of topk's time
        values, chosen = scores.max(1, keepdim=True)
    else:
        chosen = scores.detach().topk(top_k, sorted=False).indices.sort(1).values
        values = scores.gather(1, chosen)
    if normalize:
        values = values / values.sum(1, keepdim=True)
    pattern = of_rows(np.full(len(scores), top_k), as_numpy(chosen).ravel(), tuple(scores.shape))
    return SparseTensor.trusted(pattern, values.reshape(-1))


@traced("nn.mixture", lambda input, gates, experts: (input[0], experts[2]))
def mixture(input: torch.Tensor, gates: SparseTensor | torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Compute ``einsum("bn,bd,ndh->bh", gates, input, experts)`` by three einsums that load each expert once per four tokens.

    ``sb,bd->sd`` dispatches the tokens to groups of four with the same expert, the rows of a dense tensor (groups, 4, d).
    ``gn,gud,ndh->guh`` multiplies each group by its expert. ``bs,sh->bh`` sums the outputs of each token, weighted by the gates.
    Memory is O((tokens * top_k + 3 n) (d + h)).

    Args:
        input: tokens (batch, d).
        gates: sparse gates (batch, n).
        experts: weights (n, d, h).

    Shape:
        (batch, h).

    Raises:
        SizeError: sizes do not match.
        UnsupportedError: the gates are dense.

    >>> gates = top_k_gates(torch.tensor([[0.25, 0.75], [1.0, 0.0]]), 1)
    >>> mixture(torch.ones(2, 3), gates, torch.ones(2, 3, 1))
    tensor([[2.2500],
            [3.0000]])
    """
    gates_ = attached(gates)
    if not isinstance(gates_, SparseTensor):
        raise UnsupportedError("the gates are dense, so every expert would be computed: make them sparse with top_k_gates or ns.from_torch")
    _check_sizes(input, gates_, experts)
    stored = gates_ if gates_.pattern.format == CSR else gates_.to(CSR)
    slot_tokens, group_experts, token_slots = stored.pattern.remember("dispatch", lambda: plan_dispatch(stored.pattern))
    grouped = einsum("sb,bd->sd", ones_at(slot_tokens, input.dtype), input).reshape(-1, GROUP, input.shape[1])
    outputs = einsum("gn,gud,ndh->guh", ones_at(group_experts, input.dtype), grouped, experts)
    return einsum("bs,sh->bh", SparseTensor.trusted(token_slots, stored.values), outputs.reshape(-1, experts.shape[2]))


@traced("nn.routed", lambda input, scores, experts, *options: (input[0], experts[2]))
def routed(input: torch.Tensor, scores: torch.Tensor, experts: torch.Tensor, top_k: int, normalize: bool) -> torch.Tensor:
    """The mixture with the ``top_k`` largest scores of each token (batch, n) as gates."""
    return mixture(input, top_k_gates(scores, top_k, normalize=normalize), experts)


def plan_dispatch(gates: Pattern) -> tuple[Pattern, Pattern, Pattern]:
    """Assign the entries of a CSR matrix of gates to slots, expert by expert; the last group of an expert may have free slots.

    The number of groups is an upper bound over all distributions of the tokens, so shapes do not depend on the tokens per expert.

    Returns:
        CSR patterns of the token in each slot (slots, tokens), the expert of each group (groups, n), and the slots of each token
        (tokens, slots).

    >>> _, group_experts, token_slots = plan_dispatch(top_k_gates(torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]), 1).pattern)
    >>> token_slots.level_arrays(1)[1].tolist(), group_experts.level_arrays(1)[1].tolist()
    ([4, 0, 5], [0, 1])
    """
    (tokens, count), (pos, expert) = gates.shape, gates.views
    order = expert.astype(np.min_scalar_type(count)).argsort(kind="stable")  # numpy uses radix sort for small integer types
    loads = np.bincount(expert, minlength=count)
    groups = -(-loads // GROUP)
    max_groups = min(len(expert), (len(expert) + count * (GROUP - 1)) // GROUP)
    starts = (groups.cumsum() - groups) * GROUP - (loads.cumsum() - loads)
    slots = np.arange(len(expert)) + starts.repeat(loads)
    entry_slots = np.empty_like(slots)
    entry_slots[order] = slots  # increasing for each token, because the token's experts are in increasing order
    group_experts, entries = np.arange(count).repeat(groups), np.diff(pos)
    return (
        of_rows(np.bincount(slots, minlength=max_groups * GROUP), np.arange(tokens).repeat(entries)[order], (max_groups * GROUP, tokens)),
        of_rows(np.arange(max_groups) < len(group_experts), group_experts, (max_groups, count)),
        of_rows(entries, entry_slots, (tokens, max_groups * GROUP)),
    )


def _checked_top_k(top_k: Any, count: int) -> int:
    """Check the number of experts per token, and return it as an int.

    Raises:
        SizeError: top_k is not between 1 and the number of experts.
        UnsupportedError: top_k is not an integer.

    >>> _checked_top_k(np.int64(2), 4)
    2
    """
    try:
        number = operator.index(top_k)
    except TypeError as error:
        raise UnsupportedError(f"top_k={top_k!r} of {count} experts: give an integer between 1 and {count}") from error
    if not 1 <= number <= count:
        raise SizeError(f"top_k={number} of {count} experts: choose between 1 and {count}")
    return number


def _check_sizes(input: torch.Tensor, gates: SparseTensor, experts: torch.Tensor) -> None:
    if (input.ndim, gates.ndim, experts.ndim) == (2, 2, 3) and (*gates.shape, input.shape[1]) == (len(input), *experts.shape[:2]):
        return
    shapes = f"input: {tuple(input.shape)}   gates: {tuple(gates.shape)}   experts: {tuple(experts.shape)}"
    if (input.ndim, gates.ndim, experts.ndim) != (2, 2, 3):
        raise SizeError(f"a mixture takes input (tokens, d), gates (tokens, n) and experts (n, d, h)\n  {shapes}")
    for name, left, right in (
        ("tokens", len(input), gates.shape[0]),
        ("experts", gates.shape[1], len(experts)),
        ("features", input.shape[1], experts.shape[1]),
    ):
        if left != right:
            raise SizeError(f"{left} {name} and {right}: input is (tokens, d), gates (tokens, n), experts (n, d, h)\n  {shapes}")
