"""The chunked cross-entropy against autograd through the plain one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tinyllm import loss as loss_module
from tinyllm.loss import cross_entropy_sum, token_cross_entropy


def inputs(
    n: int, d: int, v: int, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    h = torch.randn(n, d, generator=g, dtype=dtype).requires_grad_()
    w = torch.randn(v, d, generator=g, dtype=dtype).requires_grad_()
    return h, w, torch.randint(v, (n,), generator=g)


@pytest.mark.parametrize("cap", [0.0, 15.0, 2.0])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_value_and_gradients_equal_the_plain_ones(cap: float, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    h, w, y = inputs(50, 8, 33, torch.float32)
    monkeypatch.setattr(loss_module, "CHUNK_ELEMENTS", rows * 33)
    monkeypatch.setattr(loss_module, "MOST_CHUNKS", 50)
    got = cross_entropy_sum(h, w, y, cap)
    (got / 50).backward()
    h2, w2 = h.detach().double().requires_grad_(), w.detach().double().requires_grad_()
    z = h2 @ w2.T
    want = F.cross_entropy(cap * torch.tanh(z / cap) if cap else z, y, reduction="sum")
    (want / 50).backward()
    assert got.item() == pytest.approx(want.item(), rel=1e-6)
    torch.testing.assert_close(h.grad, h2.grad.float(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(w.grad, w2.grad.float(), rtol=1e-4, atol=1e-6)
    each = token_cross_entropy(h.detach(), w.detach(), y, cap)
    assert each.shape == (50,)
    assert each.sum().item() == pytest.approx(want.item(), rel=1e-6)


def test_compiled_as_on_a_gpu_it_is_one_graph_with_the_same_value_and_gradients() -> None:
    found = []
    for compute in (cross_entropy_sum, torch.compile(cross_entropy_sum, dynamic=False, fullgraph=True)):
        h, w, y = inputs(50, 8, 33, torch.float32)
        value = compute(h, w, y, 15.0)
        value.backward()
        found.append((value.detach(), h.grad, w.grad))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_under_autocast_the_matmuls_are_bf16_and_the_softmax_is_not() -> None:
    h, w, y = inputs(64, 16, 100, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got = cross_entropy_sum(h, w, y, 15.0)
        got.backward()
    assert got.dtype == torch.float32
    assert w.grad.dtype == h.grad.dtype == torch.float32
    exact = token_cross_entropy(h.detach(), w.detach(), y, 15.0).sum().item()
    assert got.item() != exact
    assert got.item() == pytest.approx(exact, rel=1e-2)


def test_a_second_backward_over_one_graph_is_refused() -> None:
    loss = cross_entropy_sum(*inputs(8, 4, 10), 15.0)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_chunks_are_few_and_bounded_in_size() -> None:
    def chunks(n: int, v: int) -> int:
        rows = loss_module._chunk_rows(n, v)
        assert 1 <= rows <= n
        return -(-n // rows)

    assert chunks(2048, 32768) == 4
    assert chunks(100_000, 32768) == 16
    assert chunks(3, 2**25) == 3
