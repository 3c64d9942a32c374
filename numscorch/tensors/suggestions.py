"""What to write instead of functions of torch that take no SparseTensor."""

from __future__ import annotations

DENSE = "use einsum, or .to_dense()"
ORDERED = "entries that aren't stored would take part: sort A.values, use torch.topk, or .to_dense()"
SOLVED = "use scipy.sparse.linalg.spsolve(A.to_scipy().tocsc(), b.numpy())"
SPECTRAL = "use scipy.sparse.linalg.eigsh(A.to_scipy()) or svds for some, or .to_dense() for all"
FACTORED = "use scipy.sparse.linalg.splu(A.to_scipy().tocsc()), or .to_dense()"
COUNTED = "count A.values, and A.numel() - A.nnz zeros beside them, or use .to_dense()"
WRITTEN = "patterns never change: add A + ns.from_coo(indices, values, A.shape), or assign to A.values"
MOVED = "add what moves, as A + ns.from_coo(indices, values, A.shape)"
SHARED = "numpy and SciPy read A.values.numpy() and A.to_scipy() without a copy; or use .to_dense()"
MASKED = "mask with torch.where(mask, A, 0) or A * mask, and reduce that; or use .to_dense()"
FILTERED = "write it as an einsum, or use .to_dense()"

WAYS_OUT: dict[str, str] = {
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
    "grad": "differentiate by its values, as torch.autograd.grad(loss, A.values)",
    "backward": "call it on a loss, as A.sum().backward(); or give the values a gradient, A.values.backward(gradient)",
    "cov": "use A.T @ A / n less the outer product of A.mean(0), or .to_dense()",
    "corrcoef": "use A.T @ A / n less the outer product of A.mean(0), or .to_dense()",
    "meshgrid": "it takes dense vectors: use .to_dense()",
    "as_strided": "a SparseTensor has no strides: use slices, reshape and permute",
    "requires_grad_": "train its values, A.values.requires_grad_(), or hold it in a ns.nn.Parameter",
    "new": "use A.new_zeros(shape), which is dense",
    "multinomial": "draw from A.to_dense()",
}

ADVICE = "optimizers take A.values; sparse layers, as of SparseLinear.from_dense(layer, sparsifier), take ns.nn.Parameter(A)"


def type_name(tensor: object) -> str:
    """The ``__qualname__`` of a tensor, which ``torch.typename`` prints in errors of optimizers and modules.

    >>> type_name(1j)
    'complex (optimizers take A.values; sparse layers, as of SparseLinear.from_dense(layer, sparsifier), take ns.nn.Parameter(A))'
    """
    return f"{type(tensor).__name__} ({ADVICE})"


def way_out(name: str) -> str:
    """What to write instead of one of torch's functions.

    >>> way_out("linalg_solve")
    'use scipy.sparse.linalg.spsolve(A.to_scipy().tocsc(), b.numpy())'
    """
    return WAYS_OUT.get(name, MASKED if name.startswith("masked.") else DENSE)


def refusal(name: str) -> str:
    """The text of the error of a function of torch that takes no SparseTensor.

    >>> refusal("as_strided")
    "torch's as_strided does not take a SparseTensor yet: a SparseTensor has no strides: use slices, reshape and permute"
    """
    return f"torch's {name} does not take a SparseTensor yet: {way_out(name)}"
