"""A network whose hidden layers keep 2 of every 4 consecutive weights, in a format that stores just these.

It is trained dense, pruned to 2:4, and trained on, as in Mishra, Latorre, Pool, Stosic, Stosic, Venkatesh, Yu, Micikevicius,
"Accelerating sparse deep neural networks", 2021. NM(2, 4) stores 2 of 4 weights, each with its place among the 4.

    python examples/two_four.py                         # digits that are drawn at random
    python examples/two_four.py --data mnist            # a folder with MNIST's files, as *images-idx3-ubyte.gz

The twin is how one does it with dense tensors: the same weights with masks. It sees the same batches.
"""

from __future__ import annotations

from copy import deepcopy

from common import agree
from torch import nn
from torch.nn.utils import prune
from training import compare, dense_first, difference, train

from numscorch.nn import SparseLinear
from numscorch.sparsify import n_m


def pruned(dense: nn.Sequential) -> dict[str, nn.Sequential]:
    """The network with 2:4 weights in its hidden layers, and its twin with masks."""
    sparse, masked = deepcopy(dense), deepcopy(dense)
    for at in (0, 2):
        sparse[at] = SparseLinear.from_dense(dense[at], n_m(2, 4))
        prune.custom_from_mask(masked[at], "weight", n_m(2, 4)(dense[at].weight))
    return {"2:4": sparse, "with masks": masked}


def main() -> None:
    chosen, data, dense, before = dense_first(__doc__)
    nets = pruned(dense)
    print(nets["2:4"])
    agree("scores of the pruned networks", difference(*nets.values(), data), 1e-3)
    compare(train(nets, data, chosen.epochs, "2:4"), before, chosen.out)


if __name__ == "__main__":
    main()
