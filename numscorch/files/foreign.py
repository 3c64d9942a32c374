"""For error texts: recognize files of other programs, and name the libraries that read them."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from ..errors import FormatError

COLUMNS = "read its columns with numpy.loadtxt or pandas, then call ns.from_coo(indices, values, shape), or ns.adj_t(edge_index) for edges"
ARRAYS = "read its arrays with h5py, then call ns.from_csr(pos, crd, values, shape) or ns.from_coo(indices, values, shape)"
GRAPH = "read it with networkx, then call ns.from_networkx(graph)"
MATRIX = "read it with scipy.io, then call ns.from_scipy(matrix)"
ANY = "read its arrays with the library that wrote it, then call ns.from_coo(indices, values, shape)"
READERS: dict[str, str] = {
    **dict.fromkeys((".csv", ".tsv", ".txt", ".edges", ".edgelist", ".parquet", ".feather", ".arrow", ".xlsx"), COLUMNS),
    **dict.fromkeys((".h5", ".hdf5", ".h5ad"), ARRAYS),
    **dict.fromkeys((".graphml", ".gml", ".gexf"), GRAPH),
    **dict.fromkeys((".mat", ".hb", ".rb", ".rua", ".rsa"), MATRIX),
    **dict.fromkeys((".json", ".zarr", ".pb", ".onnx"), ANY),
    ".npy": "read it with numpy.load, then call ns.from_torch(torch.from_numpy(array))",
}
HEADS = (b"PK\x03\x04", b"\x80")  # first bytes of the zip archives and pickles that torch.save writes
TAR, AT = b"ustar", 257  # magic bytes of tar files, which torch wrote before 0.4, and their offset


def foreign_suffix(path: str | PathLike[str]) -> str | None:
    """The suffix of a file name if it belongs to another program, else None.

    >>> foreign_suffix("edges.CSV.gz"), foreign_suffix("model.pt")
    ('.csv', None)
    """
    name = Path(path).name.lower().removesuffix(".gz")
    return next((suffix for suffix in READERS if name.endswith(suffix)), None)


def is_torchs(path: str | PathLike[str]) -> bool:
    """Whether a file starts like a file of ``torch.save``.

    Raises:
        OSError: the file can't be read.
    """
    with Path(path).open("rb") as file:
        head = file.read(AT + len(TAR))
    return head.startswith(HEADS) or head.endswith(TAR)


def unreadable(path: str | PathLike[str], ours: Sequence[str]) -> FormatError:
    """The error for a file that ``load`` doesn't read.

    >>> print(unreadable("cora.gml", (".mtx", ".npz")))
    ns.load cannot read cora.gml, only .mtx, .npz, and files of torch.save under any other name: read it with networkx, then
    call ns.from_networkx(graph)
    """
    way_in = READERS.get(foreign_suffix(path) or "", ANY)
    kinds = f"{', '.join(ours)}, and files of torch.save under any other name"
    return FormatError(f"ns.load cannot read {Path(path).name}, only {kinds}: {way_in}")


def unwritable(path: str | PathLike[str], suffix: str, ours: Sequence[str]) -> FormatError:
    """The error for saving a SparseTensor under another program's suffix.

    >>> print(unwritable("A.h5", ".h5", (".mtx", ".npz")))
    A.h5: ns.save cannot write .h5 files, only .mtx, .npz and .pt: use one of these, or write A.indices() and A.values yourself
    """
    message = f"{Path(path).name}: ns.save cannot write {suffix} files, only {', '.join(ours)} and .pt"
    return FormatError(f"{message}: use one of these, or write A.indices() and A.values yourself")
