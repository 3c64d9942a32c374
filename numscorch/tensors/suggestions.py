"""Suggestions for functions of torch that do not support SparseTensor."""

from __future__ import annotations

import torch

from .other_names import ATTRIBUTES, sentence

DENSE = "use einsum, or .to_dense()"
ORDERED = "unstored zeros would take part: sort A.values, use torch.topk, or .to_dense()"
SOLVED = "use scipy.sparse.linalg.spsolve(A.to_scipy().tocsc(), b.numpy())"
SPECTRAL = "use scipy.sparse.linalg.eigsh(A.to_scipy()) or svds for some, or .to_dense() for all"
FACTORED = "use scipy.sparse.linalg.splu(A.to_scipy().tocsc()), or .to_dense()"
COUNTED = "count A.values and add A.numel() - A.nnz zeros, or use .to_dense()"
WRITTEN = "patterns never change: add A + ns.from_coo(indices, values, A.shape), or assign to A.values"
MOVED = "add the entries, as in A + ns.from_coo(indices, values, A.shape)"
SHARED = "use A.values.numpy(), which shares memory, A.to_scipy(), or .to_dense()"
MASKED = "mask with torch.where(mask, A, 0) or A * mask, and reduce that; or use .to_dense()"
FILTERED = "write it as an einsum, or use .to_dense()"

SUGGESTIONS: dict[str, str] = {
    **dict.fromkeys(("sort", "argsort", "msort", "median", "nanmedian", "quantile", "nanquantile", "kthvalue", "mode"), ORDERED),
    **dict.fromkeys(("histc", "histogram", "histogramdd", "bincount", "unique", "unique_consecutive", "bucketize"), COUNTED),
    **dict.fromkeys(
        ("linalg_solve", "solve", "linalg_lstsq", "linalg_inv", "inverse", "linalg_pinv", "pinverse", "linalg_solve_triangular"), SOLVED
    ),
    **dict.fromkeys(
        ("linalg_eig", "linalg_eigh", "linalg_eigvals", "linalg_eigvalsh", "linalg_svd", "linalg_svdvals", "svd", "pca_lowrank"), SPECTRAL
    ),
    **dict.fromkeys(
        ("linalg_cholesky", "cholesky", "linalg_qr", "qr", "linalg_lu", "lu", "linalg_det", "det", "logdet", "slogdet", "linalg_slogdet"),
        FACTORED,
    ),
    **dict.fromkeys(("scatter", "scatter_add", "index_add", "index_copy", "index_put", "index_fill", "masked_scatter", "put"), MOVED),
    **dict.fromkeys(("scatter_", "scatter_add_", "index_add_", "index_copy_", "index_put_", "index_fill_", "fill_", "put_"), WRITTEN),
    **dict.fromkeys(("numpy", "__array__", "data_ptr", "storage", "untyped_storage"), SHARED),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d", "fft_fft", "fft_rfft", "fft_fft2", "fft_ifft", "unfold", "interpolate", "max_pool1d", "avg_pool1d"),
        FILTERED,
    ),
    "nanmean": "use A.nan_to_num().sum(dim), and count what isn't NaN",
    "linalg_matrix_norm": "use torch.linalg.norm(A, ord)",
    "nll_loss": "use torch.nn.functional.nll_loss(A.to_dense(), target)",
    "batch_norm": "normalise A.values, or use .to_dense()",
    "layer_norm": "normalise A.values, or use .to_dense()",
    "embedding": "use weight[index] of a SparseTensor, or .to_dense()",
    "scaled_dot_product_attention": "use einsum with mask=, softmax, and einsum again, or .to_dense()",
    "grad": "differentiate with respect to its values, as in torch.autograd.grad(loss, A.values)",
    "backward": "call it on a scalar, as in A.sum().backward(), or pass a gradient to A.values.backward(gradient)",
    "cov": "use A.T @ A / n minus the outer product of A.mean(0), or .to_dense()",
    "corrcoef": "use A.T @ A / n minus the outer product of A.mean(0), or .to_dense()",
    "meshgrid": "it takes dense vectors: use .to_dense()",
    "as_strided": "a SparseTensor has no strides: use slices, reshape and permute",
    "requires_grad_": "train its values, A.values.requires_grad_(), or hold it in a ns.nn.Parameter",
    "new": "use A.new_zeros(shape), which is dense",
    "multinomial": "draw from A.to_dense()",
}

ADVICE = "optimizers take A.values; sparse layers, such as SparseLinear.from_dense(layer, sparsifier), take ns.nn.Parameter(A)"


def type_name(tensor: object) -> str:
    """The ``__qualname__`` of a tensor with advice; ``torch.typename`` prints it in errors of optimizers and modules.

    >>> type_name(1j)
    'complex (optimizers take A.values; sparse layers, such as SparseLinear.from_dense(layer, sparsifier), take ns.nn.Parameter(A))'
    """
    return f"{type(tensor).__name__} ({ADVICE})"


def suggestion(name: str) -> str:
    """What to write instead of one of torch's functions.

    >>> suggestion("linalg_solve")
    'use scipy.sparse.linalg.spsolve(A.to_scipy().tocsc(), b.numpy())'
    """
    return SUGGESTIONS.get(name, MASKED if name.startswith("masked.") else DENSE)


def refusal(name: str) -> str:
    """The error text for a function of torch that does not support SparseTensor.

    >>> refusal("as_strided")
    "torch's as_strided does not take a SparseTensor yet: a SparseTensor has no strides: use slices, reshape and permute"
    """
    return f"torch's {name} does not take a SparseTensor yet: {suggestion(name)}"


def missing(name: str) -> str:
    """The error text for an attribute that a SparseTensor lacks.

    >>> missing("tocsr"), missing("spam")
    ("a SparseTensor has no attribute 'tocsr': write A.to(ns.CSR)", "a SparseTensor has no attribute 'spam'")
    """
    if name in ATTRIBUTES:
        return sentence("a SparseTensor", name, ATTRIBUTES[name])
    is_torchs = hasattr(torch.Tensor, name) and not name.startswith("__")
    return refusal(name) if is_torchs else f"a SparseTensor has no attribute {name!r}"
