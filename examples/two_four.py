"""A network whose hidden layers keep 2 of every 4 consecutive weights, in a format that stores just these.

It is trained dense, pruned to 2:4, and trained on, as in Mishra, Latorre, Pool, Stosic, Stosic, Venkatesh, Yu, Micikevicius,
"Accelerating sparse deep neural networks", 2021. NM(2, 4) stores 2 of 4 weights, each with its place among the 4.

    python examples/two_four.py                         # digits that are drawn at random
    python examples/two_four.py --data mnist            # a folder with MNIST's files, as *images-idx3-ubyte.gz

The twin is how one does it with dense tensors: the same weights with masks. It sees the same batches.
"""

from __future__ import annotations

from training import beside_masks, compare, dense_first, train

from numscorch.sparsify import n_m


def main() -> None:
    chosen, data, dense, before = dense_first(__doc__)
    nets = beside_masks("2:4", dense, data, n_m(2, 4), places=(0, 2))
    print(nets["2:4"])
    compare(train(nets, data, chosen.epochs, "2:4"), before, chosen.out)


if __name__ == "__main__":
    main()
