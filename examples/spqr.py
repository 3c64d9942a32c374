"""Two-bit weights with a few sparse outliers in full precision

A product unpacks the weights to float32 and adds a sparse matrix of outliers. The example shows how to combine packed dense arrays with a
sparse parameter with 16-bit columns. Run it with ``python examples/spqr.py``; ``--data mnist`` reads a folder with the MNIST files. SpQR:
Dettmers and others, "SpQR: a sparse-quantized representation for near-lossless LLM weight compression", 2023; here, the largest weights are
outliers. Bits: 2 per weight, 2 x 16 per group of 16 weights (minimum, step), 32 + 16 per outlier (value, column), 32 per row of outliers.
"""

from copy import deepcopy

import torch
from common import agree, table
from torch import nn
from training import accuracy, dense_first, difference, plot

import numscorch as ns
from numscorch.sparsify import magnitude, sparsify

TOP, GROUP, SHIFTS = 3, 16, torch.arange(0, 8, 2, dtype=torch.uint8)  # largest two-bit number, group size, and bit shifts within a byte
NARROW = "(i, j) -> (i: dense, j: compressed(bits=16))"


class SpQR(nn.Module):
    """A linear layer with a two-bit weight plus a sparse matrix of the remaining errors of the outliers."""

    def __init__(self, layer: nn.Linear, share: float):
        super().__init__()
        W, self.bias = layer.weight.detach(), layer.bias
        self.shape, outliers = W.shape, magnitude(1 - share)(W)
        groups = W.masked_fill(outliers, 0).view(-1, GROUP)
        self.low, self.step = groups.amin(1, True).half(), ((groups.amax(1, True) - groups.amin(1, True)) / TOP).half()
        numbers = ((groups - self.low) / self.step.clamp(min=1e-7)).round().clamp(0, TOP).to(torch.uint8)
        self.packed = (numbers.view(-1, len(SHIFTS)) << SHIFTS).sum(1, True, dtype=torch.uint8)
        self.outliers = ns.nn.Parameter(sparsify(W - self.unpacked(), lambda _: outliers, NARROW))

    def unpacked(self) -> torch.Tensor:
        """The dequantized weight in float32."""
        return (self.low + self.step * (self.packed >> SHIFTS & TOP).view(-1, GROUP)).float().view(self.shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.unpacked(), self.bias) + nn.functional.linear(x, self.outliers)


def main() -> None:
    chosen, data, dense, _ = dense_first(__doc__)
    rows, cells = [], []
    for share in (0, 0.003, 0.01, 0.03, 0.1):
        net, twin = nn.Sequential(SpQR(dense[0], share), *dense[1:]), deepcopy(dense)
        twin[0].weight.data = net[0].unpacked() + net[0].outliers.to_dense()
        agree(f"scores with {share:.1%} outliers", difference(net, twin, data), 1e-3)
        stored = (net[0].packed, net[0].low, net[0].step, *net[0].outliers.state_dict().values())
        rows.append((8 * sum(tensor.nbytes for tensor in stored) / twin[0].weight.numel(), difference(net, dense, data)))
        cells.append((f"{share:.1%}", f"{rows[-1][0]:.2f}", f"{rows[-1][1]:.3f}", f"{accuracy(net, data):.1%}"))
    table(("outliers", "bits of a weight", "scores off by", "accuracy"), *cells)
    plot(chosen.out, "bits of a weight", "scores off by", {"2 bits and outliers": tuple(zip(*rows, strict=True))})


if __name__ == "__main__":
    main()
