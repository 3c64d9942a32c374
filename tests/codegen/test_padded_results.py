"""Dense results of matrices whose last block extends beyond the edge: memory is padded, and the padding is not visible."""

from __future__ import annotations

import pytest
import torch
from random_tensors import integers

import numscorch as ns
from numscorch.runtime import plans


def rows() -> list[int | None]:
    return [plan.problem.rows for plan in plans.PROCESS.plans.values()]


@pytest.mark.parametrize("block", [(16, 1), (4, 4), (3, 2)], ids=str)
@pytest.mark.parametrize("size", [(17, 9), (1, 5), (34, 8), (50, 1)], ids=str)
def test_products(block: tuple[int, int], size: tuple[int, int], plain: pytest.MonkeyPatch) -> None:
    dense = integers(*size) * (integers(*size) > -1)
    W, k = ns.from_torch(dense, ns.BCSR(*block)), size[1]
    for batch in (1, 2, 9, 40):
        x = integers(batch, k)
        result = ns.einsum("bi,oi->bo", x, W)
        assert torch.equal(result, x @ dense.T)
        assert result.is_contiguous()
        assert torch.equal(ns.einsum("oi,ib->ob", W, x.T.contiguous()), dense @ x.T)
        assert torch.equal(ns.einsum("oi,bi->ob", W, x), dense @ x.T)
        assert torch.equal(ns.einsum("oi,bo->bi", W, integers(batch, size[0])), integers(batch, size[0]) @ dense)
        assert torch.equal(ns.einsum("cbi,oi->cbo", x.reshape(1, batch, k), W), (x @ dense.T)[None])
    assert torch.equal(ns.einsum("oi,i->o", W, integers(k)), dense @ integers(k))
    assert torch.equal(ns.einsum("oi,oi,i->o", W, W, integers(k)), (dense * dense) @ integers(k))
    assert torch.equal(ns.einsum("oi,i,o->o", W, integers(k), integers(size[0])), (dense @ integers(k)) * integers(size[0]))
    assert any(rows()) or size[0] % block[0] == 0 or size[0] == 1


def test_padding_is_not_visible(fresh_plans: pytest.MonkeyPatch) -> None:
    """In compiled kernels, strides are row-major, out= is written, and infinities in the padding stay there."""
    dense = integers(18, 12)
    W, X = ns.from_torch(dense, ns.BCSR(16, 1)), integers(12, 5)
    result = ns.einsum("oi,ib->ob", W, X)
    assert result.stride() == (5, 1)
    assert torch.equal(result, dense @ X)
    out = torch.empty(18, 5)
    assert ns.einsum("oi,ib->ob", W, X, out=out) is out
    assert torch.equal(out, dense @ X)
    assert torch.equal(
        ns.einsum("oi,ib->ob", W, torch.full((12, 5), torch.inf)).nan_to_num(), (dense @ torch.full((12, 5), torch.inf)).nan_to_num()
    )
    assert rows() == [32] * len(rows())


def test_other_requests_check_the_edge(plain: pytest.MonkeyPatch) -> None:
    dense = integers(18, 12)
    W, X = ns.from_torch(dense, ns.BCSR(16, 1)), integers(12, 5)
    assert torch.equal(ns.einsum("oi,ib->ob", W, X, reduce="max"), (dense[:, :, None] * X).amax(1))
    assert torch.equal(ns.einsum("oi,ib->bo", W, X, format="CSR").to_dense(), (dense @ X).T)
    assert torch.equal(ns.einsum("oi->i", W).to_dense(), dense.sum(0))
