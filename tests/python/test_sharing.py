# SPDX-License-Identifier: Apache-2.0
"""Tensors of the device, converted models and attached ones in other processes: they cross, or somebody hears why not, soon."""

import os
import subprocess
import sys

import pytest
import torch
import torch.multiprocessing as mp
from conftest import batch, net
from torch.utils.data import DataLoader, Dataset

SECONDS = 60


class Made(Dataset):
    """Items of hpu that the worker makes: after the parent has used the device, with products, autograd and a model."""

    def __init__(self, kind, model=None):
        self.kind, self.model = kind, model

    def __len__(self):
        return 4

    def __getitem__(self, index):
        x = torch.full((3,), float(index), device="hpu")
        if self.kind == "tensors":
            return {"x": x, "y": (x @ x)[None], "z": x.half()}
        if self.kind == "model":
            with torch.no_grad():
                return self.model(batch())
        if self.kind == "training":
            weight = torch.full((3,), 2.0, device="hpu", requires_grad=True)
            (weight * x).sum().backward()
            return weight.grad
        if self.kind == "part":
            return self.model[0].weight.detach()[index]
        return x.clone().requires_grad_() * 2  # "graph"


def items(kind, model=None, **options):
    torch.ones(300, 300, device="hpu") @ torch.ones(300, 300, device="hpu")  # the parent's threads are there
    return list(DataLoader(Made(kind, model), num_workers=1, timeout=SECONDS, **{"batch_size": 2, **options}))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_make_tensors(method):
    first, second = items("tensors", multiprocessing_context=method)
    assert all(t.device.type == "hpu" for t in first.values()) and first["z"].dtype == torch.float16
    assert second["x"].tolist() == [[2.0] * 3, [3.0] * 3] and second["y"].tolist() == [[12.0], [27.0]]


def test_workers_run_models(converted):
    model, expected = converted
    assert all(torch.equal(out[0], expected) for out in items("model", model, batch_size=1))


def test_backward_after_fork_is_refused():
    """By torch, where the parent's backward has started threads: the parent hears it."""
    torch.ones(3, device="hpu", requires_grad=True).sum().backward()
    with pytest.raises(RuntimeError, match="Autograd-and-Fork"):
        items("training")


def test_pinned_batches():
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    assert [b.to("hpu", non_blocking=True).tolist() for b, in DataLoader(data, 2, pin_memory=True, num_workers=1, timeout=SECONDS)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("kind, said", [("part", "weight of '0'.*a part of it"), ("graph", "send tensor.detach")])
def test_what_workers_can_not_send_is_heard(converted, kind, said):
    with pytest.raises(RuntimeError, match=said):
        items(kind, converted[0], batch_size=None)


def test_queues(converted):
    """Both ways between this process and a forked one: the model and its state_dict compute the same there."""
    model, expected = converted
    context = mp.get_context("fork")
    there, back = context.Queue(), context.Queue()

    def child():
        for _ in range(3):
            got = there.get(timeout=SECONDS)
            if isinstance(got, dict):
                model[2].weight.data = got["2.weight"]
                got = model
            with torch.set_grad_enabled(isinstance(got, torch.nn.Parameter)):
                back.put(got(batch()) if isinstance(got, torch.nn.Module) else got.requires_grad_() * 2)
        there.get(timeout=SECONDS)  # torch's memory of what is sent goes with its sender

    process = context.Process(target=child)
    process.start()
    there.put(model)
    there.put(dict(model.state_dict()))
    there.put(torch.nn.Parameter(torch.ones(3, device="hpu")))
    out = [back.get(timeout=SECONDS) for _ in range(2)]
    assert all(torch.equal(t, expected) for t in out)
    with pytest.raises(RuntimeError, match="detach"):
        back.get(timeout=SECONDS)
    there.put(None)
    process.join(SECONDS)
    assert process.exitcode == 0


def run_in_spawned(model, into):
    with torch.no_grad():
        into.put(model(batch()).cpu().numpy().tolist())


def test_spawn(converted):
    """The model goes to a new process, which imports this package by itself."""
    model, expected = converted
    context = mp.get_context("spawn")
    into = context.Queue()
    process = context.Process(target=run_in_spawned, args=(model, into))
    process.start()
    assert torch.equal(torch.tensor(into.get(timeout=SECONDS)), expected.cpu())
    process.join(SECONDS)
    assert process.exitcode == 0


def attached():
    model = net()
    torch.ops.fp8.attach_training([model[0].weight, model[2].weight], ["first", "second"], ["Linear"] * 2, "nvidia")
    return model


def test_attached_models_do_not_cross(tmp_path):
    model = attached()
    with pytest.raises(RuntimeError, match="'first': learns in fp8"):
        mp.get_context("spawn").Process(target=run_in_spawned, args=(model, None)).start()
    with pytest.raises(RuntimeError, match="'first': learns in fp8"):
        torch.save(model, tmp_path / "model.pt")
    into = mp.get_context("fork").Queue()
    into.put(model[2].weight)
    with pytest.raises(RuntimeError, match="'second': learns in fp8"):
        into.get(timeout=SECONDS)
    into.put(dict(model.state_dict()))  # values are right anywhere
    assert torch.equal(into.get(timeout=SECONDS)["0.weight"], model[0].weight)


def test_children_go_on(tmp_path):
    """os.fork with the device in use: the child has its own copy, of a calibration, too."""
    script = """
import os, torch, fp8, sys
sys.path.insert(0, sys.argv[1])
from conftest import net, batch
model = net()
fp8.quant.prepare(model, {"scale_method": "maxabs_hw", "dump_stats_path": sys.argv[2] + "/inc"})
model(batch())
if os.fork() == 0:
    model(batch() * 8)
    y = torch.ones(4, device="hpu", requires_grad=True)
    (y * y).sum().backward()
    os._exit(0 if y.grad.tolist() == [2.0] * 4 and torch.hpu.is_available() else 3)
status = os.waitpid(-1, 0)[1]
assert status == 0, status
fp8.quant.convert(model)
assert model[0].weight.scheme["input_scale_inv"] <= batch().abs().max().item() / 16  # the child's eight times are not in it
"""
    done = subprocess.run([sys.executable, "-c", script, os.path.dirname(__file__), str(tmp_path)], capture_output=True, text=True,
                          timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
