# SPDX-License-Identifier: Apache-2.0
"""torch.hpu's graphs: training and inference with them give the bits of without; what can't be captured runs as it is."""

import copy

import pytest
import torch
import torch.utils.checkpoint

import fp8


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 8)).to("hpu")


def train(model, steps=6):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8).to("hpu")).square().mean().backward()
        optimizer.step()
    return [*model.state_dict().values(), torch.rand(2)]


def counts(model):
    return tuple(model.forward.cache.counts())


@pytest.mark.parametrize("inplace", [True, False])
def test_trains_to_the_same_bits(inplace):
    eager, model = net(), net()
    graphed = torch.hpu.ModuleCacher(max_graphs=4)(model, inplace=inplace)
    assert (graphed is model) == inplace
    assert all(torch.equal(a, b) for a, b in zip(train(eager), train(graphed)))
    assert counts(graphed) == (1, 5, 0)


def llama():
    import transformers
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64)
    return transformers.LlamaForCausalLM(config).eval().to("hpu")


def test_model_of_transformers():
    model = llama()
    ids = torch.randint(64, (2, 8), device="hpu")
    with torch.no_grad():
        expected = [model(ids + i, use_cache=False).logits for i in range(3)]
        torch.hpu.wrap_in_hpu_graph(model)
        found = [model(ids + i, use_cache=False) for i in range(3)]
        assert torch.equal(model(ids, use_cache=False, bypass_hpu_graphs=True).logits, expected[0])
    assert all(torch.equal(a, b.logits) for a, b in zip(expected, found))
    assert counts(model) == (1, 2, 0) and not model.forward.cache.refusals()
    model.clear_cache()
    with torch.no_grad():
        assert torch.equal(model(ids[:1], use_cache=False).logits, expected[0][:1])
        cached = model(ids)  # a cache is no tensor
    assert cached.past_key_values is not None and torch.equal(cached.logits, expected[0])


def test_hooks_are_called():
    model, calls = net().eval(), []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    torch.hpu.wrap_in_hpu_graph(model)
    for _ in range(3):
        model(torch.ones(4, 8, device="hpu"))
    assert len(calls) == 3 and counts(model) == (0, 0, 0)


class Recomputing(torch.nn.Module):
    def __init__(self, reentrant, learns):
        super().__init__()
        self.inner, self.head, self.reentrant, self.learns = net(), torch.nn.Linear(8, 8).to("hpu"), reentrant, learns

    def forward(self, x):
        if self.learns:
            x = x.requires_grad_()  # as transformers does for reentrant checkpoints
        return self.head(torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("learns", ["", "inside", "outside"])
def test_activation_checkpointing_runs_as_it_is(reentrant, learns):
    if reentrant and not learns:
        return  # torch itself warns that there are no gradients
    found = []
    for graphs in (False, True):
        torch.manual_seed(2)
        model = Recomputing(reentrant, learns == "inside")
        if graphs:
            torch.hpu.ModuleCacher()(model)
        for step in range(3):
            x = torch.full((4, 8), 0.5 + step, device="hpu", requires_grad=learns == "outside")
            model(x).square().mean().backward()
            found.append([x.grad] * (learns == "outside") + [p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for e, g in zip(found[:3], found[3:]) for a, b in zip(e, g))
    assert len(found[0]) == len(list(model.parameters())) + (learns == "outside")
    assert counts(model) == (1, 0, 2) and len(model.forward.cache.refusals()) == 1


def test_fp8_follows_the_weights():
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16)).to("hpu")
    plain = copy.deepcopy(model)
    x = torch.randn(8, 32).to("hpu")
    with torch.no_grad():
        torch.hpu.wrap_in_hpu_graph(model)
        high = model(x), model(x)
        fp8.quant.convert(model, {"mode": "QUANTIZE", "scale_method": "unit_scale"})
        fp8.quant.convert(plain, {"mode": "QUANTIZE", "scale_method": "unit_scale"})
        low = model(x), model(x), plain(x)
    assert torch.equal(*high) and torch.equal(low[0], low[2]) and torch.equal(low[1], low[2]) and not torch.equal(high[0], low[0])
    assert counts(model) == (2, 2, 0)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_attention_in_fp8(fused, autocast, tmp_path):
    model = fp8.attention.use(llama() if autocast else llama().bfloat16(), fused=fused)
    ids = torch.randint(64, (2, 8), device="hpu")
    with torch.no_grad(), torch.autocast("hpu", torch.bfloat16, enabled=autocast):
        fp8.quant.prepare(model, {"dump_stats_path": str(tmp_path / "inc")})
        model(ids, use_cache=False)
        fp8.quant.convert(model)
        expected = [model(ids + i, use_cache=False).logits for i in range(3)]
        torch.hpu.wrap_in_hpu_graph(model)
        found = [model(ids + i, use_cache=False).logits for i in range(3)]
    assert all(map(torch.equal, expected, found)) and not model.forward.cache.refusals()
    assert counts(model) == (1, 2, 0)


def test_an_operation_that_gets_a_handler(tmp_path):
    model, x = fp8.nn.Softmax(), torch.randn(4, 8).to("hpu")
    with torch.no_grad():
        graphed = torch.hpu.wrap_in_hpu_graph(model)
        high = graphed(x), graphed(x)
        fp8.quant.prepare(model, {"dump_stats_path": str(tmp_path / "inc")})
        graphed(x)
        fp8.quant.finalize_calibration(model)
    assert torch.equal(*high) and counts(model)[0] == 2  # the measured call is another graph


def test_a_step_of_a_fused_optimizer_is_not_captured():
    p = torch.nn.Parameter(torch.ones(4, device="hpu"))
    p.grad = torch.ones(4, device="hpu")
    optimizer = fp8.optim.FusedSGD([p], 0.1, momentum=0.9)
    graph = torch.hpu.HPUGraph()
    with pytest.raises(RuntimeError, match="FusedSGD: step\\(\\) within a capture"):
        with torch.hpu.graph(graph):
            optimizer.step()


@pytest.mark.parametrize("bf16", [False, True])
def test_training_in_fp8(bf16):
    """With an evaluation between its steps, which records no amaxes."""

    def run(graphed):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)).to("hpu")
        fp8.te.convert_modules(model)
        if graphed:
            torch.hpu.ModuleCacher()(model)
        optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
        for step in range(6):
            x = torch.randn(8, 64, generator=torch.Generator().manual_seed(step)).to("hpu") * (step + 1)
            with torch.autocast("hpu", torch.bfloat16, enabled=bf16), fp8.te.fp8_autocast(True):
                loss = model(x).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
            if step in (1, 3):
                model.eval()
                with torch.no_grad(), torch.autocast("hpu", torch.bfloat16, enabled=bf16), fp8.te.fp8_autocast(True):
                    found.append(model(1000 * x).float().sum().item())
                model.train()
        return found, model
    (found, model), (expected, _) = run(True), run(False)
    assert found == expected and len(set(expected)) > 5
    assert counts(model) == (2, 6, 0)


def test_a_parameter_that_is_replaced_is_seen():
    model, x = net().eval(), torch.randn(4, 8).to("hpu")
    torch.hpu.wrap_in_hpu_graph(model)
    held = list(model.parameters())  # as by an optimizer
    with torch.no_grad():
        for number in (1, 2):
            for _ in range(2):
                assert torch.equal(model(x), torch.nn.Sequential.forward(model, x))
            assert counts(model) == (number, number, 0) and len(held) == 6
            model[0].weight = torch.nn.Parameter(model[0].weight * 2)


def test_graph_keeps_addresses():
    x = torch.arange(6.0).to("hpu")
    graph = torch.hpu.HPUGraph()
    with torch.hpu.graph(graph):
        assert torch.hpu.is_current_stream_capturing()
        y = x * 2
    assert not torch.hpu.is_current_stream_capturing()
    address = y.data_ptr()
    x.add_(1)
    graph.replay()
    assert torch.equal(y, x * 2) and y.data_ptr() == address
    graph.mark_user_inputs([x])
    graph.replayV2([x + 5])
    assert torch.equal(y, (x + 5) * 2)
    graph.reset()
    with pytest.raises(RuntimeError, match="found an empty graph"):
        graph.replay()


def test_what_cannot_be_captured():
    x = torch.ones(3).to("hpu")
    with pytest.raises(RuntimeError, match="aten::_local_scalar_dense: the host reads a value of the device"):
        with torch.hpu.graph(torch.hpu.HPUGraph()):
            x.sum().item()
    with pytest.raises(KeyError):
        with torch.hpu.graph(torch.hpu.HPUGraph()):
            raise KeyError
    assert not torch.hpu.is_current_stream_capturing()
    reads = torch.hpu.wrap_in_hpu_graph_func(lambda t: t + 1 if t.sum() > 0 else t - 1)
    assert torch.equal(reads(x), x + 1) and torch.equal(reads(-x), -x - 1)
    assert tuple(reads.cache.counts()) == (1, 0, 1)


def test_make_graphed_callables():
    first, second = net(), net()
    graphed = torch.hpu.make_graphed_callables((first, torch.relu), ((torch.ones(4, 8, device="hpu"),), (torch.ones(4, device="hpu"),)))
    assert graphed[0] is first
    x = torch.randn(4, 8).to("hpu").requires_grad_()
    torch.manual_seed(2)
    expected = torch.relu(second(x))
    torch.manual_seed(2)
    assert torch.equal(graphed[1](graphed[0](x)), expected)
    with pytest.raises(TypeError, match="expected a tuple of tensors"):
        torch.hpu.make_graphed_callables(first, (3,))


def test_a_product_in_fp8_is_replayed_in_its_region():
    layer = torch.nn.Linear(64, 64).to("hpu")
    fp8.te.convert_modules(layer)
    layer.eval()
    x = torch.randn(8, 64).to("hpu")
    with torch.no_grad(), torch.autocast("hpu", torch.bfloat16):
        graph = torch.hpu.HPUGraph()
        with torch.hpu.graph(graph):
            y = layer(x)
        captured = y.clone()
    graph.replay()
    assert y.dtype is torch.bfloat16 and torch.equal(captured, y)
