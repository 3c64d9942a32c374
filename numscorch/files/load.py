"""Loading of sparse tensors from Matrix Market, FROSTT, DLMC, safetensors and .npz files, and of graphs from .npz files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from errno import EISDIR, ENOENT
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from ..convert.construct import from_coo, from_csr
from ..convert.conversions import to_format
from ..errors import FormatError, UnsupportedError
from ..ir.format import COO, CSR, Format
from ..ir.level import INT64_MAX
from ..tensors.arrays import check_values
from ..tensors.graph_breaks import graph_break
from ..tensors.packing import index_dtype_for, pack
from ..tensors.sparse_tensor import SparseTensor
from .archives import MARK, integers_in, read_arrays, read_safetensors, required, sizes_in, tensor_of
from .foreign import unreadable
from .readers import Entries, read_matrix_market, read_smtx, read_tns
from .text import EXACT, fits_float32

WIDER = {"u2": "int32", "u4": "int64", "u8": "int64", "f16": "float64", "c32": "complex128"}  # for NumPy's types that kernels don't read
SUFFIXES = (".mtx", ".mtx.gz", ".tns", ".tns.gz", ".smtx", ".smtx.gz", ".npz", ".safetensors")


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph with labelled nodes; ``adj_t[target, source]`` is 1 for each edge, as returned by :func:`numscorch.adj_t`.

    ``features`` has a row per node; it is None if the file has no features.
    """

    adj_t: SparseTensor
    labels: torch.Tensor
    train_idx: torch.Tensor
    val_idx: torch.Tensor
    test_idx: torch.Tensor
    features: SparseTensor | None

    def __repr__(self) -> str:
        features = "no features" if self.features is None else f"{self.features.shape[1]:,} features"
        splits = f"{len(self.train_idx):,} train, {len(self.val_idx):,} val, {len(self.test_idx):,} test"
        return f"Graph({self.adj_t.shape[0]:,} nodes, {self.adj_t.nnz:,} edges, {features}, labels of {len(self.labels):,}; {splits})"


def suffix_of(path: str | PathLike[str]) -> str | None:
    """The suffix of a file that :func:`load` reads, or None.

    >>> suffix_of("a/b.mtx.gz"), suffix_of("model.pt")
    ('.mtx.gz', None)
    """
    name = Path(path).name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def check_there(path: str | PathLike[str], call: str, kinds: Sequence[str] = SUFFIXES, others: str = "") -> None:
    """Check that a file exists.

    Args:
        path: the file.
        call: the name of the function, for error texts.
        kinds: the suffixes that the function reads.
        others: a description of other files that the function reads, for error texts.

    Raises:
        IsADirectoryError: the path is a folder; the text suggests a readable file in it.
        FileNotFoundError: the file doesn't exist; the text suggests a file of the same name with another suffix.
    """
    file = Path(path)
    if file.is_dir():
        inside = sorted(member.name for member in file.iterdir() if member.name.lower().endswith(tuple(kinds)))
        suggestion = f"did you mean {file / inside[0]}?" if inside else f"it reads {', '.join(kinds)}{others}"
        raise IsADirectoryError(EISDIR, f"{call} reads a file, not a folder; {suggestion}", str(path))
    if file.exists():
        return
    stem = file.name[: len(file.name) - len(suffix_of(file) or file.suffix)]
    similar = [file.with_name(stem + kind).name for kind in kinds if stem and file.with_name(stem + kind).exists()]
    message = f"{call} finds no such file; it reads {', '.join(kinds)}{others}{f'; did you mean {similar[0]}?' if similar else ''}"
    raise FileNotFoundError(ENOENT, message, str(path))


def load(
    path: str | PathLike[str],
    format: Format | str | None = None,
    *,
    dtype: torch.dtype | None = None,
    shape: Sequence[int] | None = None,
    progress: bool | None = None,
    mmap: bool = False,
) -> SparseTensor:
    """Read a sparse tensor from a file; O(file size).

    ===================  ==========================================================================
    .mtx, .mtx.gz        Matrix Market; symmetric matrices are expanded to both triangles; explicit zeros stay
    .tns, .tns.gz        FROSTT: indices from 1, then the value; COO by default
    .smtx, .smtx.gz      DLMC: the pattern of a pruned weight, with values 1
    .npz                 an archive of :func:`numscorch.save`, in its stored format; a graph's ``adj_t`` with
                         values 1 (see :func:`load_graph`); or an archive of ``scipy.sparse.save_npz``
    .safetensors         a file of :func:`numscorch.save`, in its stored format; needs the package safetensors
    ===================  ==========================================================================

    Entries with the same coordinates are summed.

    Args:
        path: the file.
        format: the result's format; by default CSR for matrices and COO(n) for tensors.
        dtype: the data type of the values; by default that of the file: the stored one of .npz and .safetensors files; int64 or complex for
            Matrix Market's ``integer`` or ``complex``. If a text file states no type, its numbers become float32 if each is the
            shortest decimal of a float32, such as 0.1, else float64. They also become float64 if this is torch's default type.
            Patterns become ones in float32.
        shape: the shape of a .tns file; by default that of its ``# shape:`` comment, else the largest indices.
        progress: whether to show a progress bar on stderr; None shows one for files of more than 64 MB if stderr is a terminal.
        mmap: map the arrays of a file of :func:`numscorch.save` (.npz) instead of reading them, as in ``torch.load``; O(1). Products read
            only parts of it, so the file may be larger than the memory. Writes to the tensor are private and do not change the file.
            The index arrays are not validated: kernels access memory through them without bounds checks, so map only files that you trust.

    Raises:
        FormatError: the file is malformed; the text names the line. Or, with ``mmap``, the file is no archive of :func:`numscorch.save`.
        SizeError: the tensor would not fit in memory in this format.
        UnsupportedError: the dtype is not supported, or a package isn't installed.
        OSError: the file can't be read; FileNotFoundError if it doesn't exist.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.mtx"
    >>> _ = path.write_text("%%MatrixMarket matrix coordinate real symmetric\\n2 2 2\\n1 1 4\\n2 1 5\\n")
    >>> load(path).to_dense()
    tensor([[4., 5.],
            [5., 0.]])
    """
    file, suffix = Path(path), suffix_of(path)
    check_there(file, "numscorch.load")
    target = Format(format) if isinstance(format, str) else format
    check_values(torch.empty(0, dtype=dtype, device="cpu"))
    if shape is not None and suffix not in (".tns", ".tns.gz"):
        raise FormatError(f"shape= is for .tns files, which do not state their shape: leave it out for {file.name}")
    if mmap and suffix != ".npz":
        raise FormatError(f"mmap= maps .npz archives of numscorch.save, not {file.name}: leave it out")
    match suffix:
        case ".mtx" | ".mtx.gz":
            return _packed(file, read_matrix_market(file, exact=dtype == torch.int64, progress=progress), target, dtype)
        case ".tns" | ".tns.gz":
            return _packed(file, read_tns(file, shape, exact=dtype == torch.int64, progress=progress), target, dtype)
        case ".smtx" | ".smtx.gz":
            A = _load_smtx(file, dtype, progress)
        case ".npz":
            A = _load_npz(file, dtype, progress, mmap)
        case ".safetensors":
            A = tensor_of(file, read_safetensors(file))
        case _:
            raise unreadable(file, SUFFIXES)
    A = A if dtype is None else A.to(dtype)
    return A if target is None else to_format(A, target)


@graph_break
def load_graph(path: str | PathLike[str], *, dtype: torch.dtype = torch.float32) -> Graph:
    """Read a graph with node labels from a .npz archive.

    The archive holds integer arrays: ``edge_index`` of shape (2, edges) with sources and targets, a vector ``labels`` with one label per
    node, and the node numbers ``train_idx``, ``val_idx`` and ``test_idx`` of a split. If nodes have features, it also holds their
    CSR arrays ``feat_indptr``, ``feat_indices`` and ``feat_data``, and ``feat_shape`` (nodes, features).

    Args:
        path: the file.
        dtype: the data type of the features and of the adjacency matrix.

    Returns:
        An object with ``adj_t``, a CSR matrix ``A[target, source]`` with 1 for each edge, for graph layers; ``features``, a CSR matrix
        or None; and the tensors ``labels``, ``train_idx``, ``val_idx`` and ``test_idx``. See the guide on graphs.

    Raises:
        FormatError: the file is not a .npz archive, or arrays are missing or inconsistent.
        UnsupportedError: the data type is not supported.
        OSError: the file can't be read; FileNotFoundError if it doesn't exist.

    Complexity:
        O(edges log edges + stored features).

    >>> import pathlib, tempfile, numscorch as ns
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "graph.npz"
    >>> np.savez(path, edge_index=[[0, 1], [1, 2]], labels=[0, 1, 1], train_idx=[0], val_idx=[1], test_idx=[2])
    >>> graph = ns.load_graph(path)
    >>> graph
    Graph(3 nodes, 2 edges, no features, labels of 3; 1 train, 1 val, 1 test)
    >>> graph.adj_t.to_dense()
    tensor([[0., 0., 0.],
            [1., 0., 0.],
            [0., 1., 0.]])
    """
    file = Path(path)
    check_values(torch.empty(0, dtype=dtype, device="cpu"))
    if suffix_of(file) != ".npz":
        raise FormatError(f"{file.name} is not an .npz archive, so it holds no graph: use ns.load(path) for a matrix or a tensor")
    check_there(file, "numscorch.load_graph", (".npz",))
    arrays = read_arrays(file)
    names = ("edge_index", "labels", "train_idx", "val_idx", "test_idx")
    if missing := [name for name in names if name not in arrays]:
        raise FormatError(f"{file} has no array {missing[0]!r}: a graph needs {', '.join(names)}, but it has {', '.join(arrays)}")
    labels, train, val, test = (torch.from_numpy(integers_in(file, arrays, name)) for name in names[1:])
    return Graph(_adj_t(file, arrays, dtype), labels, train, val, test, _features(file, arrays, dtype))


def _packed(file: Path, entries: Entries, format: Format | None, dtype: torch.dtype | None) -> SparseTensor:
    indices, values, shape, stated = entries
    index_dtype = index_dtype_for(shape, indices.shape[1])
    target = format if format is not None else CSR if file.name.lower().endswith((".mtx", ".mtx.gz")) else COO(len(shape))
    if dtype is None:
        dtype = _text_dtype(values) if stated in (None, "complex128") else getattr(torch, stated)
    return from_coo(indices.astype(index_dtype, copy=False), _cast(file, values, dtype), shape, target, copy=False)


def _text_dtype(values: np.ndarray) -> torch.dtype:
    """The data type of numbers from text: float32 if it loses nothing and is torch's default, else float64; or the complex equivalent."""
    is_narrow = torch.get_default_dtype() is not torch.float64 and fits_float32(values.view(np.float64))
    dtype = torch.float32 if is_narrow else torch.float64
    return dtype.to_complex() if values.dtype.kind == "c" else dtype


def _cast(file: Path, values: np.ndarray, dtype: torch.dtype | None) -> torch.Tensor:
    """The values in a data type; None keeps the stored type, or takes the next larger type that kernels read."""
    if values.ndim != 1 or values.dtype.kind not in "fiubc":
        raise FormatError(f"{file} holds values of shape {values.shape} and dtype {values.dtype}: they must be numbers, shape (nnz,)")
    if dtype is None:
        stored = WIDER.get(values.dtype.str[1:], values.dtype.newbyteorder("="))
        dtype = getattr(torch, np.dtype(stored).name)
    fits = values.dtype == np.uint64 and values.max(initial=0) <= INT64_MAX
    native = np.ascontiguousarray(values, np.int64 if fits else values.dtype.newbyteorder("="))
    if native.dtype.name == str(dtype).removeprefix("torch."):
        return torch.from_numpy(native)
    is_complex = values.dtype.kind == "c"
    if is_complex and not dtype.is_complex:
        raise FormatError(f"{file} holds complex values, which do not fit {dtype}: pass dtype=torch.complex64")
    doubles = torch.from_numpy(np.asarray(values, dtype=np.complex128 if is_complex else np.float64))
    cast = doubles.to(dtype)
    if not dtype.is_floating_point and not dtype.is_complex:
        wrong = (cast.to(doubles.dtype) != doubles) | (doubles.abs() >= EXACT)
        if bool(wrong.any()):
            message = f"which is not an integer that {dtype} and float64 represent exactly: pass dtype=torch.float64"
            raise FormatError(f"{file} holds the value {doubles[wrong][0].item():.17g}, {message}")
    overflows = cast.isinf() & ~doubles.isinf()
    if bool(overflows.any()):
        wide = torch.complex128 if is_complex else torch.float64
        raise FormatError(f"{file} holds the value {doubles[overflows][0].item():g}, which does not fit {dtype}: pass dtype={wide}")
    return cast


def _load_smtx(file: Path, dtype: torch.dtype | None, progress: bool | None) -> SparseTensor:
    pos, crd, shape = read_smtx(file, progress=progress)
    index_dtype = index_dtype_for(shape, len(crd))
    ones = torch.ones(len(crd), dtype=torch.float32 if dtype is None else dtype, device="cpu")
    A = from_csr(pos.astype(index_dtype), crd.astype(index_dtype), ones, shape, copy=False)
    if A.nnz != len(crd):
        raise FormatError(f"{file}, line 3: {len(crd) - A.nnz} columns occur twice in one row: list each column of a row once")
    return A


def _load_npz(file: Path, dtype: torch.dtype | None, progress: bool | None, mapped: bool) -> SparseTensor:
    arrays = read_arrays(file, progress, mapped)
    if MARK in arrays:
        return tensor_of(file, arrays, check_invariants=not mapped)
    if mapped:
        raise FormatError(f"{file} is not an archive of numscorch.save: mmap= cannot map it; leave it out")
    if "edge_index" in arrays:
        return _adj_t(file, arrays, torch.float32 if dtype is None else dtype)
    if "format" in arrays:
        return _from_scipy_arrays(file, arrays, dtype)
    names = f"{MARK} (numscorch.save), edge_index (a graph) or format (scipy.sparse.save_npz)"
    raise FormatError(f"{file} has no array {names}: it has {', '.join(arrays)}")


def _from_scipy_arrays(file: Path, arrays: dict[str, np.ndarray], dtype: torch.dtype | None) -> SparseTensor:
    """The matrix of an archive of ``scipy.sparse.save_npz`` with the layout csr, csc or coo.

    Raises:
        FormatError: arrays are missing or malformed.
        UnsupportedError: the archive has another layout.
    """
    stored = arrays["format"].reshape(-1)[:1].astype(np.str_)
    layout = str(stored[0]) if len(stored) else ""
    if layout not in ("csr", "csc", "coo"):
        raise UnsupportedError(
            f"{file} holds a {layout[:20]} matrix: use ns.from_scipy(scipy.sparse.load_npz(path)), or save it after .tocsr()"
        )
    shape, data = sizes_in(file, arrays, "shape"), required(file, arrays, "data")
    if len(shape) != 2 and (layout != "coo" or "coords" not in arrays):
        raise FormatError(f"{file} holds the shape {shape}, but a {layout} matrix has 2 dimensions: save it again")
    if layout != "coo":
        pos, crd = (_index(file, arrays, name) for name in ("indptr", "indices"))
        values = _cast(file, data, dtype)
        if layout == "csr":
            return from_csr(pos, crd, values, shape, copy=False)
        # the arrays of a CSC matrix are the CSR arrays of its transpose
        return to_format(from_csr(pos, crd, values, shape[::-1], copy=False).T, CSR)
    if "coords" in arrays:
        coords = _index(file, arrays, "coords", 2)
    else:
        row, col = _index(file, arrays, "row"), _index(file, arrays, "col")
        if len(row) != len(col):
            raise FormatError(f"{file} holds {len(row)} rows, but {len(col)} columns: save it again")
        coords = np.stack([row, col])
    return from_coo(coords, _cast(file, data, dtype), shape, CSR if len(shape) == 2 else None, copy=False)


def _index(file: Path, arrays: dict[str, np.ndarray], name: str, ndim: int = 1) -> np.ndarray:
    """An index array after validation: int32 and int64 arrays without a copy, others as int64."""
    checked = integers_in(file, arrays, name, ndim)
    return arrays[name] if arrays[name].dtype in (np.int32, np.int64) else checked


def _adj_t(file: Path, arrays: dict[str, np.ndarray], dtype: torch.dtype) -> SparseTensor:
    edges = integers_in(file, arrays, "edge_index", 2)
    if edges.shape[0] != 2:
        raise FormatError(f"{file}: edge_index has shape {edges.shape}: it must hold integers of shape (2, edges)")
    nodes = arrays["labels"].size if "labels" in arrays else int(edges.max(initial=-1)) + 1
    if edges.size and (edges.min() < 0 or edges.max() >= nodes):
        wrong = int(edges.min() if edges.min() < 0 else edges.max())
        raise FormatError(f"{file}: edge_index names node {wrong}, but there are {nodes} nodes, counted from 0")
    pattern, _, _ = pack(edges[::-1], (nodes, nodes), CSR)
    return SparseTensor(pattern, torch.ones(pattern.nnz, dtype=dtype, device="cpu"))


def _features(file: Path, arrays: dict[str, np.ndarray], dtype: torch.dtype) -> SparseTensor | None:
    if "feat_data" not in arrays:
        return None
    shape, values = sizes_in(file, arrays, "feat_shape"), _cast(file, arrays["feat_data"], dtype)
    pos, crd = (integers_in(file, arrays, name) for name in ("feat_indptr", "feat_indices"))
    narrow = index_dtype_for(shape, len(values))
    # values that don't fit in the narrow type stay int64; from_csr reports them as out of range
    pos, crd = (array.astype(narrow) if array.max(initial=0) <= np.iinfo(narrow).max else array for array in (pos, crd))
    return from_csr(pos, crd, values, shape, copy=False)
