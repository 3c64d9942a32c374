"""Mixtures of experts as in the slides: against their einsum of every expert, and a loop over those that are chosen."""

from __future__ import annotations

from itertools import product

import torch

import numscorch as ns

from .data import dense
from .paper_runs import Run
from .paper_tables import LOOP, SLIDES


def moe(run: Run) -> None:
    """Top-1, so many tokens, experts and features in and out."""
    for tokens, experts, width in product(run.sizes.tokens, run.sizes.experts, run.sizes.widths):
        run.attempt(_measure, tokens, experts, width)


@torch.no_grad()
def _measure(run: Run, tokens: int, experts: int, width: int) -> None:
    """All choose the experts anew in each call, as they must where scores depend on the tokens."""
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
    """What the slides write: tokens go to every expert, and gates, which are 0 but for one, combine what comes back."""
    best, chosen = scores.max(1, keepdim=True)
    gates = torch.zeros_like(scores).scatter_(1, chosen, best)
    dispatched = x[:, None].expand(-1, len(experts), -1)
    outputs = torch.einsum("bnd,ndh->bnh", dispatched, experts)
    return torch.einsum("bnh,bn->bh", outputs, gates)


def loop_of_searches(x: torch.Tensor, scores: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Each expert's tokens are searched, selected, and added where they came from."""
    best, chosen = scores.max(1)
    result = x.new_zeros(len(x), experts.shape[2])
    for number, expert in enumerate(experts):
        own = (chosen == number).nonzero().flatten()
        if len(own):
            result.index_add_(0, own, (x.index_select(0, own) @ expert) * best.index_select(0, own)[:, None])
    return result


def loop_of_ranges(x: torch.Tensor, scores: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Tokens are sorted by their expert once, so that each expert's are a range."""
    best, chosen = scores.max(1)
    order = chosen.argsort()
    sizes = torch.bincount(chosen, minlength=len(experts)).tolist()
    parts = x.index_select(0, order).split(sizes)
    outputs = torch.cat([part @ expert for part, expert in zip(parts, experts, strict=True) if len(part)])
    weighted = outputs * best.index_select(0, order)[:, None]
    return x.new_zeros(len(x), experts.shape[2]).index_add_(0, order, weighted)
