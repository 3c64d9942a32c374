"""Attention over a sliding window: each place looks at its neighbours, not at the whole text.

``softmax(Q @ K.T / √d) @ V`` makes a score for every pair of places. Longformer (Beltagy, Peters, Cohan, 2020) and BigBird
(Zaheer et al., NeurIPS 2020) keep the pairs of a pattern; written down as a sparse tensor, it makes attention three steps:

* ``id,jd->ij`` with the pattern as ``mask=``: scores where it has entries (SDDMM, sampled dense-dense matrix product),
* ``softmax`` over the stored entries of each row,
* ``ij,jd->id``: the mean of the values, weighted by them (SpMM).

    python examples/sparse_attention.py                       # windows of 32 to each side, in ever longer texts
    python examples/sparse_attention.py --data pattern.mtx    # the entries of a Matrix Market file as pattern

The dense twin is torch's ``scaled_dot_product_attention`` with the pattern as a mask of truth values.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from common import Figure, agree, options, table, timed, times_as_fast, tqdm

import numscorch as ns

WIDTH, DEPTH = 32, 64


def sliding_window(length: int, width: int) -> ns.SparseTensor:
    """An entry at (i, j) where |i - j| <= width."""
    rows = torch.arange(length).repeat_interleave(2 * width + 1)
    columns = (torch.arange(length)[:, None] + torch.arange(-width, width + 1)).flatten()
    inside = (columns >= 0) & (columns < length)
    places = torch.stack([rows[inside], columns[inside]])
    return ns.from_coo(places, torch.ones(places.shape[1]), (length, length), format=ns.CSR)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pattern: ns.SparseTensor) -> torch.Tensor:
    """softmax(q kᵀ / √d) v over the pattern's entries; q, k, v: (length, d)."""
    scores = ns.einsum("id,jd->ij", q / q.shape[1] ** 0.5, k, mask=pattern)
    return ns.einsum("ij,jd->id", ns.softmax(scores, 1), v)


def dense_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The same, from a score for every pair; the batch's dimension is the first."""
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0]


def windows(longest: int) -> Iterator[ns.SparseTensor]:
    """Windows over texts, each twice as long as the one before."""
    length = min(256, longest)
    while length <= longest:
        yield sliding_window(length, WIDTH)
        length *= 2


def gradients(result: torch.Tensor, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Those of the sum of squares, one below another."""
    return torch.cat(torch.autograd.grad(result.square().sum(), inputs))


def main() -> None:
    chosen = options(__doc__, data="a Matrix Market file of a square matrix (.mtx, .mtx.gz)", longest=2048, repeat=50)
    patterns = list(windows(chosen.longest)) if chosen.data is None else [ns.load(chosen.data).to(torch.float32)]
    rows, measured, apart = [], [], []
    for pattern in tqdm(patterns, desc="lengths"):
        inputs = [torch.randn(pattern.shape[0], DEPTH, requires_grad=True) for _ in range(3)]
        mask = pattern.with_values(torch.ones_like(pattern.values)).to_dense().bool()
        ours, theirs = attention(*inputs, pattern), dense_attention(*inputs, mask)
        apart.append((ours - theirs.nan_to_num()).abs().max().item())  # rows without entries: NaN there, 0 here
        if mask.any(1).all():
            apart.append((gradients(ours, inputs) - gradients(theirs, inputs)).abs().max().item())
        times: tuple[list[float], list[float]] = ([], [])
        with torch.no_grad():
            for _ in range(chosen.repeat):
                timed(times[0], attention, *inputs, pattern)
                timed(times[1], dense_attention, *inputs, mask)
        rows.append((f"{pattern.shape[0]:,}", f"{pattern.density:.1%}", *times_as_fast(*times)))
        measured.append((pattern.shape[0], *(min(taken) * 1e3 for taken in times)))
    agree("results and gradients", max(apart), 1e-4)
    table(("length", "density", "numscorch", "dense with a mask", ""), *rows)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    lengths, ours, theirs = zip(*measured, strict=True)
    axes.loglog(lengths, ours, ".-", label="numscorch")
    axes.loglog(lengths, theirs, ".-", label="dense with a mask")
    axes.set(
        xlabel="length",
        ylabel="ms, the least of several",
        title="attention" if chosen.data else f"attention to {WIDTH} places on each side",
    )
    axes.legend()
    figure.savefig(chosen.out)
    print(f"plot in {chosen.out}")


if __name__ == "__main__":
    main()
