"""A cost model of products on many ranks, and the rates that it needs.

A step of SpMM on the slowest rank takes

    entries x columns x product + messages x alpha + rows received x columns x 4 bytes x (1 / bandwidth + copy)

``product`` and ``copy`` are measured on one thread; ``copy`` is the time to select a row for sending and to add a received one. Alpha and
the bandwidth are those of a network, or measured. Products and exchanges are added: on a machine whose cores do both, an exchange
takes cycles from the kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import numscorch as ns

COLUMNS = 64
BYTES = 4  # of a float32
ROUNDS = 5


@dataclass(frozen=True)
class Network:
    """Seconds per message, and bytes per second of a rank."""

    alpha: float
    bandwidth: float


NETWORKS = {"10 Gb/s": Network(20e-6, 1.25e9), "100 Gb/s": Network(20e-6, 12.5e9), "400 Gb/s": Network(20e-6, 50e9)}


@dataclass(frozen=True)
class Rates:
    """Seconds per entry and column of a product, and per byte of copied rows."""

    product: float
    copy: float


@dataclass(frozen=True)
class Work:
    """A step on the slowest rank.

    Args:
        entries: entries of the matrix.
        columns: columns of the dense operand.
        received: rows of this number of columns that the rank exchanges.
        messages: messages that it receives.
    """

    entries: float
    columns: float
    received: float = 0.0
    messages: float = 0.0

    def product_seconds(self, rates: Rates) -> float:
        """Seconds of the products."""
        return self.entries * self.columns * rates.product

    def exchange_seconds(self, rates: Rates, network: Network) -> float:
        """Seconds of the exchange, and of copying its rows."""
        return self.messages * network.alpha + self.received * self.columns * BYTES * (1 / network.bandwidth + rates.copy)

    def seconds(self, rates: Rates, network: Network) -> float:
        """Seconds of the step.

        >>> round(Work(entries=2000, columns=64, received=10, messages=1).seconds(Rates(1e-9, 1e-9), Network(1e-5, 1e9)), 8)
        0.00014312
        """
        return self.product_seconds(rates) + self.exchange_seconds(rates, network)


def seconds_of(function: Callable[[], object]) -> float:
    """Seconds of a call."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def product_rate(A: ns.SparseTensor, columns: int) -> float:
    """Seconds of SpMM on one thread, per entry and column."""
    torch.set_num_threads(1)
    x = torch.rand(A.shape[1], columns)
    return min(seconds_of(lambda: A @ x) for _ in range(ROUNDS)) / A.nnz / columns


def copying(rows: int) -> Callable[[], object]:
    """Select half of these rows in a random order for sending, and add them to the other half."""
    x, buffer = torch.rand(rows, COLUMNS), torch.empty(rows // 2, COLUMNS)
    places = torch.randperm(rows)[: rows // 2].sort().values

    def run() -> None:
        torch.index_select(x, 0, places, out=buffer)
        x.index_add_(0, places, buffer)

    return run


def copy_rate(rows: int) -> float:
    """Seconds on one thread to select and to add rows, per byte of them."""
    torch.set_num_threads(1)
    run = copying(rows)
    return min(seconds_of(run) for _ in range(ROUNDS)) / (rows // 2 * COLUMNS * BYTES)
