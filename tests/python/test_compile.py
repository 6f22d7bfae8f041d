# SPDX-License-Identifier: Apache-2.0
"""torch.compile and fp8.evaluate()."""

import math

import pytest
import torch
from conftest import batch, net

import fp8


def test_the_backend_gives_the_same_bits(converted):
    for model in (net(), converted[0]):
        with torch.no_grad():
            assert torch.equal(torch.compile(model, backend="fp8")(batch()), model(batch()))


def test_inductor_is_refused():
    with pytest.raises(Exception, match="found backend 'inductor' for tensors on hpu, allowed: 'fp8'"):
        torch.compile(net())(batch())
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "fp8"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_attention_has_the_same_bits(backend, dynamic):
    torch._dynamo.reset()

    def attend(q, k, v, mask=None, causal=False):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
    compiled = torch.compile(attend, backend=backend, dynamic=dynamic)
    for length, dtype in ((8, torch.float32), (9, torch.float32), (40, torch.bfloat16)):
        parts = [torch.randn(2, 4, length, 16, generator=torch.Generator().manual_seed(i)).to("hpu", dtype) for i in range(3)]
        for mask, causal in ((None, False), (None, True), (torch.ones(length, length, dtype=torch.bool).tril().to("hpu"), False)):
            with torch.no_grad():
                assert torch.equal(compiled(*parts, mask, causal), attend(*parts, mask, causal))
            found, expected = ([t.clone().requires_grad_() for t in parts] for _ in range(2))
            compiled(*found, mask, causal).square().sum().backward()
            attend(*expected, mask, causal).square().sum().backward()
            assert all(torch.equal(a.grad, b.grad) for a, b in zip(found, expected))


def test_evaluate_is_cross_entropy():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50)).to("hpu")
    other = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50)).to("hpu")
    ids = torch.randint(0, 50, (70,))
    found = fp8.evaluate(model, ids, reference=other, seq_len=32)
    logits, reference = (m(ids.to("hpu")).cpu().double() for m in (model, other))
    judged = torch.tensor([i for i in range(70) if i % 32 < 31 and i < 69])
    assert math.isclose(found.loss, torch.nn.functional.cross_entropy(logits[judged], ids[judged + 1]).item(), rel_tol=1e-5)
    kl = torch.nn.functional.kl_div(logits.log_softmax(-1), reference.log_softmax(-1), log_target=True, reduction="none").sum(-1).mean().item()
    assert math.isclose(found.kl, kl, rel_tol=1e-4) and found.tokens == 67 and found.chunks == 3
    assert math.isclose(found.perplexity, math.exp(found.loss))
    with pytest.raises(ValueError, match="found 1 tokens"):
        fp8.evaluate(model, ids[:1])
