"""The operators that torch's users need of sparse matrices: one row each, as a function of a sparse matrix and dense operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Given:
    """A sparse 4 x 6 matrix, or the same one dense, and dense tensors that fit it."""

    S: Any
    D: torch.Tensor
    X: torch.Tensor
    v: torch.Tensor
    u: torch.Tensor

    @property
    def T(self) -> Any:
        """The transpose."""
        return self.S.t()


Row = Callable[[Given], Any]
ROWS: dict[str, Row] = {
    "torch.mm(S, D)": lambda g: torch.mm(g.S, g.X),
    "torch.mv(S, v)": lambda g: torch.mv(g.S, g.v),
    "torch.matmul(u, S)": lambda g: torch.matmul(g.u, g.S),
    "S @ D": lambda g: g.S @ g.X,
    "D @ S": lambda g: g.X.t() @ g.T,
    "S @ v": lambda g: g.S @ g.v,
    "S @ S": lambda g: g.S @ g.T,
    "torch.addmm(D, S, D)": lambda g: torch.addmm(g.D @ g.X, g.S, g.X, beta=2, alpha=3),
    "S (2-D) @ D (3-D)": lambda g: g.S @ torch.stack([g.X, 2 * g.X]),
    "F.linear(x, S)": lambda g: F.linear(g.X.t(), g.S),
    "F.linear(x, S, bias)": lambda g: F.linear(g.X.t(), g.S, g.u),
    "einsum ij->ji": lambda g: torch.einsum("ij->ji", g.S),
    "einsum ij,jk->ik": lambda g: torch.einsum("ij,jk->ik", g.S, g.X),
    "einsum ij,ij->i": lambda g: torch.einsum("ij,ij->i", g.S, g.D),
    "tensordot": lambda g: torch.tensordot(g.S, g.X, 1),
    "S + S": lambda g: g.S + 2 * g.S,
    "S + D": lambda g: g.S + g.D,
    "D + S": lambda g: g.D + g.S,
    "S - S": lambda g: g.S - 3 * g.S,
    "S * S": lambda g: g.S * g.S,
    "S * D": lambda g: g.S * g.D,
    "S * row vector": lambda g: g.S * g.v,
    "S * column vector": lambda g: g.S * g.u[:, None],
    "S * scalar": lambda g: g.S * 2.5,
    "scalar * S": lambda g: 2.5 * g.S,
    "S / scalar": lambda g: g.S / 2.5,
    "S / D": lambda g: g.S / g.D,
    "S ** 2": lambda g: torch.pow(g.S, 2),
    "S > 0": lambda g: g.S > 0,
    "S == 0": lambda g: g.S == 0,
    "S > D": lambda g: g.S > g.D,
    "maximum(S, S)": lambda g: torch.maximum(g.S, 0.5 * g.S),
    "minimum(S, D)": lambda g: torch.minimum(g.S, g.D),
    "where(S > 0, S, D)": lambda g: torch.where(g.S > 0, g.S, g.D),
    "clamp(-1, 1)": lambda g: torch.clamp(g.S, -1, 1),
    "clamp(0.5)": lambda g: torch.clamp(g.S, 0.5),
    "relu": lambda g: torch.relu(g.S),
    "F.relu": lambda g: F.relu(g.S),
    "sin": lambda g: torch.sin(g.S),
    "abs": lambda g: abs(g.S),
    "sqrt": lambda g: torch.sqrt(abs(g.S)),
    "neg": lambda g: -g.S,
    "tanh": lambda g: g.S.tanh(),
    "gelu": lambda g: F.gelu(g.S),
    "exp": lambda g: torch.exp(g.S),
    "sigmoid": lambda g: torch.sigmoid(g.S),
    "dropout, eval": lambda g: F.dropout(g.S, 0.5, training=False),
    "sum()": lambda g: g.S.sum(),
    "sum(0)": lambda g: g.S.sum(0),
    "sum(1, keepdim)": lambda g: g.S.sum(1, keepdim=True),
    "mean()": lambda g: g.S.mean(),
    "mean(0)": lambda g: torch.mean(g.S, 0),
    "max()": lambda g: g.S.max(),
    "amax(1)": lambda g: torch.amax(g.S, 1),
    "amin(0)": lambda g: torch.amin(g.S, 0),
    "max(1).indices": lambda g: torch.max(g.S, 1).indices,
    "argmax(1)": lambda g: torch.argmax(g.S, 1),
    "prod(1)": lambda g: torch.prod(g.S, 1),
    "norm": lambda g: torch.norm(g.S),
    "linalg.norm": lambda g: torch.linalg.norm(g.S),
    "norm(1, dim=1)": lambda g: torch.norm(g.S, 1, 1),
    "t()": lambda g: g.S.t(),
    "transpose": lambda g: torch.transpose(g.S, 0, 1),
    "permute": lambda g: g.S.permute(1, 0),
    "reshape(2, 12)": lambda g: g.S.reshape(2, 12),
    "view(-1)": lambda g: g.S.view(-1),
    "flatten": lambda g: torch.flatten(g.S),
    "unsqueeze(0)": lambda g: torch.unsqueeze(g.S, 0),
    "squeeze": lambda g: torch.squeeze(g.S.unsqueeze(1)),
    "expand": lambda g: g.S.unsqueeze(0).expand(3, 4, 6),
    "S[0]": lambda g: g.S[0],
    "S[0, 1]": lambda g: g.S[0, 1],
    "S[1:3]": lambda g: g.S[1:3],
    "S[:, 1:5:2]": lambda g: g.S[:, 1:5:2],
    "S[mask]": lambda g: g.S[torch.tensor([True, False, True, True])],
    "S[[0, 2, 0]]": lambda g: g.S[[0, 2, 0]],
    "S[..., None]": lambda g: g.S[..., None],
    "index_select": lambda g: torch.index_select(g.S, 1, torch.tensor([3, 0])),
    "select": lambda g: torch.select(g.S, 1, 2),
    "narrow": lambda g: torch.narrow(g.S, 0, 1, 2),
    "diagonal": lambda g: torch.diagonal(g.S, 1),
    "tril": lambda g: torch.tril(g.S),
    "triu(1)": lambda g: torch.triu(g.S, 1),
    "cat": lambda g: torch.cat([g.S, g.S[:2]], 0),
    "cat, dim 1": lambda g: torch.cat([g.S, g.S], 1),
    "stack": lambda g: torch.stack([g.S, g.S]),
    "clone": lambda g: g.S.clone(),
    "to(float32)": lambda g: g.S.to(torch.float32),
    "contiguous": lambda g: g.S.contiguous(),
    "equal": lambda g: torch.equal(g.S, g.S.clone()),
    "allclose": lambda g: torch.allclose(g.S, g.S * 1.0),
    "zeros_like": lambda g: torch.zeros_like(g.S),
    "mul_(2)": lambda g: g.S.clone().mul_(2),
    "add_(S)": lambda g: g.S.clone().add_(g.S),
    "zero_": lambda g: g.S.clone().zero_(),
    "copy_": lambda g: g.S.clone().copy_(3 * g.S),
}
STORED = {"softmax": lambda g: torch.softmax(g.S, 1), "log_softmax": lambda g: torch.log_softmax(g.S, 1)}  # over stored entries alone
WITHOUT_GRADIENT = {"S > 0", "S == 0", "S > D", "max(1).indices", "argmax(1)", "equal", "allclose", "zeros_like", "zero_"}
