"""A network with 2:4 sparse hidden layers

The network is trained dense, pruned to 2:4, and fine-tuned. The example shows the format NM(2, 4): it stores 2 of every 4 consecutive
weights, each with its position in the group of 4. Run it with generated digits or with MNIST:

    python examples/two_four.py                         # generated digits
    python examples/two_four.py --data mnist            # a folder with the MNIST files, such as *images-idx3-ubyte.gz

The method is that of Mishra, Latorre, Pool, Stosic, Stosic, Venkatesh, Yu, Micikevicius, "Accelerating sparse deep neural networks", 2021.
The twin has the same weights as dense tensors with masks. It is trained on the same batches.
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
