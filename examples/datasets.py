"""Images of digits: generated, or read from MNIST files.

LeCun, Cortes, Burges, "The MNIST database of handwritten digits", describes the ``idx`` format: a header with data
type and shape, followed by the pixels.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

SIZE = 28
# The segments of a seven-segment display: (x, y) of both ends, with x in 0..1 and y in 0..2.
SEGMENTS = np.array([[0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 1, 1], [0, 1, 1, 1], [0, 1, 0, 2], [1, 1, 1, 2], [0, 2, 1, 2]], np.float32)
LIT = ["012456", "25", "02346", "02356", "1235", "01356", "013456", "025", "0123456", "012356"]
ON = np.array([[str(segment) in lit for segment in range(7)] for lit in LIT])


class Images(NamedTuple):
    """Training and test images, each a row of pixels between 0 and 1, with their digits as labels."""

    train: torch.Tensor
    train_labels: torch.Tensor
    test: torch.Tensor
    test_labels: torch.Tensor


def digits(folder: Path | None, count: int = 5000, seed: int = 0) -> Images:
    """Images for an example; four fifths are training images.

    Args:
        folder: folder with ``*images-idx3-ubyte.gz`` and ``*labels-idx1-ubyte.gz``, or both unzipped; None generates digits.
        count: number of generated images.
        seed: seed of the generated images and of the split.
    """
    pixels, labels = drawn(count, seed) if folder is None else (read_idx(folder, "images-idx3"), read_idx(folder, "labels-idx1"))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    rows = torch.from_numpy(pixels.reshape(len(labels), -1))[order].float() / 255
    named, cut = torch.from_numpy(labels)[order].long(), len(labels) * 4 // 5
    return Images(rows[:cut], named[:cut], rows[cut:], named[cut:])


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Seven-segment digits, each with a slant, width, height, place and stroke of its own, with segments that fade, and with noise."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 10, count)
    slant, left, top, width, height, stroke = (
        generator.uniform(low, high, (count, 1)).astype(np.float32)
        for low, high in ((-0.35, 0.35), (6, 12), (3, 8), (6, 11), (6, 8.5), (0.9, 2.0))
    )
    brightness = ON[labels] * generator.uniform(0.35, 1.0, (count, 7)).astype(np.float32)
    y, x = (axis.reshape(1, -1).astype(np.float32) for axis in np.indices((SIZE, SIZE)))
    image = np.zeros((count, SIZE * SIZE), np.float32)
    for segment, (x0, y0, x1, y1) in enumerate(SEGMENTS):
        start = left + x0 * width - slant * (y0 - 1) * height, top + y0 * height
        along = (x1 - x0) * width - slant * (y1 - y0) * height, (y1 - y0) * height
        share = ((x - start[0]) * along[0] + (y - start[1]) * along[1]) / (along[0] ** 2 + along[1] ** 2)
        share = np.clip(share, 0, 1)
        distance = np.hypot(x - start[0] - share * along[0], y - start[1] - share * along[1])
        image = np.maximum(image, brightness[:, segment, None] * np.clip(1 + stroke - distance, 0, 1))
    image += (image > 0) * generator.normal(0, 0.1, image.shape).astype(np.float32)
    return np.round(np.clip(image, 0, 1) * 255).astype(np.uint8), labels


def read_idx(folder: Path, kind: str) -> np.ndarray:
    """Concatenated arrays of all files of a kind in a folder: ``t10k-images-idx3-ubyte.gz``, or unzipped."""
    paths = sorted(path for path in folder.glob(f"*{kind}-ubyte*") if path.name.endswith((".gz", "ubyte")))
    if not paths:
        raise SystemExit(f"{folder} has no file *{kind}-ubyte.gz: --data takes a folder with MNIST's images and labels")
    return np.concatenate([_idx(path) for path in paths])


def _idx(path: Path) -> np.ndarray:
    """Read an idx file: two zero bytes, 8 for unsigned bytes, the number of dimensions, their sizes, and the values."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise SystemExit(f"{path} is no idx file of unsigned bytes: it starts with {content[:4]!r}")
    shape = np.frombuffer(content, ">u4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)
