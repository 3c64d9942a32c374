"""Text classification with BigBird attention

A transformer encoder predicts the topic of a text. Each word attends to its neighbours, some random blocks of words and two global words
instead of the whole text. The example shows how ``SparseTransformerEncoderLayer`` replaces torch's encoder layer and computes only the
scores of a pattern. Run it with generated texts or with a CSV file:

    python examples/bigbird_classifier.py                                   # texts of random words
    python examples/bigbird_classifier.py --data test.csv --length 128      # lines of class, title, text, as in AG News

The network is the one in the evaluation of the Scorch paper (appendix E.4, table 3): word and position embeddings of size 128,
two transformer encoder layers with 4 heads and 256 hidden features, gelu, and AdamW with learning rate 0.001. The pattern is
from Zaheer et al., "Big Bird: Transformers for Longer Sequences" (NeurIPS 2020), in blocks of 16 words. The class is predicted
from the first token of each text, which attends to the whole text. There is no dropout.

The dense twin is ``torch.nn.TransformerEncoderLayer`` with the pattern as a mask: its ``scaled_dot_product_attention`` computes
every score. It starts from the same weights and is trained on the same batches.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from zlib import crc32

import torch
from common import Figure, agree, options, table, timed, times_as_fast, tqdm
from torch import nn

from numscorch.nn import SparseTransformerEncoderLayer, patterns

WIDTH, BETWEEN, HEADS, LAYERS, RATE = 128, 256, 4, 2, 1e-3
VOCABULARY, PADDING, START, PART = 8192, 0, 1, 64
TOPICS, COMMON_WORDS, OWN_WORDS = 4, 2000, 60


def drawn(count: int, length: int) -> tuple[list[str], list[int]]:
    """Random texts: one word in six is specific to the topic, the others are common words with decreasing frequencies."""
    topics = torch.randint(TOPICS, (count,))
    lengths = torch.randint(length // 2, length, (count,))
    common = torch.multinomial(1 / (5 + torch.arange(COMMON_WORDS)), count * length, replacement=True).view(count, length)
    topical = COMMON_WORDS + OWN_WORDS * topics[:, None] + torch.randint(OWN_WORDS, (count, length))
    words = torch.where(torch.rand(count, length) < 1 / 6, topical, common)
    texts = [" ".join(f"word{word}" for word in row[:topical]) for row, topical in zip(words.tolist(), lengths.tolist(), strict=True)]
    return texts, topics.tolist()


def read(path: Path) -> tuple[list[str], list[int]]:
    """Titles and texts of a CSV file, and their classes, numbered from 0."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if len(row) > 1]
    if not rows:
        raise SystemExit(f"{path} has no lines of class, title, text")
    numbered = {name: number for number, name in enumerate(sorted({row[0] for row in rows}))}
    return [" ".join(row[1:]) for row in rows], [numbered[row[0]] for row in rows]


def tokens(texts: Sequence[str], length: int) -> torch.Tensor:
    """Token ids of each text: a start token, then hashed words, truncated or padded to the length."""
    ids = torch.full((len(texts), length), PADDING)
    ids[:, 0] = START
    for row, text in zip(ids, texts, strict=True):
        words = re.findall(r"\w+", text.lower())[: length - 1]
        row[1 : 1 + len(words)] = torch.tensor([2 + crc32(word.encode()) % (VOCABULARY - 2) for word in words], dtype=torch.int64)
    return ids


class Classifier(nn.Module):
    """Word and position embeddings, encoder layers, and class scores from the first token."""

    def __init__(self, layers: Sequence[nn.Module], length: int, classes: int):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PADDING), nn.Embedding(length, WIDTH)
        self.layers, self.scores = nn.ModuleList(layers), nn.Linear(WIDTH, classes)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        mask, padding = self.mask(texts.shape[1]), texts == PADDING
        hidden = self.words(texts) + self.places.weight[: texts.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, src_key_padding_mask=padding)
        return self.scores(hidden[:, 0])

    def mask(self, length: int) -> torch.Tensor | None:
        """Attention mask, for layers without a pattern."""
        if isinstance(self.layers[0], SparseTransformerEncoderLayer):
            return None
        return ~patterns.bigbird(length).to_dense().bool()


def networks(length: int, classes: int) -> tuple[Classifier, Classifier]:
    """A network with BigBird layers, and its twin with dense layers and a mask."""
    layers = [nn.TransformerEncoderLayer(WIDTH, HEADS, BETWEEN, dropout=0.0, activation="gelu", batch_first=True) for _ in range(LAYERS)]
    dense = Classifier(layers, length, classes)
    sparse = deepcopy(dense)
    sparse.layers = nn.ModuleList(SparseTransformerEncoderLayer.from_dense(layer, patterns.bigbird) for layer in layers)
    return sparse, dense


class Training:
    """A network, its optimizer, the time and loss of each step, and the accuracy after each epoch."""

    def __init__(self, net: nn.Module):
        self.net, self.optimizer = net, torch.optim.AdamW(net.parameters(), lr=RATE)
        self.times: list[float] = []
        self.losses: list[float] = []
        self.accuracy: list[float] = []

    def step(self, texts: torch.Tensor, labels: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.net(texts), labels)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    @torch.no_grad()
    def test(self, texts: torch.Tensor, labels: torch.Tensor) -> None:
        scores = torch.cat([self.net(part) for part in texts.split(PART)])
        self.accuracy.append((scores.argmax(1) == labels).float().mean().item())


def train(runs: Sequence[Training], texts: torch.Tensor, labels: torch.Tensor, epochs: int, size: int) -> None:
    """Train the networks in turn on the same batches; the last fifth of the texts is the test set."""
    cut = len(texts) * 4 // 5
    batches = [(epoch, batch) for epoch in range(epochs) for batch in torch.randperm(cut).split(size)]
    following = [epoch for epoch, _ in batches[1:]] + [epochs]
    for (epoch, batch), after in zip(tqdm(batches, desc="training", unit=" steps"), following, strict=True):
        for run in runs:
            timed(run.times, run.step, texts[batch], labels[batch])
            if after > epoch:
                run.test(texts[cut:], labels[cut:])


def by_length(longest: int, batch: int = 8) -> list[tuple[int, list[float], list[float]]]:
    """Times of training steps by text length, sparse and dense."""
    measured, length = [], min(128, longest)
    while length <= longest:
        runs = [Training(net) for net in networks(length, TOPICS)]
        texts, labels = torch.randint(START, VOCABULARY, (batch, length)), torch.randint(TOPICS, (batch,))
        for _ in range(5):
            for run in runs:
                timed(run.times, run.step, texts, labels)
        measured.append((length, *(run.times for run in runs)))
        length *= 2
    return measured


def plot(ours: Training, twin: Training, measured: list[tuple[int, list[float], list[float]]], path: Path) -> None:
    """Plot losses, accuracies, and the time of a step against text length."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for run, style, name in ((ours, "C0-", "BigBird"), (twin, "C1--", "dense with a mask")):
        left.plot(run.losses, style, label=name)
        middle.plot(range(1, len(run.accuracy) + 1), run.accuracy, style, marker=".")
        milliseconds = [min(row[1 if run is ours else 2]) * 1e3 for row in measured]
        right.loglog([row[0] for row in measured], milliseconds, style, marker=".")
    left.set(xlabel="step", ylabel="cross entropy")
    middle.set(xlabel="epoch", ylabel="accuracy on test texts", xticks=range(1, len(ours.accuracy) + 1))
    lengths = [row[0] for row in measured]
    right.set(xlabel="length of the texts", ylabel="ms a step, 8 texts", xticks=lengths, xticklabels=lengths)
    right.xaxis.minorticks_off()
    left.legend()
    figure.savefig(path)


def main() -> None:
    chosen = options(__doc__, data="a file of class, title, text (.csv)", count=600, length=256, epochs=3, batch=32, longest=1024)
    texts, names = drawn(chosen.count, chosen.length) if chosen.data is None else read(chosen.data)
    order = torch.randperm(len(texts))
    rows, labels = tokens(texts, chosen.length)[order], torch.tensor(names)[order]
    ours, twin = map(Training, networks(chosen.length, int(labels.max()) + 1))
    print(ours.net.layers[0], f"pattern of {chosen.length} tokens: {patterns.bigbird(chosen.length)}", sep="\n")
    with torch.no_grad():
        agree("scores before the training", (ours.net(rows[:PART]) - twin.net(rows[:PART])).abs().max().item(), 1e-4)
    train((ours, twin), rows, labels, chosen.epochs, chosen.batch)
    agree("accuracies after the training", abs(ours.accuracy[-1] - twin.accuracy[-1]), 0.05)
    measured = by_length(chosen.longest)
    table(
        ("", "BigBird", "dense with a mask", ""),
        ("accuracy on test texts", f"{ours.accuracy[-1]:.1%}", f"{twin.accuracy[-1]:.1%}"),
        (f"a step, {chosen.batch} texts of {chosen.length}", *times_as_fast(ours.times, twin.times)),
        *((f"a step, 8 texts of {length}", *times_as_fast(*times)) for length, *times in measured),
    )
    plot(ours, twin, measured, chosen.out)
    print(f"plot in {chosen.out}")


if __name__ == "__main__":
    main()
