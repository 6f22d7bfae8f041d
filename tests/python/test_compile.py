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
