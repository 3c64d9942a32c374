"""Suggestions for names that a SparseTensor or the module lacks, and for functions of torch that take no SparseTensor."""

from __future__ import annotations

import torch

COALESCED = "A.is_coalesced()"
SORTED = "A.coalesce(), which returns a tensor with sorted and unique coordinates"
NEW_ENTRIES = "A + ns.from_coo(indices, values, A.shape), since patterns never change"
NO_DENSE_ARRAY = "A.values.numpy(), the memory of the stored values, or A.to_dense().numpy()"
STRIDES = "nothing: a SparseTensor has no strides; A.format says how it is stored"
VALUES_DRAWN = "A.values and its method of this name, which fills the stored entries"
OF_VALUES = "A.values and its attribute of this name"
CPU_ONLY = "nothing: numscorch runs on the CPU"
QUANTIZED = "nothing: a SparseTensor is not quantized"

ATTRIBUTES: dict[str, str] = {  # SciPy's, NumPy's and pydata's attributes, and torch's if the suggestion for its function does not fit
    "A": "A.to_dense(), or A.to_dense().numpy() for an array",
    "asformat": "A.to(ns.CSC), or another format",
    "asfptype": "A.float(), or A.double()",
    "astype": "A.to(torch.float64), or another data type of torch",
    "base": "A.values, which may share its memory",
    "blocksize": "A.format, which has the sizes of blocks",
    "byteswap": "A.values, whose bytes are in the machine's order",
    "change_compressed_axes": "A.to(ns.CSR), A.to(ns.CSC), or another format",
    "check_format": "nothing: constructors check index arrays, and patterns never change",
    "choose": "torch.where(condition, A, B)",
    "clear": "ns.zeros(A.shape, format=A.format)",
    "col": "A.indices()[1]",
    "compress": "A[mask], or A.index_select(dim, index)",
    "compressed_axes": "A.format",
    "conjugate": "A.conj()",
    "coords": "A.indices(), a tensor of shape (ndim, nnz)",
    "copy": "A.clone()",
    "enable_caching": "nothing: conversions and transposes are kept with the pattern",
    "fill": "A.values.fill_(number), which fills the stored entries",
    "flags": "A.values and its attributes",
    "flat": "A.flatten()",
    "from_coo": "ns.from_coo(indices, values, shape)",
    "from_iter": "ns.from_coo(indices, values, shape)",
    "from_nodes": "ns.from_coo(indices, values, shape)",
    "from_numpy": "ns.from_torch(torch.from_numpy(x))",
    "from_scipy_sparse": "ns.from_scipy(S)",
    "fromkeys": "ns.from_coo(indices, values, shape)",
    "get": "A[i, j].item(), which is 0 where nothing is stored",
    "get_nodes": "A.indices()",
    "get_shape": "A.shape",
    "getH": "A.H",
    "getcol": "A[:, [j]] for a matrix, or A[:, j] for a vector",
    "getfield": "A.values",
    "getformat": "A.format",
    "getmaxprint": "nothing: repr(A) shows no entries",
    "getnnz": "A.nnz, or torch.ones_like(A).sum(dim) along a dimension",
    "getrow": "A[[i]] for a matrix, or A[i] for a vector",
    "getrowview": "A[i], a copy",
    "has_canonical_format": COALESCED,
    "has_sorted_indices": COALESCED,
    "indptr": "A.crow_indices() of CSR, or A.ccol_indices() of CSC",
    "items": "zip(A.indices().t().tolist(), A.values.tolist())",
    "keys": "A.indices().t().tolist()",
    "linear_loc": "A.flatten().indices()",
    "maxprint": "nothing: repr(A) shows no entries",
    "maybe_densify": "A.to_dense()",
    "nanmax": "A.nan_to_num(float('-inf')).amax(dim)",
    "nanmin": "A.nan_to_num(float('inf')).amin(dim)",
    "offsets": "(A.indices()[1] - A.indices()[0]).unique()",
    "power": "A ** n",
    "prune": "nothing: index arrays have no unused room; A.eliminate_zeros() drops stored zeros",
    "reduce": "A.sum(dim), A.amax(dim), or another reduction",
    "resize": "A[:rows, :columns] for a smaller shape, ns.from_coo(A.indices(), A.values, shape) for a larger one",
    "rint": "A.round()",
    "row": "A.indices()[0]",
    "rows": "A.indices(), or A[i] for a row",
    "set_shape": "A.reshape(shape)",
    "setdiag": "A.fill_diagonal_(x) if the diagonal is stored, else A + ns.diags(x - A.diagonal().to_dense(), 0, A.shape, format=A.format)",
    "sort_indices": SORTED,
    "sorted_indices": SORTED,
    "sum_duplicates": SORTED,
    "to_scipy_sparse": "A.to_scipy()",
    "toarray": "A.to_dense(), or A.to_dense().numpy() for an array",
    "tobsr": "A.to(ns.BCSR(rows, columns))",
    "tocoo": "A.to(ns.COO(2))",
    "tocsc": "A.to(ns.CSC)",
    "tocsr": "A.to(ns.CSR)",
    "todense": "A.to_dense(), or A.to_dense().numpy() for an array",
    "todia": "A.to(ns.DIA)",
    "to_device": "A.to(device); numscorch runs on the CPU",
    **dict.fromkeys(("todok", "tolil"), "A.to_scipy() and its method of this name"),
    **dict.fromkeys(("pop", "popitem", "setdefault", "update", "put"), NEW_ENTRIES),
    **dict.fromkeys(("ctypes", "setfield", "setflags", "searchsorted"), NO_DENSE_ARRAY),
    **dict.fromkeys(("argpartition", "partition"), "A.values.sort(), as unstored zeros would take part, or A.to_dense()"),
    **dict.fromkeys(("dump", "dumps", "tobytes", "tofile"), "ns.save(A, path), or torch.save(A, path)"),
    "strides": STRIDES,
    "to_coo": "A.to(ns.COO(2))",
    # torch's
    "addcdiv": "A + value * B / C",
    "bernoulli": "torch.bernoulli(A.to_dense())",
    "diagflat": "ns.diag(A.flatten())",
    "register_post_accumulate_grad_hook": "A.register_hook(hook), or A.values and its method of this name",
    "detach_": "A.values.detach_()",
    "float_power": "A.double() ** n",
    "is_nonzero": "bool(A), of a tensor with one entry",
    "is_same_size": "A.shape == B.shape",
    "name": "nothing: a SparseTensor has no name",
    "normal_": VALUES_DRAWN,
    "sparse_mask": "A * torch.ones_like(mask), the entries that mask stores",
    **dict.fromkeys(("bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "random_", "uniform_"), VALUES_DRAWN),
    **dict.fromkeys(("bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor"), "A & B, ~A, A | B and A ^ B of truth values"),
    **dict.fromkeys(("apply_", "map_", "map2_", "hash_tensor", "reinforce", "module_load", "output_nr", "grad_dtype"), OF_VALUES),
    **dict.fromkeys(("is_conj", "is_neg", "is_inference", "resolve_conj", "resolve_neg", "conj_physical"), OF_VALUES),
    **dict.fromkeys(
        ("as_subclass", "is_distributed", "is_nested", "to_padded_tensor", "slice_inverse"),
        "nothing: a SparseTensor is not a torch.Tensor; A.values is one",
    ),
    **dict.fromkeys(("storage_offset", "dim_order", "new_empty_strided"), STRIDES),
    **dict.fromkeys(("storage_type", "const_data_ptr", "is_set_to"), NO_DENSE_ARRAY),
    **dict.fromkeys(("resize_", "resize_as_", "resize_as", "set_", "sparse_resize_", "sparse_resize_and_clear_"), NEW_ENTRIES),
    **dict.fromkeys(("ipu", "mtia", "xpu", "pin_memory", "to_mkldnn", "record_stream"), CPU_ONLY),
    **dict.fromkeys(("is_ipu", "is_maia", "is_mkldnn", "is_mps", "is_mtia", "is_vulkan", "is_xla", "is_xpu", "is_pinned"), CPU_ONLY),
    **dict.fromkeys(("dequantize", "int_repr", "qscheme", "q_scale", "q_zero_point"), QUANTIZED),
    **dict.fromkeys(("q_per_channel_axis", "q_per_channel_scales", "q_per_channel_zero_points"), QUANTIZED),
    **dict.fromkeys(
        ("as_strided_scatter", "diagonal_scatter", "narrow_copy", "select_scatter", "slice_scatter"),
        "the name without _copy or _scatter, and A.clone()",
    ),
}


MATRICES = "ns.from_scipy(S) of SciPy's matrix, ns.from_csr(indptr, indices, data, shape), or ns.from_coo(coords, data, shape)"

UNSUPPORTED_FUNCTIONS: dict[str, str] = {  # SciPy's and pydata's functions and classes, as attributes of the module
    **{f"{kind}_{what}": MATRICES for kind in ("csr", "csc", "coo", "bsr", "dia", "dok", "lil") for what in ("array", "matrix")},
    **dict.fromkeys(("GCXS", "DOK", "SparseArray", "asCOO", "as_coo"), "ns.from_pydata(x), or ns.from_coo(coords, data, shape)"),
    **dict.fromkeys(("sparray", "spmatrix"), "ns.SparseTensor"),
    **dict.fromkeys(("eye_array", "identity"), "ns.eye(n, format=ns.CSR), or ns.diags(1.0, offset, shape) for another diagonal"),
    **dict.fromkeys(("diags_array", "spdiags"), "ns.diags(diagonals, offsets, shape)"),
    **dict.fromkeys(
        ("block_array", "bmat"), "torch.cat of the rows of blocks, each torch.cat(blocks, 1); torch.block_diag for blocks on the diagonal"
    ),
    **dict.fromkeys(("issparse", "isspmatrix"), "isinstance(x, ns.SparseTensor)"),
    **{f"isspmatrix_{kind}": "A.format == ns.CSR, or another format" for kind in ("csr", "csc", "coo", "bsr", "dia", "dok", "lil")},
    "array": "ns.tensor(data, format=ns.CSR)",
    "csgraph": "scipy.sparse.csgraph and A.to_scipy()",
    "expand_dims": "A.unsqueeze(dim)",
    "find": "A.eliminate_zeros(), and its indices() and values",
    "from_edge_index": "ns.adj_t(edge_index), the matrix A[target, source] of graph layers; its .t() is A[source, target]",
    "get_index_dtype": "A.pattern.index_dtype; constructors choose int32 where it fits",
    "kronsum": "torch.kron(ns.eye(n, format=ns.CSR), A) + torch.kron(B, ns.eye(m, format=ns.CSR))",
    "mmread": "ns.load(path)",
    "mmwrite": "ns.save(A, path)",
    **dict.fromkeys(("cg", "eigsh", "gmres", "spilu", "splu", "spsolve", "svds"), "scipy.sparse.linalg and A.to_scipy()"),
    "load_npz": "ns.load(path)",
    "permute_dims": "A.permute(dims)",
    "random_array": "ns.rand(m, n, density=0.01, format=ns.CSR)",
    "safely_cast_index_arrays": "A.indices(), which is int64",
    "save_npz": "ns.save(A, path)",
    **dict.fromkeys(("SparseEfficiencyWarning", "SparseWarning"), "ns.DenseFallbackWarning, or ns.ledger() for all conversions"),
}


def sentence(subject: str, name: str, instead: str) -> str:
    """The error text for a name that other libraries have and ``subject`` lacks.

    >>> sentence("a SparseTensor", "tocsr", ATTRIBUTES["tocsr"])
    "a SparseTensor has no attribute 'tocsr': write A.to(ns.CSR)"
    """
    action = instead.removeprefix("nothing: ") if instead.startswith("nothing: ") else f"write {instead}"
    return f"{subject} has no attribute {name!r}: {action}"


SUGGESTIONS: dict[str, str] = {
    **dict.fromkeys(
        ("sort", "argsort", "msort", "median", "nanmedian", "quantile", "nanquantile", "kthvalue", "mode"),
        "unstored zeros would take part: sort A.values, use torch.topk, or .to_dense()",
    ),
    **dict.fromkeys(
        ("histc", "histogram", "histogramdd", "bincount", "unique", "unique_consecutive", "bucketize"),
        "count A.values and add A.numel() - A.nnz zeros, or use .to_dense()",
    ),
    **dict.fromkeys(
        ("linalg_solve", "solve", "linalg_inv", "inverse", "linalg_solve_triangular"),
        "use scipy.sparse.linalg.spsolve(A.to_scipy().tocsc(), b.numpy())",
    ),
    **dict.fromkeys(
        ("linalg_eig", "linalg_eigh", "linalg_eigvals", "linalg_eigvalsh", "linalg_svd", "linalg_svdvals", "svd"),
        "use torch.lobpcg, svd_lowrank or scipy.sparse.linalg.eigsh(A.to_scipy()) for some, or .to_dense() for all",
    ),
    **dict.fromkeys(
        ("linalg_cholesky", "cholesky", "linalg_qr", "qr", "linalg_lu", "lu", "linalg_det", "det", "logdet", "slogdet", "linalg_slogdet"),
        "use scipy.sparse.linalg.splu(A.to_scipy().tocsc()), or .to_dense()",
    ),
    **dict.fromkeys(
        ("scatter", "scatter_add", "index_add", "index_copy", "index_put", "masked_scatter", "put"),
        "add the entries, as in A + ns.from_coo(indices, values, A.shape)",
    ),
    **dict.fromkeys(
        ("scatter_", "scatter_add_", "index_add_", "index_copy_", "index_put_", "put_"),
        "patterns never change: add A + ns.from_coo(indices, values, A.shape), or assign to A.values",
    ),
    **dict.fromkeys(
        ("fill_", "index_fill", "index_fill_"),
        "use A.values.fill_(number) for stored entries, A.zero_(), or A[rows] = 0: other entries are never added",
    ),
    **dict.fromkeys(
        ("numpy", "__array__", "data_ptr", "storage", "untyped_storage"),
        "use A.values.numpy(), which shares memory, A.to_scipy(), or .to_dense()",
    ),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d", "fft_fft", "fft_rfft", "fft_fft2", "fft_ifft", "unfold", "interpolate", "max_pool1d", "avg_pool1d"),
        "write it as an einsum, or use .to_dense()",
    ),
    **dict.fromkeys(("linalg_lstsq", "linalg_pinv", "pinverse"), "use scipy.sparse.linalg.lsqr(A.to_scipy(), b.numpy()), or .to_dense()"),
    "matrix_exp": "use scipy.sparse.linalg.expm(A.to_scipy().tocsc()), or .to_dense()",
    "rsub": "write other - A",
    "float_power": "write A.double() ** exponent",
    "special_expit": "use torch.sigmoid(A)",
    "nanmean": "use A.nan_to_num().sum(dim), and count what isn't NaN",
    "linalg_matrix_norm": "use torch.linalg.norm(A, ord)",
    "nll_loss": "use torch.nn.functional.nll_loss(A.to_dense(), target)",
    "batch_norm": "normalise A.values, or use .to_dense()",
    "layer_norm": "normalise A.values, or use .to_dense()",
    "scaled_dot_product_attention": "use einsum with mask=, softmax, and einsum again, or .to_dense()",
    "grad": "differentiate with respect to its values, as in torch.autograd.grad(loss, A.values)",
    "backward": "call it on a scalar, as in A.sum().backward(), or pass a gradient to A.values.backward(gradient)",
    "cov": "use ((A @ A.T).to_dense() - n * torch.outer(A.mean(1), A.mean(1))) / (n - 1) of n columns, or .to_dense()",
    "corrcoef": "divide the covariances by the standard deviations A.std(1), see the error of torch.cov, or use .to_dense()",
    **dict.fromkeys(("bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor"), "use A & B, ~A, A | B and A ^ B of truth values"),
    "meshgrid": "it takes dense vectors: use .to_dense()",
    "as_strided": "a SparseTensor has no strides: use slices, reshape and permute",
    "requires_grad_": "use A.values.requires_grad_(); in modules, write ns.nn.Parameter(A) in the place of torch.nn.Parameter(A), and "
    "register_buffer(name, A) in the place of torch.nn.Buffer(A)",
    "new": "use A.new_zeros(shape), which is dense",
    "multinomial": "draw from A.to_dense()",
}

FAMILIES = {  # suggestions for functions by the start of their names
    "linalg_": "use scipy.sparse.linalg with A.to_scipy(), or .to_dense()",
    "masked.": "mask with torch.where(mask, A, 0) or A * mask, and reduce that; or use .to_dense()",
}
ADVICE = "optimizers take A.values; sparse layers, such as SparseLinear.from_dense(layer, sparsifier), take ns.nn.Parameter(A)"


def type_name(tensor: object) -> str:
    """The ``__qualname__`` of a tensor with advice; ``torch.typename`` prints it in errors of optimizers and modules.

    >>> type_name(1j)
    'complex (optimizers take A.values; sparse layers, such as SparseLinear.from_dense(layer, sparsifier), take ns.nn.Parameter(A))'
    """
    return f"{type(tensor).__name__} ({ADVICE})"


def refusal(name: str) -> str:
    """The error text for a function of torch that does not support SparseTensor.

    >>> refusal("as_strided")
    "torch's as_strided does not take a SparseTensor yet: a SparseTensor has no strides: use slices, reshape and permute"
    """
    family = next((suggestion for prefix, suggestion in FAMILIES.items() if name.startswith(prefix)), "use einsum, or .to_dense()")
    suggestion = SUGGESTIONS.get(name, family)
    return f"torch's {name} does not take a SparseTensor yet: {suggestion}"


def missing(name: str) -> str:
    """The error text for an attribute that a SparseTensor lacks.

    >>> missing("tocsr"), missing("spam")
    ("a SparseTensor has no attribute 'tocsr': write A.to(ns.CSR)", "a SparseTensor has no attribute 'spam'")
    """
    if name in ATTRIBUTES:
        return sentence("a SparseTensor", name, ATTRIBUTES[name])
    is_torchs = hasattr(torch.Tensor, name) and not name.startswith("__")
    return refusal(name) if is_torchs else f"a SparseTensor has no attribute {name!r}"
