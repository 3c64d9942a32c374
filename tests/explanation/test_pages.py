"""HTML pages show all parts of an explanation, drawings of all formats, and pictures of patterns."""

from __future__ import annotations

import re
import runpy
import struct
import sys
import time
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Protocol

import numpy as np
import pytest
import torch
from cases import random_format
from compositions import compositions

import numscorch as ns
from numscorch import __main__ as cli
from numscorch.explanation import roofline, roofs
from numscorch.explanation.page import tokens, tree
from numscorch.explanation.positions import paths_to
from numscorch.explanation.sketches import exact_raster, sampled_raster, sketch
from numscorch.explanation.story import costs_in, passes_of
from numscorch.explanation.work import Work
from numscorch.ir.index import loops_of
from numscorch.ir.level import Mode
from numscorch.ir.levels import Compressed, Dense
from numscorch.ir.loop import Expr, call
from numscorch.tensors.packing import coordinates, pack
from numscorch.tensors.sparse_tensor import SparseTensor

VOID = {"meta", "br", "img", "line", "rect", "circle", "polyline"}
SECTIONS = ("Operands and result", "Index notation", "Loop nest", "Costs considered", "Passes", "Source")
EXAMPLES = Path(__file__).parents[2] / "examples"
SHAPE = (5, 6, 3, 4)
SOFTMAX = "m[i] stored max= A[i,j]\nE[i,j] = stored(A[i,j]) * exp(A[i,j] - m[i])\nl[i] = E[i,j]\nP[i,j] = E[i,j] / l[i]"


class Saves(Protocol):
    def save(self, path: Path) -> None: ...


def page(explained: Saves) -> str:
    """The page that ``save`` writes."""
    with TemporaryDirectory() as folder:
        explained.save(path := Path(folder) / "page.html")
        return path.read_text()


class Reader(HTMLParser):
    """Elements of a page, with their attributes, and its text. Elements must be closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        assert len({name for name, _ in attrs}) == len(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("h1", "h2", "h3"):
            self.headings.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text += data
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings[-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def checked(text: str) -> Reader:
    """Parse a page after checking that it is well-formed, fetches nothing, and has complete links and pictures."""
    reader = Reader(text)
    assert not re.search(r"<(?![a-z/!])|&(?!#?\w+;)", text)
    anchors = [attributes["id"] for _, attributes in reader.found if "id" in attributes]
    assert len(anchors) == len(set(anchors))
    assert all((link["href"] or "")[0] == "#" and (link["href"] or "")[1:] in anchors for link in reader.all("a"))
    assert all((image["src"] or "").startswith("data:image/png;base64,") and image["alt"] for image in reader.all("img"))
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in reader.all("svg"))
    assert not re.search(r"(src|href)=(?!\"data:|\"#)|url\(|@import|<script|https?:", text)
    return reader


@pytest.fixture(scope="module")
def A() -> ns.SparseTensor:
    entries = torch.zeros(40, 30)
    entries[torch.arange(40), torch.arange(40) * 7 % 30] = torch.arange(1.0, 41.0)
    return ns.from_torch(entries, ns.CSR)


REQUESTS: dict[str, Callable[[Any], Any]] = {
    "SpMM": lambda A: ns.explain("ij,jk->ik", A, torch.rand(30, 16)),
    "SDDMM": lambda A: ns.explain("ij,ik,jk->ij", A, torch.rand(40, 16), torch.rand(30, 16)),
    "SpGEMM": lambda A: ns.explain("ij,jk->ik", A, A.t()),
    "BCSR": lambda A: ns.explain("ij,jk->ik", A.to(ns.BCSR(4, 4)), torch.rand(30, 16)),
    "n:m:g": lambda A: ns.explain("ij,jk->ik", ns.sparsify.sparsify(torch.rand(24, 36), ns.sparsify.n_m_g(2, 4, 3)), torch.rand(36, 16)),
    "order 0": lambda A: ns.explain("ij->", A),
    "formats": lambda A: ns.explain("ij,jk->ik", ns.CSR, "dense"),
    "statement": lambda A: ns.explain("y[i] = relu(A[i,j] * x[j]) + b[i]", A=A, x=torch.rand(30), b=torch.rand(40)),
    "fused": lambda A: ns.explain(SOFTMAX, A=A),
    "native": lambda A: ns.explain("ij,jk->ik", A.to_torch(), torch.rand(30, 16)),
    "requires grad": lambda A: ns.explain("ij,jk->ik", A.with_values(A.values.clone().requires_grad_()), torch.rand(30, 16)),
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_pages_show_all_stages_of_a_request(request_: str, A: ns.SparseTensor) -> None:
    explained = REQUESTS[request_](A)
    reader = checked(page(explained))
    assert [heading for heading in reader.headings if heading in SECTIONS] == list(SECTIONS)
    assert str(explained.problem.stmt) in reader.text
    for step in explained.steps:
        assert step.name in reader.text
        assert step.why in reader.text
    assert explained.source.rstrip() in reader.text
    for operand, drawn in zip(explained.operands, explained.sketches, strict=True):
        assert str(operand) in reader.text
        assert (drawn is None) == (operand.format.is_dense or request_ == "formats")
    checked(explained._repr_html_())


def test_pages_of_programs_have_sections_for_kernels_and_notes_for_torch(A: ns.SparseTensor) -> None:
    text = "D[j,k] = X[j,l] * Y[l,k]; T[i,k] = A[i,j] * D[j,k]; z[k,h] = T[i,k] * T[i,h]"
    explained = ns.explain(text, A=A, X=torch.rand(30, 8), Y=torch.rand(8, 16))
    reader = checked(page(explained))
    compiled = [kernel for kernel in (*explained.before, explained) if not isinstance(kernel, str)]
    assert reader.text.count("every operand is dense, so torch computes it") == len([*explained.before, explained, *explained.after]) - len(
        compiled
    )
    assert reader.text.count("every operand is dense, so torch computes it") >= 1
    for kernel in compiled:
        assert kernel.source.rstrip() in reader.text
    assert reader.headings.count("Source") == len(compiled)


def test_two_kernels_are_numbered(A: ns.SparseTensor) -> None:
    explained = ns.explain("T[i,j] = A[i,k] * B[k,j]; y[i] = relu(T[i,j] * x[j])", A=A, B=A.t(), x=torch.rand(40))
    reader = checked(page(explained))
    assert [heading[:15] for heading in reader.headings if heading.startswith("Kernel")] == ["Kernel 1 of 2: ", "Kernel 2 of 2: "]
    assert len(reader.all("img")) == 2  # of A and B; the result of the first kernel has no data
    assert len(reader.all("a")) == 2


def test_fused_functions_are_saved_with_their_program(A: ns.SparseTensor, tmp_path: Path) -> None:
    attend = ns.fuse(lambda A, Q, K, V: torch.softmax(A * (Q @ K.T), -1) @ V)
    explained = attend.explain(A, torch.rand(40, 8), torch.rand(30, 8), torch.rand(30, 2))
    explained.save(tmp_path / "attend.html")
    reader = checked((tmp_path / "attend.html").read_text())
    assert "stored max=" in reader.text
    assert "Loop nest" in reader.headings
    unfused = ns.fuse(lambda A: A.to_dense().tolist()).explain(A)
    assert "runs unfused" in checked(page(unfused)).text
    checked(unfused._repr_html_())


def test_loops_list_the_passes_that_changed_them() -> None:
    explained = ns.explain("ij,jk->ik", ns.CSR, ns.Format("dd"))
    passes = {f"{loop.tag}".partition("<")[0]: passes_of(loop, explained.steps) for loop in loops_of(explained.steps[-1].stmt)}
    assert passes["parallel_forall"] == ["order_loops", "parallelize"]
    assert passes["vector_forall"] == ["order_loops", "vectorize"]
    tiled = ns.explain("ij,jk->ik", ns.CSR, ns.Format("dd"), schedule="reorder(i, j, k) tile(k, 64)").steps
    assert {str(loop.tag): passes_of(loop, tiled) for loop in loops_of(tiled[-1].stmt)}["tile_forall<64>"] == ["tile"]


def test_pages_show_the_compared_costs() -> None:
    explained = ns.explain("ij,jk->ik", ns.CSR, ns.Format("dd"))
    why = next(step.why for step in explained.steps if step.name == "order_loops")
    costs = costs_in(why)
    assert [f"{cost:.3g}" for _, cost in costs] == [f"{float(text):.3g}" for text in re.findall(r": ([\d.e+]+)", why)]
    assert all(here <= then for (_, here), (_, then) in pairwise(costs))
    assert costs_in("about 3 nonzeros per row: 8 are gathered at once, and the rest of a row is masked") == []
    chosen = re.search(r'<tr class="chosen"><th scope="row">(\w+) \(chosen\)', page(explained))
    assert chosen is not None
    assert chosen[1] == costs[0][0]


def test_text_is_escaped(A: ns.SparseTensor) -> None:
    statement = "y[i] = where(A[i,j] < x[j], A[i,j], 0) "
    text = page(ns.explain(statement, A=A, x=torch.rand(30)))
    assert "A[i,j] &lt; B[j]" in text
    assert "A[i,j] < B[j]" in checked(text).text


@pytest.mark.parametrize(
    "source", ['"""Two\n\n  lines."""\nx = 1\n', "def f(a):\n    if a:  # why\n\n        return range(3)\n", "y = (\n  1 +\n  2)"]
)
def test_tokens_are_the_text_of_the_source(source: str) -> None:
    assert "".join(text for _, text in tokens(source)) == source.rstrip("\n")
    assert all("\n" not in text or text == "\n" for _, text in tokens(source))


def test_highlighting_keeps_the_source(A: ns.SparseTensor) -> None:
    explained = ns.explain("y[i] = where(A[i,j] < x[j], A[i,j], 0) ", A=A, x=torch.rand(30))
    html = page(explained)
    source = str(explained.source).rstrip("\n")
    assert source in Reader(html).text
    assert html.count('<span class="line">') == len(source.split("\n"))
    assert '<span class="keyword">def</span> <span class="function">' in html
    assert '<span class="string">&#34;&#34;&#34;' in html


def test_save_refuses_other_files_and_missing_folders(tmp_path: Path) -> None:
    explained = ns.explain("ij,j->i", ns.CSR, "dense")
    with pytest.raises(ns.errors.FormatError, match=r"ends in \.html: write 'x\.html'"):
        explained.save(tmp_path / "x.txt")
    with pytest.raises(OSError, match=r"the folder '.*nowhere' does not exist: create it first"):
        explained.save(tmp_path / "nowhere" / "x.html")
    old = tmp_path / "x.html"
    old.write_text("old")
    explained.save(str(old))
    assert checked(old.read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


def test_the_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spmv.html"
    assert cli.main(["explain", "ij,j->i", "CSR", "dense", "--html", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    assert "Loop nest" in checked(path.read_text()).headings
    assert cli.main(["explain", "ij,j->i", "CSR", "dense", "--html", str(tmp_path / "x.pdf")]) == 2
    assert "ends in .html" in capsys.readouterr().err


def test_a_saved_explanation_keeps_no_tensor() -> None:
    B = ns.rand(50, 50, density=0.1, format=ns.CSR)
    explained = ns.explain("ij,j->i", B, torch.rand(50))
    pattern, values = weakref.ref(B.pattern), weakref.ref(B.values)
    del B
    assert pattern() is None
    assert values() is None
    assert len(checked(page(explained)).all("img")) == 1


def stored(fmt: ns.Format, shape: tuple[int, ...] = SHAPE, density: float = 0.3) -> ns.SparseTensor | None:
    """A tensor in a format; None if the format cannot store its entries."""
    mask = np.random.default_rng(len(str(fmt))).random(shape[: fmt.order]) < density
    numbers = np.arange(1.0, np.size(mask) + 1).reshape(np.shape(mask))
    try:
        tensor = ns.from_torch(torch.from_numpy(np.asarray(mask * numbers))).to(fmt)
    except ns.errors.FormatError:
        diagonal = np.zeros(shape[: fmt.order])
        diagonal[np.diag_indices(min(diagonal.shape), diagonal.ndim)] = 1.0
        try:
            tensor = ns.from_torch(torch.from_numpy(diagonal)).to(fmt)
        except ns.errors.FormatError:
            return None
    return tensor


def formats() -> list[ns.Format]:
    import random

    return [*compositions(), *(random_format(random.Random(seed), seed % 5) for seed in range(60))]


@pytest.mark.filterwarnings("ignore:.* stores .* values for")
@pytest.mark.parametrize("shape", [SHAPE, (4, 4, 4, 4), (0, 3, 2, 2), (1, 1, 1, 1)])
def test_paths_of_positions_equal_unpacked_coordinates(shape: tuple[int, ...]) -> None:
    count = 0
    for fmt in formats():
        tensor = stored(fmt, shape)
        if tensor is not None and fmt.order:
            paths = paths_to(tensor.pattern, np.arange(tensor.pattern.nnz))
            assert paths is not None, fmt
            assert np.array_equal(paths.table, coordinates(tensor.pattern).numpy()), fmt
            every_third = paths_to(tensor.pattern, np.arange(0, tensor.pattern.nnz, 3))
            assert every_third is not None
            assert every_third.table.tolist() == paths.table[:, paths.leaves % 3 == 0].tolist(), fmt
            count += 1
    assert count > 100


@pytest.mark.filterwarnings("ignore:.* stores .* values for")
def test_every_format_has_a_tree_and_a_card() -> None:
    count = 0
    for fmt in formats():
        tensor = stored(fmt)
        if tensor is None:
            continue
        drawing = sketch(tensor)
        reader = checked(tensor._repr_html_())
        assert tensor.format.name in reader.text
        assert f"{tensor.nnz:,} entr" in reader.text
        for level in drawing.levels:
            assert f"{level.part}: {level.name}" in reader.text
        for leaf, value in zip(drawing.leaves, tensor.values.tolist(), strict=False):
            assert len(leaf.path) == len(fmt.levels)
            if not any(level.gaps for level in tensor.format.levels) and tensor.nnz == tensor.pattern.nnz:
                assert leaf.value == f"{value:.3g}"
        assert bool(drawing.leaves) == (fmt.order > 0)
        assert (tree(drawing).count("<rect") > 0) == (fmt.order > 0)
        count += 1
    assert count > 110


@dataclass(frozen=True, slots=True)
class Apart(Compressed):
    """A compressed level whose coordinates only a kernel routine can compute."""

    spelling: ClassVar[str] = "apart"

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return call("emptied", mode.crd, position)


def test_custom_levels_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    band = torch.zeros(60, 60).fill_diagonal_(2.0)
    window = ns.Format([Dense(), runpy.run_path(str(EXAMPLES / "own_level.py"))["Window"](3)])
    apart = ns.Format([Dense(), Apart()])
    for fmt, leaves in ((window, 5), (apart, 0)):
        tensor = ns.SparseTensor(*_packed(band, fmt))
        drawing = sketch(tensor)
        assert drawing.picture is not None
        assert (pixels(drawing.picture.png).diagonal() > 0).all()
        assert len(drawing.leaves) == leaves
        checked(tensor._repr_html_())


def _packed(dense: torch.Tensor, fmt: ns.Format) -> tuple[Any, torch.Tensor]:
    pattern, slots, _ = pack(dense.nonzero().T.numpy(), tuple(dense.shape), fmt)
    values = torch.zeros(pattern.nnz)
    values[torch.from_numpy(slots)] = dense[dense != 0]
    return pattern, values


def test_the_tree_of_rows_has_a_node_for_each_row_and_entry() -> None:
    A = ns.from_torch(torch.tensor([[0.0, 2.0, 0.0], [3.0, 4.0, 0.0]]), ns.CSR)
    text = tree(sketch(A))
    assert sorted(re.findall(r'class="node">(\d+)<', text)) == sorted("01101")
    assert re.findall(r'class="leaf">(\w+)<', text) == ["2", "3", "4"]
    assert text.count("<line") == 3 + 3


def test_a_card_lists_levels_with_their_extents_and_positions() -> None:
    text = ns.from_torch(torch.ones(4, 1), ns.Format("dd"))._repr_html_()
    assert "<li><b>i: dense</b> <span>4 coordinates, 4 positions</span></li>" in text
    assert "<li><b>j: dense</b> <span>1 coordinate, 4 positions</span></li>" in text


STATES: dict[str, Callable[[], ns.SparseTensor]] = {
    "a scalar": lambda: ns.from_torch(torch.tensor(3.0)),
    "nothing stored": lambda: ns.from_torch(torch.zeros(4, 5), ns.CSR),
    "no rows": lambda: ns.from_torch(torch.zeros(0, 5), ns.CSR),
    "order 5": lambda: ns.rand(2, 3, 4, 2, 3, density=0.3, format=ns.CSF(5)),
    "a batch": lambda: ns.from_torch(torch.eye(3).repeat(2, 1, 1).to_sparse_csr()),
    "requires grad": lambda: ns.from_torch(torch.eye(3).requires_grad_(), ns.CSR),
    "bfloat16": lambda: ns.from_torch(torch.eye(3, dtype=torch.bfloat16), ns.CSR),
    "complex": lambda: ns.from_torch(torch.eye(3, dtype=torch.complex64), ns.CSR),
    "truth values": lambda: ns.from_torch(torch.eye(3, dtype=torch.bool), ns.CSR),
    "NaN and inf": lambda: ns.from_torch(torch.tensor([[float("nan"), float("inf")]]), ns.CSR),
    "dense": lambda: ns.from_torch(torch.rand(3, 4), ns.Format("dd")),
    "a vast shape": lambda: ns.from_coo([[0, 2**40], [1, 2**60]], [1.0, 2.0], (2**41, 2**61), format=ns.COO(2)),
    "one column": lambda: ns.rand(1000, 1, density=0.1, format=ns.CSR),
}


@pytest.mark.parametrize("state", STATES)
def test_a_tensor_in_any_state_has_a_card(state: str) -> None:
    tensor = STATES[state]()
    assert " x ".join(map(str, tensor.shape)) in checked(tensor._repr_html_()).text


def test_a_card_within_a_transform_shows_no_values() -> None:
    pattern = ns.from_torch(torch.eye(3), ns.CSR).pattern
    cards = []

    def loss(values: torch.Tensor) -> torch.Tensor:
        cards.append(SparseTensor(pattern, values)._repr_html_())
        return values.sum()

    torch.func.grad(loss)(torch.ones(3))
    assert "vals [...]" in checked(cards[0]).text


def test_a_parameter_has_the_card_of_its_tensor() -> None:
    weight = ns.nn.Parameter(ns.from_torch(torch.eye(3), ns.CSR))
    assert "requires grad" in checked(weight._repr_html_()).text


def pixels(png: bytes) -> np.ndarray:
    """Palette indices of a PNG picture, decoded according to the PNG specification."""
    at, chunks = 8, {}
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + data)
        chunks[kind], at = data, at + 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    return rows[:, 1:]


def test_a_small_pattern_is_drawn_entry_for_entry() -> None:
    dense = torch.zeros(7, 9)
    dense[[0, 2, 6], [8, 1, 3]] = 1.0
    picture = sketch(ns.from_torch(dense, ns.COO(2))).picture
    assert picture is not None
    assert (pixels(picture.png) > 0).tolist() == (dense > 0).tolist()


def test_a_large_pattern_is_drawn_by_densities_from_a_sample() -> None:
    half = ns.from_coo(*_banded(40_000, 8), (40_000, 40_000), format=ns.CSR)
    exact, sampled = exact_raster(half.pattern, 50), sampled_raster(half.pattern, 50)
    assert sampled.sampled
    assert exact.counts.sum() == half.nnz
    assert sampled.counts.sum() == pytest.approx(half.nnz)
    full = exact.counts > 1000
    assert not sampled.counts[exact.counts == 0].any()
    assert np.abs(sampled.counts[full] / exact.counts[full] - 1).max() < 0.2
    assert exact.shades().max() == 1.0
    assert exact_raster(ns.rand(1000, 100, density=0.1, format=ns.CSR).pattern, 50).counts.shape == (50, 6)


def _banded(size: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.arange(size).repeat_interleave(width)
    columns = (rows + torch.arange(width).repeat(size)).clamp(max=size - 1)
    return torch.stack([rows, columns]), torch.ones(size * width)


def test_a_card_of_many_entries_reads_a_sample_of_them() -> None:
    A = ns.randn(300_000, 300_000, density=600_000 / 300_000**2, format=ns.CSR)
    for fmt in (ns.CSR, ns.COO(2), ns.BCSR(2, 2)):
        converted = A.to(fmt)
        assert len(converted._repr_html_()) < 50_000
        assert "coordinates" not in converted.pattern.derived


@pytest.fixture
def pyplot() -> Any:
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib isn't installed")
    matplotlib.use("agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def test_spy_draws_stored_entries(pyplot: Any) -> None:
    dense = torch.zeros(5, 8)
    dense[[0, 4], [7, 2]] = 1.0
    axes = ns.from_torch(dense, ns.CSC).spy()
    assert axes is pyplot.gca()
    (image,) = axes.images
    assert (~image.get_array().mask).tolist() == (dense > 0).tolist()
    assert tuple(image.get_extent()) == (-0.5, 7.5, 4.5, -0.5)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("j", "i")


def test_spy_of_many_entries_and_of_other_orders(pyplot: Any) -> None:
    figure, axes = pyplot.subplots(1, 4)
    large = ns.randn(100_000, 100_000, density=1e-4, format=ns.CSR)
    (image,) = large.spy(axes[0], cmap="magma").images
    assert image.get_array().size <= 1024**2
    assert image.get_cmap().name == "magma"
    assert float((image.get_array() * 1e10 / image.get_array().size).sum()) == pytest.approx(large.nnz)
    assert ns.rand(9, density=0.5, format=ns.Format("s")).spy(axes[1]).images[0].get_array().shape == (1, 9)
    assert ns.rand(3, 4, 5, density=0.5, format=ns.CSF(3)).spy(axes[2]).get_ylabel() == "j"
    ns.from_torch(torch.zeros(0, 4), ns.CSR).spy(axes[3])
    assert not len(axes[3].get_yticks()) and len(axes[3].get_xticks())
    figure.canvas.draw()
    with pytest.raises(ns.errors.SizeError, match="a tensor without dimensions has only one element"):
        ns.from_torch(torch.tensor(1.0)).to(ns.Format("")).spy()


def test_spy_without_matplotlib_suggests_to_install_it(monkeypatch: pytest.MonkeyPatch, A: ns.SparseTensor) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ns.errors.UnsupportedError, match="pip install matplotlib"):
        A.spy()


def test_a_timed_run_is_drawn_under_its_roofs(A: ns.SparseTensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "SECONDS", 0.01)
    monkeypatch.setattr(roofline, "ROOF_SECONDS", 0.01)
    explained = ns.explain("ij,jk->ik", A, torch.rand(30, 16), timed=True)
    run = explained.run
    assert run is not None
    assert (run.flops, run.bytes) == (2 * 40 * 16, 41 * 4 + 40 * 8 + 30 * 16 * 4 + 40 * 16 * 4)
    assert run.share > 0
    assert str(explained).splitlines()[-1] == f"timed             {run}"
    reader = checked(page(explained))
    assert reader.headings[-1] == "Timed run"
    assert "multiply-adds" in reader.text
    assert sum("roofline" in (svg["class"] or "") for svg in reader.all("svg")) == 1
    scaled = ns.explain("y[i] = A[i,j] * 2", A=A, timed=True)
    assert scaled.run is not None
    masked = ns.explain("ij,kj->ik", A, A, mask=A @ A.t(), timed=True)
    assert masked.run is not None
    assert masked.run.flops > 0
    checked(page(masked))


def run_at(share: float) -> roofline.TimedRun:
    """A run of a million operations and bytes with a triad roof of 10 GB/s, of which it reaches the given share."""
    return roofline.TimedRun(1e-4 / share, 3, 1_000_000, 1_000_000, 1e10, 1e9, 1e12, 2, "float32")


def test_runs_name_their_roof_and_no_share_above_it() -> None:
    assert "31 % of its roof (10 GB/s of a triad over as many bytes)" in str(run_at(0.31))
    assert "100 % of its roof" in str(run_at(1.04))
    above = run_at(500)
    assert "%" not in str(above)
    assert "faster than its roof (10 GB/s of a triad over as many bytes), so no share is given: the machine is busy" in str(above)
    assert "%" not in roofline.report(above)


def test_the_roof_is_the_faster_of_one_and_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a triad with two threads may be slower than one with a single thread."""
    monkeypatch.setattr(roofs, "triad", lambda size, workers: roofs.Roof(lambda: time.sleep(0.02 if workers > 1 else 0.001), 10**6))
    monkeypatch.setattr(roofs, "rates", lambda workers: roofs.Rates(1e9, 1e11))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    run = roofline.timed_run(lambda: torch.ones(4), lambda result: Work(8, 32))
    assert run.near > 2e8


def test_formats_cannot_be_timed(A: ns.SparseTensor) -> None:
    with pytest.raises(ns.errors.UnsupportedError, match="timed=True: a format stands for an operand"):
        ns.explain("ij,j->i", ns.CSR, "dense", timed=True)
    with pytest.raises(ns.errors.UnsupportedError, match="timed=True: a format stands for an operand"):
        ns.explain("y[i] = A[i,j] * x[j]", A=ns.CSR, x="dense", timed=True)
    assert "timed" in str(ns.explain("y[i] = timed[i,j] * x[j]", timed=A, x=torch.rand(30)))
