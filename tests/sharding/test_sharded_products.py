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
