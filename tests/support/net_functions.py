"""Sample calls of functions that are not torch's operators: einsums, constructors, conversions, files, layers and sparsifiers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from net_rows import Row

import numscorch as ns
from numscorch import nn, sparsify
from numscorch.nn import graphs, patterns


def dense(value: Any) -> Any:
    return value.to_dense() if isinstance(value, ns.SparseTensor) or getattr(value, "layout", torch.strided) is not torch.strided else value


def einsum_rows() -> list[Row]:
    texts = {
        "ij,jk->ik": ("S X", "S Q"),
        "ij->j": ("S",),
        "ij->ji": ("S",),
        "ij->": ("S", "B"),
        "ii->i": ("P",),
        "ij,ij->ij": ("S D", "S R"),
        "ij,ij->": ("S D", "D R", "S R"),
        "j,ij->": ("v S", "s S"),
        "j,ij->i": ("s S", "v S"),
        "i,i,i->i": ("s s s", "s v s"),
        "i,i->": ("s s", "s v"),
        "aij,ajk->aik": ("W Y",),
        "aij,bij->ab": ("W W", "W H"),
        "aij,bik->jk": ("W W",),
        "...j,j->...": ("W v",),
        "i,j->ij": ("u s", "s s"),
    }
    rows = []
    for text, calls in texts.items():
        for tokens in calls:
            call = lambda *operands, text=text: ns.einsum(text, *operands)  # noqa: E731
            theirs = lambda *operands, text=text: torch.einsum(text, *operands)  # noqa: E731
            rows.append(Row("einsum", tuple(tokens.split()), call, theirs))
    rows += [
        *(
            Row("einsum", ("S", "Q"), lambda S, Q, format=format: ns.einsum("ij,jk->ik", S, Q, format=format), lambda S, Q: S @ Q)
            for format in ("CSR", "COO(2)", "DCSR", "(i, j) -> (i: dense, j: dense)", "(i, j) -> (i: dense, j: hash)")
        ),
        Row("einsum", ("S", "X"), lambda S, X: ns.einsum("ij,jk->ik", S, X, out=X.new_full((len(S), 3), 9)), lambda S, X: S @ X),
        Row("einsum", ("S",), lambda S: ns.einsum("ij->i", S, reduce="max"), lambda S: S.amax(1)),
        Row("einsum", ("S",), lambda S: ns.einsum("ij->j", S, reduce="min"), lambda S: S.amin(0)),
        Row(
            "einsum",
            ("D", "Q", "P"),
            lambda D, Q, P: ns.einsum("ij,jk->ik", D, Q, mask=ns.from_torch(dense(P))),
            lambda D, Q, P: (D @ Q) * (P != 0),
        ),
        Row("plan", ("S", "X"), lambda S, X: ns.plan("ij,jk->ik", S, X)(S, X), lambda S, X: S @ X),
        Row("fuse", ("S", "X"), lambda S, X: ns.fuse(lambda A, x: torch.relu(A @ x))(S, X), lambda S, X: torch.relu(S @ X)),
        Row("explain", ("S", "X"), lambda S, X: (str(ns.explain("ij,jk->ik", S, X)), 0)[1], lambda S, X: 0),
        Row("rearrange", ("S",), lambda S: ns.rearrange(S, "i j -> j i"), lambda S: S.mT),
        Row("rearrange", ("S", "int:2"), lambda S, a: ns.rearrange(S, "i (j a) -> i a j", a=a), lambda S, a: S.unflatten(1, (-1, a)).mT),
    ]
    return rows


STATEMENTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "y[i] = S[i,j] * v[j]": ("S v", lambda S, v: S @ v),
    "y[i] = S[i,j] * 2": ("S", lambda S: (S * 2).sum(1)),
    "y = D[i,j] * 2": ("D", lambda D: (D * 2).sum()),
    "C[i,j] = relu(S[i,j] + R[i,j])": ("S R", lambda S, R: torch.relu(S + R)),
    "C[i,j] = 1 / S[i,j]": ("S", lambda S: 1 / S),
    "C[i,j] = S[i,j] % 2": ("S", lambda S: S % 2),
    "C[i,j] = S[i,j] // D[i,j]": ("S D", lambda S, D: S // D),
    "C[i,j] = fmod(S[i,j], 3)": ("S", lambda S: torch.fmod(S, 3)),
    "C[i,j] = D[i,j] * u[i]": ("D u", lambda D, u: D * u[:, None]),
    "C[i,k] = S[i,j] * X[j,k]": ("S X", lambda S, X: S @ X),
}


def statement_rows() -> list[Row]:
    rows = []
    for text, (tokens, theirs) in STATEMENTS.items():
        names = tokens.split()
        call = lambda *operands, text=text, names=names: ns.evaluate(text, **dict(zip(names, operands, strict=True)))  # noqa: E731
        rows.append(Row("evaluate", tuple(names), call, theirs))
    return rows


def placed(C: torch.Tensor, c: torch.Tensor, size: Any) -> torch.Tensor:
    if (C.long() < 0).any():
        raise IndexError("negative coordinates are no coordinates")
    return torch.zeros(size, dtype=c.dtype).index_put(tuple(C.long()), c, accumulate=True)


def square(E: torch.Tensor, c: torch.Tensor, size: int | None = None) -> torch.Tensor:
    count = int(E.max()) + 1 if size is None else size
    return placed(E.flip(0), c, (count, count))


def of_csr(pos: Any, crd: Any, c: Any, size: Any) -> torch.Tensor:
    return torch.sparse_csr_tensor(pos.long(), crd.long(), c, size).to_dense()


CONSTRUCTORS = [
    Row("from_coo", ("C", "c", "size:m,n"), lambda C, c, size: ns.from_coo(C, c, size), placed, is_plain=True),
    Row("from_coo", ("C", "c", "size:m,n"), lambda C, c, size: ns.from_coo(C, c, size, "CSC"), placed, is_plain=True),
    Row("from_csr", ("pos", "C.columns", "c", "size:m,n"), ns.from_csr, of_csr, is_plain=True),
    Row("from_torch", ("D",), ns.from_torch, lambda D: D, is_plain=True),
    Row("from_torch", ("D",), lambda D: ns.from_torch(D, "DCSR"), lambda D: D, is_plain=True),
    Row("from_scipy", ("D",), ns.from_scipy, lambda D: D, is_plain=True),
    Row("from_pydata", ("D",), ns.from_pydata, lambda D: D, is_plain=True),
    Row("adj_t", ("E", "c", "int:4"), lambda E, c, n: ns.adj_t(E, c, n), square, is_plain=True),
    Row("adj_t", ("E",), lambda E: ns.adj_t(E), lambda E: square(E, torch.ones(len(E[0]))), is_plain=True),
    Row("tensor", ("D",), lambda D: ns.tensor(D, format="CSR"), lambda D: torch.as_tensor(D), is_plain=True),
    *(
        Row(name, ("size:m,n",), lambda size, name=name: getattr(ns, name)(size, format="CSR"), getattr(torch, name), is_plain=True)
        for name in ("zeros", "ones", "empty", "rand", "randn")
    ),
    *(
        Row(name, ("int:3", "int:2"), lambda m, n, name=name: getattr(ns, name)(m, n, format="CSR"), getattr(torch, name), is_plain=True)
        for name in ("zeros", "ones", "empty", "rand", "randn", "eye")
    ),
    Row("full", ("size:m,n", "num:2"), lambda size, x: ns.full(size, x, format="CSR"), torch.full, is_plain=True),
    Row(
        "sparse_coo_tensor",
        ("C", "c", "size:m,n"),
        lambda C, c, size: ns.sparse_coo_tensor(C, c, size, format="CSR"),
        placed,
        is_plain=True,
    ),
    Row(
        "sparse_csr_tensor",
        ("pos", "C.columns", "c", "size:m,n"),
        lambda *args: ns.sparse_csr_tensor(*args, format="CSR"),
        of_csr,
        is_plain=True,
    ),
    Row("SparseTensor", ("S", "c.all"), lambda S, c: ns.SparseTensor(S.pattern, c[: S.pattern.nnz]).nnz >= 0, lambda S, c: True),
    Row("with_values", ("S", "c.all"), lambda S, c: S.with_values(c[: S.pattern.nnz]).nnz >= 0, lambda S, c: True),
]


def through_file(S: Any, suffix: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        ns.save(S, Path(folder) / f"a{suffix}")
        return ns.load(Path(folder) / f"a{suffix}")


CONVERSIONS = [
    Row("to_dense", ("S",), lambda S: S.to_dense(), lambda S: S),
    Row("to_torch", ("S",), lambda S: S.to(ns.CSR).to_torch(), lambda S: S),
    Row("to_scipy", ("S",), lambda S: torch.as_tensor(S.to(ns.CSR).to_scipy().toarray()), lambda S: S),
    Row("to_pydata", ("S",), lambda S: torch.as_tensor(S.to(ns.CSR).to_pydata().todense()), lambda S: S),
    Row("to_edge_index", ("P",), lambda P: ns.adj_t(*P.to_edge_index(), len(P)), lambda P: P),
    Row("to", ("S", "=torch.float64"), lambda S, x: S.to(x), lambda S, x: S.to(x)),
    *(
        Row("to", ("S",), lambda S, f=f: S.to(f), lambda S: S)
        for f in (
            "CSR",
            "CSC",
            "COO(2)",
            "DCSR",
            "CSF(2)",
            "ELL",
            "DIA",
            "BCSR(2, 2)",
            "(i, j) -> (i: dense, j: hash)",
            "(i, j) -> (i: hash, j: hash)",
            "(i, j) -> (i: dense, j: bitmap)",
            "dense",
        )
    ),
    *(Row("save", ("S",), lambda S, suffix=suffix: through_file(S, suffix), lambda S: S) for suffix in (".npz", ".pt", ".safetensors")),
    Row("coalesce", ("S",), lambda S: S.coalesce(), lambda S: S),
    Row("sort", ("S",), lambda S: S.sort(), lambda S: S),
    Row("indices", ("S",), lambda S: S.with_values(S.values).indices().shape[0], lambda S: S.ndim),
    Row("nnz", ("S",), lambda S: S.nnz >= int((S != 0).sum()), lambda S: True),
    Row("T", ("S",), lambda S: S.T, lambda S: S.mT),
    Row("grad", ("S",), lambda S: S.grad, lambda S: None),
    Row("repr", ("S",), lambda S: bool(repr(S)), lambda S: True),
    Row("card", ("S",), lambda S: bool(S._repr_html_()), lambda S: True),
]


def seeded(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    module = make()
    return module.eval()


def layer_row(name: str, make: Callable[[], Any], *tokens: str, theirs: Callable[..., Any] | None = None) -> Row:
    return Row(name, tokens, lambda *args: seeded(make)(*args), theirs and (lambda *args: theirs(seeded(make), *args)), is_plain=True)


EYE = torch.eye(6)[:5] + torch.eye(6)[1:].flip(0)
LAYERS = [
    layer_row(
        "SparseLinear",
        lambda: nn.SparseLinear(4, 5, pattern=torch.ones(5, 4).tril() > 0),
        "x4",
        theirs=lambda layer, x: F.linear(x, layer.weight.tensor.to_dense(), layer.bias),
    ),
    layer_row("SparseConv2d", lambda: nn.SparseConv2d(1, 2, 2, density=0.5), "image"),
    layer_row(
        "SparseEmbedding",
        lambda: nn.SparseEmbedding(4, 3, density=0.5),
        "I",
        theirs=lambda layer, i: F.embedding(i, layer.weight.tensor.to_dense()),
    ),
    layer_row(
        "SparseEmbeddingBag", lambda: nn.SparseEmbeddingBag(4, 3), "I", "o", theirs=lambda layer, i, o: F.embedding_bag(i, layer.weight, o)
    ),
    layer_row(
        "SparseEmbeddingBag",
        lambda: nn.SparseEmbeddingBag(4, 3, mode="sum"),
        "I",
        "o",
        "per_sample_weights=c",
        theirs=lambda layer, i, o, per_sample_weights: F.embedding_bag(
            i, layer.weight, o, mode="sum", per_sample_weights=per_sample_weights
        ),
    ),
    layer_row("SparseAttention", lambda: nn.SparseAttention(torch.ones(5, 5).tril() > 0, 4, 2), "x4", "x4", "x4"),
    layer_row("SparseMultiheadAttention", lambda: nn.SparseMultiheadAttention(4, 2, batch_first=True), "x4", "x4", "x4"),
    layer_row("SparseTransformerEncoderLayer", lambda: nn.SparseTransformerEncoderLayer(torch.ones(5, 5).tril() > 0, 4, 2, 8), "x4.batch"),
    layer_row("MoE", lambda: nn.MoE(2, d_in=4, d_out=2), "x4"),
    layer_row("GCNConv", lambda: nn.GCNConv(4, 2), "x4.nodes", "E"),
    layer_row("GCNConv", lambda: nn.GCNConv(4, 2), "x4.nodes", "E", "c"),
    layer_row("SAGEConv", lambda: nn.SAGEConv(4, 2), "x4.nodes", "E"),
    layer_row("GATConv", lambda: nn.GATConv(4, 2), "x4.nodes", "E"),
    layer_row("GINConv", lambda: nn.GINConv(torch.nn.Linear(4, 2)), "x4.nodes", "E"),
    Row("one_hot", ("I", "int:5"), lambda i, n: nn.functional.one_hot(i, n, sparse=True), F.one_hot, is_plain=True),
    Row(
        "scaled_dot_product_attention",
        ("x4", "x4", "x4", "T"),
        lambda q, k, v, mask: nn.functional.scaled_dot_product_attention(q, k, v, mask),
        lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask),
    ),
    Row("gcn_norm", ("E", "c", "int:4"), lambda E, c, n: graphs.gcn_norm(E, c, n), is_plain=True),
    Row("sliding_window", ("int:5", "int:1"), patterns.sliding_window, is_plain=True),
    Row("causal", ("int:5",), patterns.causal, is_plain=True),
    Row("global_tokens", ("int:5", "int:1"), patterns.global_tokens, is_plain=True),
    Row("random_blocks", ("int:8", "int:2", "int:1"), patterns.random_blocks, is_plain=True),
    Row("bigbird", ("int:8", "int:2"), patterns.bigbird, is_plain=True),
    Row("longformer", ("int:8", "int:2"), patterns.longformer, is_plain=True),
    Row("block", ("M.square", "int:2"), patterns.block, is_plain=True),
    Row("union", ("M", "M"), patterns.union, lambda A, B: (A | B).float(), is_plain=True),
    Row("intersection", ("M", "M"), patterns.intersection, lambda A, B: (A & B).float(), is_plain=True),
]

SPARSIFIERS: dict[str, Callable[..., Any]] = {
    "magnitude": lambda x: sparsify.magnitude(x / 4),
    "threshold": lambda x: sparsify.threshold(x),
    "topk": lambda x: sparsify.topk(x),
    "random": lambda x: sparsify.random(x / 4, seed=0),
    "keep_all": lambda x: sparsify.keep_all(),
    "uniform": lambda x: sparsify.uniform(x / 4),
    "n_m": lambda x: sparsify.n_m(1, x),
    "block_magnitude": lambda x: sparsify.block_magnitude(2, 2, x / 4),
    "compose": lambda x: sparsify.compose(sparsify.magnitude(x / 4), sparsify.threshold(0.5)),
}
SPARSIFYING = [
    *(
        Row(name, ("D", "num:2"), lambda D, x, make=make: sparsify.sparsify(D, make(x)), is_plain=True)
        for name, make in SPARSIFIERS.items()
    ),
    Row("sparsify", ("S",), lambda S: sparsify.sparsify(S, sparsify.magnitude(0.5)), is_plain=True),
    Row("report", ("D",), lambda D: bool(str(sparsify.report(D))), is_plain=True),
    Row("movement", ("D", "D"), lambda D, scores: sparsify.sparsify(D, sparsify.movement(0.5, scores)), is_plain=True),
    Row("wanda", ("D", "D"), lambda D, inputs: sparsify.sparsify(D, sparsify.wanda(0.5, inputs)), is_plain=True),
    Row(
        "same_pattern",
        ("D", "S"),
        lambda D, S: sparsify.sparsify(D, sparsify.same_pattern(ns.from_torch(dense(S)))),
        lambda D, S: D * (S != 0),
    ),
]
FORMATS = [
    Row("NM", ("int:2", "int:4"), lambda n, m: str(ns.NM(n, m)), is_plain=True),
    Row("NMG", ("int:2", "int:4", "int:8"), lambda n, m, g: str(ns.NMG(n, m, g)), is_plain=True),
    Row("BCSR", ("int:2", "int:2"), lambda a, b: str(ns.BCSR(a, b)), is_plain=True),
    Row("COO", ("int:2",), lambda order: str(ns.COO(order)), is_plain=True),
    Row("CSF", ("int:3",), lambda order: str(ns.CSF(order)), is_plain=True),
]
FUNCTIONS = [*einsum_rows(), *statement_rows(), *CONSTRUCTORS, *CONVERSIONS, *LAYERS, *SPARSIFYING, *FORMATS]
NOT_CALLED = {  # reasons, and public names
    "graphs of other libraries": "from_dgl from_networkx from_torch_sparse to_dgl to_networkx to_torch_sparse",
    "values and types": "CSC CSR DCSC DCSR DIA ELL Format Kind Sparsifier OperandSpec Parameter SparseParameter",
    "errors and warnings": "DenseFallbackWarning DivisionError ExpressionError FormatError MemoryLimitError NumscorchError OperandError "
    "PatternWarning RangeError RankError ScheduleError SizeError UnsupportedError",
    "random, or unique up to signs": "lobpcg pca_lowrank svd_lowrank",
    "modules": "functional graphs nn operators patterns schedules sharding",
    "results of other functions": "LayoutReport LayoutRow LowRankPlusSparse ModelReport ModelRow MovementScores PlanRule BoundEinsum",
    "facts of a tensor": "density device dim dtype format ndim pattern requires_grad shape values",
    "for kernels, without checks": "locate trusted viewed",
    "compile kernels": "autotune best_format warm",
    "contexts without arguments": "ledger strict",
    "files and pictures": "load load_graph spy",
    "register a user's class": "register_level register_sparse_module register_sparsifier",
    "as sparse_csr_tensor": "sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor sparse_csc_tensor",
    "take models": "GradualPruning RigL SET SparsityPlan broadcast_patterns check_patterns data_parallel densify_model load_patterns "
    "repattern resparsify settle sparsify_model straight_through erk global_magnitude sparse_weight dense_weight",
    "sizes or entries of their own": "diags fill_diagonal_ low_rank_plus_sparse n_m_g",
}
EXPLAINED = {name: reason for reason, names in NOT_CALLED.items() for name in names.split()}
