"""Mixtures of experts as in the slides, against an einsum of all experts and a loop over the chosen experts."""

from __future__ import annotations

from itertools import product

import torch

import numscorch as ns

from ..data import dense
from .runs import Run
from .tables import LOOP, SLIDES


def moe(run: Run) -> None:
    """Measure top-1 mixtures for each number of tokens, experts and features."""
    for tokens, experts, width in product(run.sizes.tokens, run.sizes.experts, run.sizes.widths):
        run.attempt(_measure, tokens, experts, width)


@torch.no_grad()
def _measure(run: Run, tokens: int, experts: int, width: int) -> None:
    """Measure one mixture. Each call chooses the experts again, since scores usually depend on the tokens."""
    x, scores, E = dense(tokens, width), dense(tokens, experts, seed=2).softmax(-1), dense(experts, width, width, seed=3) / width**0.5
    ours = ns.nn.MoE(E, top_k=1, gate=False)
    peers = {
        SLIDES: lambda: every_expert(x, scores, E),
        f"{LOOP}: one search each": lambda: loop_of_searches(x, scores, E),
        f"{LOOP}: sorted first": lambda: loop_of_ranges(x, scores, E),
    }
    case = f"{experts} experts, {tokens} tokens, {width} wide"
    run.compare("moe", case, lambda: ours(x, scores), peers, tokens=tokens, experts=experts, width=width)


def every_expert(x: torch.Tensor, scores: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """The formulation of the slides: every expert computes all tokens, and one-hot gates combine the outputs."""
    best, chosen = scores.max(1, keepdim=True)
    gates = torch.zeros_like(scores).scatter_(1, chosen, best)
    dispatched = x[:, None].expand(-1, len(experts), -1)
    outputs = torch.einsum("bnd,ndh->bnh", dispatched, experts)
    return torch.einsum("bnh,bn->bh", outputs, gates)


def loop_of_searches(x: torch.Tensor, scores: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """For each expert, find and gather its tokens, and scatter-add the outputs."""
    best, chosen = scores.max(1)
    result = x.new_zeros(len(x), experts.shape[2])
    for number, expert in enumerate(experts):
        tokens = (chosen == number).nonzero().flatten()
        if len(tokens):
            result.index_add_(0, tokens, (x.index_select(0, tokens) @ expert) * best.index_select(0, tokens)[:, None])
    return result


def loop_of_ranges(x: torch.Tensor, scores: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Sort the tokens by expert once, so that each expert reads a contiguous range."""
    best, chosen = scores.max(1)
    order = chosen.argsort()
    sizes = torch.bincount(chosen, minlength=len(experts)).tolist()
    parts = x.index_select(0, order).split(sizes)
    outputs = torch.cat([part @ expert for part, expert in zip(parts, experts, strict=True) if len(part)])
    weighted = outputs * best.index_select(0, order)[:, None]
    return x.new_zeros(len(x), experts.shape[2]).index_add_(0, order, weighted)
