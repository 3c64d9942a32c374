"""Sharded matrices on meshes of one and two dimensions: products, sums and gradients equal those of one process."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from scale import scaled
from sharded_programs import GRIDS, PRELUDE, RANKS, on_mesh
from two_processes import together, two_processes

pytestmark = [pytest.mark.process, two_processes]
RANDOM = """
expressions = {
    "ij,jk->ik": ("jk",), "ij,j->i": ("j",), "ij,jf,of->io": ("jf", "of"), "ij,i,j->i": ("i", "j"), "ij->i": (), "ij->j": (), "ij->": (),
    "ij,ik->jk": ("ik",), "ij,i->j": ("i",), "ij,ik,jk->ij": ("ik", "jk"), "ij,ik,jk->": ("ik", "jk"), "ij,jk->ki": ("jk",),
    "ij,jk,kf->if": ("jk", "kf"), "ij,jf,of,f->io": ("jf", "of", "f"), "ij,jkf,fo->iok": ("jkf", "fo"), "of,ij,jkf->oi": ("of", "jkf"),
    "ij,ik,jk->ik": ("ik", "jk"), "ij,j,j->i": ("j", "j"), "ij,ij->i": None, "jk,ij->ik": ("jk",),
}
for seed in range(int(sys.argv[4])):
    rng = random.Random(seed)
    size = rng.choice([1, 2, 5, 12, 30])
    columns = size if rng.random() < 0.7 else rng.choice([1, 4, 17])
    full = matrix(size, columns, rng.choice([0, 0.05, 0.3, 1]), seed)
    options = {"partition": rng.choice(["rows", "nnz"])}
    if rng.random() < 0.2:
        cuts = sorted(rng.randint(0, size) for _ in range(extents[0] - 1))
        options["partition"] = [b - a for a, b in zip([0, *cuts], [*cuts, size])]
    if size == columns and rng.random() < 0.4:
        options["permute"] = rng.choice(["nnz", torch.randperm(size, generator=torch.Generator().manual_seed(seed))])
    whole = ns.from_torch(full, ns.CSR)
    A = shard(whole if rng.random() < 0.5 or ranks == 1 else whole if rank == seed % ranks else None, mesh, placements, **options)
    assert torch.equal(A.full_tensor().to_dense(), full) and A.nnz == whole.nnz
    trained = A.with_values(A.values.clone().requires_grad_())
    values = whole.values.clone().requires_grad_()
    for text, operands in expressions.items():
        sizes = {"i": size, "j": columns, "k": 3, "f": 4, "o": 2}
        names = text.split("->")[0].split(",")
        matrix_at = names.index("ij")
        result_names = text.split("->")[1]
        operand_values = [dense(*(sizes[n] for n in name), seed=at + 1) for at, name in enumerate(names) if name != "ij"]
        local, twins = [], []
        for name, value in zip([n for n in names if n != "ij"], operand_values):
            at = max(name.find("i"), name.find("j"))
            pick = rows_of if "i" in name else lambda A, x: A.rows_of(x)
            mine = value if at < 0 else pick(A, value.movedim(at, 0)).movedim(0, at)
            local.append(mine.clone().requires_grad_())
            twins.append(value.clone().requires_grad_())
        both = [trained, trained] if operands is None else None
        twin = whole.with_values(values)
        ours = both or [*local[:matrix_at], trained, *local[matrix_at:]]
        theirs = [twin, twin] if operands is None else [*twins[:matrix_at], twin, *twins[matrix_at:]]
        result, expected = ns.einsum(text, *ours), ns.einsum(text, *theirs)
        if isinstance(expected, ns.SparseTensor) and len(result_names) < 2:
            expected = expected.to_dense()
        if "i" in result_names and "j" in result_names:
            result, expected = result.full_tensor().to_dense(), expected.to_dense()
        else:
            at = max(result_names.find("i"), result_names.find("j"))
            if at >= 0:
                pick = rows_of if "i" in result_names else lambda A, x: A.rows_of(x)
                expected_rows = pick(A, expected.movedim(at, 0)).movedim(0, at)
            else:
                expected_rows = expected
            same(result, expected_rows)
            weights = dense(*expected.shape, seed=9)
            upstream = weights if at < 0 else pick(A, weights.movedim(at, 0)).movedim(0, at)
            loss = (result * upstream).sum() / (1 if at >= 0 else ranks)  # the loss is the sum of the losses of all ranks
            gradients = torch.autograd.grad(loss, [trained.values, *local], allow_unused=True, materialize_grads=True)
            wanted = torch.autograd.grad((expected * weights).sum(), [values, *twins], materialize_grads=True)
            gathered = A.with_values(gradients[0]).full_tensor()
            same(gathered.to_dense(), whole.with_values(wanted[0]).to_dense())
            for name, gradient, want in zip([n for n in names if n != "ij"], gradients[1:], wanted[1:]):
                where = max(name.find("i"), name.find("j"))
                if where >= 0:
                    picked = (rows_of if "i" in name else lambda A, x: A.rows_of(x))(A, want.movedim(where, 0)).movedim(0, where)
                    same(gradient, picked)
                else:
                    dist.all_reduce(gradient)
                    same(gradient, want)
            continue
        same(result, expected)
given["cases"] = seed + 1
"""


@pytest.mark.parametrize("extents", [*((ranks,) for ranks in RANKS), *GRIDS])
def test_random_einsums_equal_those_of_one_process(extents: tuple[int, ...], tmp_path: Path) -> None:
    """Random matrices, partitions and permutations; results, and gradients of values and operands."""
    count = scaled(500 if len(extents) == 1 else 200)  # four and six ranks take longer
    results = together(PRELUDE + RANDOM, tmp_path, str(count), **on_mesh(extents))
    assert [given["cases"] for given in results] == [count] * prod(extents)


SHORT_ROWS = """
whole = ns.from_torch(matrix(30, 30, 0.3, 0), ns.CSR)
A = shard(whole, mesh)
x, W = dense(30, 8), dense(2, 8)

def columns_sent(x, W, text="ij,jf,of->io", run=lambda result: None):
    before = A.exchange.bytes_sent
    run(ns.einsum(text, A, A.rows_of(x), W))
    return (A.exchange.bytes_sent - before) / max(len(A.exchange.sent), 1) / x.element_size()

def backward(result):
    result.sum().backward()

given["widening"] = columns_sent(x, dense(9, 8))
given["narrowing"] = columns_sent(x, W)
given["same"] = columns_sent(x, dense(8, 8))
given["trained weights"] = columns_sent(x, W.clone().requires_grad_(), run=backward)
given["wide trained weights"] = columns_sent(x, dense(6, 8).requires_grad_(), run=backward)
given["trained"] = columns_sent(x.clone().requires_grad_(), dense(6, 8), run=backward)
given["integers"] = columns_sent(x.short(), W.short())
given["halves"] = columns_sent(x.half(), W.half())
same(A.gathered(ns.einsum("ij,jf,of->io", A, A.rows_of(x), W)), whole.to_dense() @ x @ W.t())
"""


def test_ranks_send_the_shorter_of_operands_and_their_products(tmp_path: Path) -> None:
    """The gradient of a product is sent back, that of a constant operand is not; integers and halves can overflow in another order."""
    sent = {"widening": 8, "narrowing": 2, "same": 8, "trained weights": 4, "wide trained weights": 12, "trained": 12}
    sent |= {"integers": 8, "halves": 8}
    assert together(PRELUDE + SHORT_ROWS, tmp_path, **on_mesh((2,))) == [sent, sent]


DIFFERENT = """
A = shard(ns.from_torch(matrix(12, 12, 0.3, 0), ns.CSR), mesh)
x = A.rows_of(dense(12, 3))
for text, W in (("ij,jf,fo->io", dense(3, 3)), ("ij,jf,fo->io", dense(3, 2))):
    try:
        ns.einsum(text, A, x, W.requires_grad_(rank == 0))
    except ns.RankError as error:
        given[f"{W.shape[1]}"] = "differentiates" in str(error)
    else:
        given[f"{W.shape[1]}"] = "no error"
v = torch.ones(4)
for operands in ((dense(5, 3)[:, :2], v), (dense(2, 5), v)):
    try:
        ns.einsum("ij,jf,of,f->io", A, dense(len(x), 4), *operands)
    except ns.SizeError as error:
        given["operands"] = given.get("operands", 0) + ("'ij,jf,of,f->io': index f has size" in str(error))
try:
    ns.einsum("ij,jf,fo->io", A, x, dense(3 + rank, 2))
except (ns.SizeError, ns.RankError) as error:
    given["one rank"] = "index f has size 3 in one operand, and 4 in another one" in str(error)
values = A.values.to(torch.complex128)
y = x.to(torch.complex128).requires_grad_()
(sources, _), _ = A.with_values(values).with_halo(y)
(gradient,) = torch.autograd.grad((sources.conj() * torch.ones(3)).sum().real, y)
given["conjugated"] = bool(gradient.real.min() >= 1)
"""


def test_ranks_with_different_requests_raise(tmp_path: Path) -> None:
    """The factor requires grad on one rank; sizes clash, after a contraction or before; the gradient is a conjugate view."""
    expected = {"3": "no error", "2": True, "operands": 2, "one rank": True, "conjugated": True}
    assert together(PRELUDE + DIFFERENT, tmp_path, **on_mesh((2,))) == [expected, expected]


FREED = """
import gc
from numscorch.sharding.exchange import Transfer

gc.disable()
A = shard(ns.from_torch(matrix(30, 30, 0.3, 0), ns.CSR), mesh)
x = A.rows_of(dense(30, 4)).clone().requires_grad_()
for _ in range(3):
    (A @ x).sum().backward()
given["kept"] = [type(one).__name__ for one in gc.get_objects() if type(one) is Transfer]
"""


def test_received_rows_are_freed_with_the_graph(tmp_path: Path) -> None:
    """A cycle of references would keep the rows of every step until Python looks for cycles."""
    assert together(PRELUDE + FREED, tmp_path, **on_mesh((2,))) == [{"kept": []}] * 2


TYPES = """
floats, integers = "float16 bfloat16 float32 float64 complex64", "int8 int16 int32 int64 uint8 bool"
for dtype in (getattr(torch, name) for name in f"{floats} {integers}".split()):
    whole = ns.from_torch((matrix(20, 20, 0.3, 0) > 0).to(dtype), ns.CSR)
    A = shard(whole, mesh)
    for x in (torch.arange(20).remainder(2).to(dtype), torch.arange(60).view(20, 3).remainder(2).to(dtype), torch.ones(20, 0, dtype=dtype)):
        assert torch.equal(A.gathered(A @ A.rows_of(x)), whole @ x), (dtype, x.shape)
given["done"] = True
"""


def test_every_data_type_is_sent(tmp_path: Path) -> None:
    """Gloo does not send all of them."""
    assert together(PRELUDE + TYPES, tmp_path, **on_mesh((2,))) == [{"done": True}] * 2
