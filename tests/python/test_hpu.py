# SPDX-License-Identifier: Apache-2.0
"""torch.hpu: what torch and its users ask of a device's module."""

import subprocess
import sys

import pytest
import torch

import fp8  # noqa: F401

hpu = torch.hpu

_CHILD = """
import torch
hpu, found = torch.hpu, []
assert hpu.device_count() == torch.accelerator.device_count() == 3 and hpu.get_device_name(2) == "GAUDI2"
hpu.set_device("hpu:1")
assert hpu.current_device() == torch.accelerator.current_device_index() == torch.ones(1, device="hpu").device.index == 1
with hpu.device(2):
    made = torch.ones(1 << 20, device="hpu")
    assert made.device == torch.device("hpu", 2) and hpu.current_stream().device.index == 2
assert hpu.current_device() == 1 and [hpu.memory_allocated(i) >> 20 for i in range(3)] == [0, 0, 4]
with hpu.device_of(made), hpu.device(None), hpu.device(-1):
    assert hpu.current_device() == 2
with hpu.stream(hpu.Stream(0)):
    assert hpu.current_device() == 0
assert hpu.current_device() == 1
with torch.random.fork_rng(devices=range(3), device_type="hpu"):
    torch.rand(3, device="hpu:2")
assert len(hpu.get_rng_state_all()) == 3
"""


def child(code, **environment):
    import os
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_several_devices():
    child(_CHILD, FP8_HPU_DEVICES="3", FP8_HPU_DEVICE="gaudi2")


def test_wrong_variables_are_said():
    said = child("""
import torch
print(torch.hpu.is_available(), torch.hpu.device_count(), torch.hpu.why_unavailable())
for use in (lambda: torch.ones(1, device="hpu"), torch.hpu.memory_allocated, torch.hpu.synchronize, torch.hpu.get_device_name):
    try: use()
    except RuntimeError as error: print(error)
""", FP8_HPU_DEVICES="x").splitlines()
    assert said[0].startswith("False 0 FP8_HPU_DEVICES: found 'x'") and len(said) == 5 and all("found 'x', allowed: an integer" in line for line in said)


def test_generations():
    """As the runtime says them, in one process for all: it asks the environment once."""
    said = child("""
import os, torch
def name(kind):
    if os.fork(): return os.wait()
    os.environ["FP8_HPU_DEVICE"] = kind
    try: print(torch.hpu.get_device_name(), torch.float16 in torch.hpu.get_amp_supported_dtype(), flush=True)
    except RuntimeError as error: print(error, flush=True)
    os._exit(0)
for kind in ("gaudi", "gaudi2", "gaudi3", "gaudi7"): name(kind)
""").splitlines()
    assert said[:3] == ["GAUDI False", "GAUDI2 True", "GAUDI3 True"] and "found 'gaudi7', allowed: gaudi, gaudi2, gaudi3" in said[3]


@pytest.mark.parametrize("spelling", [None, 0, -1, "hpu", "hpu:0", torch.device("hpu"), torch.device("hpu", 0)])
def test_every_spelling_of_the_device(spelling):
    held = torch.ones(1 << 18, device="hpu")
    before = hpu.memory_allocated(spelling)
    more = torch.ones(1 << 18, device="hpu")
    assert hpu.memory_allocated(spelling) - before == more.nbytes == held.nbytes
    free, total = hpu.mem_get_info(spelling)
    assert total == hpu.memory_reserved(spelling) == hpu.get_device_properties(spelling).total_memory == free + hpu.memory_allocated(spelling)
    assert hpu.memory_stats(spelling)["Limit"] == total and "Limit" in hpu.memory_summary(spelling)
    assert hpu.memory_snapshot(spelling)["in_use"] == hpu.memory_allocated(spelling) > 0
    hpu.reset_peak_memory_stats(spelling)
    assert hpu.max_memory_allocated(spelling) == hpu.memory_allocated(spelling)
    hpu.synchronize(spelling)
    assert hpu.get_rng_state("hpu" if spelling is None else spelling).dtype == torch.uint8


@pytest.mark.parametrize("wrong", [1, -2, 1.5, True, "cpu", "hpu:1", torch.device("cpu")])
def test_other_devices_are_refused(wrong):
    for asked in (hpu.memory_allocated, hpu.set_device, hpu.synchronize, hpu.Stream, hpu.device, hpu.get_device_name, hpu.get_rng_state):
        with pytest.raises(AssertionError, match="Invalid device"):
            asked(wrong)


def test_streams_and_events():
    stream, event = hpu.Stream(priority=-1), hpu.Event()
    assert isinstance(stream, hpu.Stream) and isinstance(stream, torch.Stream) and isinstance(hpu.current_stream(), hpu.Stream)
    assert isinstance(event, hpu.Event) and not isinstance(stream, hpu.Event) and hpu.default_stream() == hpu.current_stream()
    with hpu.stream(stream) as entered:
        assert entered is stream
    with hpu.stream(None):
        event.record(stream)
    stream.wait_event(event)
    stream.wait_stream(hpu.current_stream())
    event.wait(stream)
    assert event.query() and stream.query() and isinstance(stream.record_event(), hpu.Event)
    import time
    first, second = hpu.Event(enable_timing=True), hpu.Event(enable_timing=True)
    first.record()
    time.sleep(0.01)
    second.record()
    assert first.elapsed_time(second) >= 10
    with pytest.raises(ValueError, match="interprocess"):
        hpu.Event(interprocess=True)


@pytest.mark.parametrize("name", ["graph_pool_handle", "CachedParams", "enable_dynamic_shape", "enable_inference_mode"])
def test_names_that_it_does_not_have(name):
    with pytest.raises(AttributeError, match=f"torch.hpu.{name}: .* (graphs|lazy mode)"):
        getattr(hpu, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hpu.nonsense


def test_random_numbers():
    hpu.manual_seed(7)
    state, first = hpu.get_rng_state_all(), torch.rand(4, device="hpu")
    assert torch.equal(first.cpu(), torch.rand(4, generator=torch.Generator().manual_seed(7)))
    with torch.random.fork_rng(devices=[0], device_type="hpu"):
        torch.rand(9, device="hpu")
    second = torch.rand(4, device="hpu")
    hpu.set_rng_state_all(state)
    assert torch.equal(torch.rand(4, device="hpu"), first) and torch.equal(torch.rand(4, device="hpu"), second) and hpu.initial_seed() == 7
    from torch.utils.checkpoint import checkpoint
    x = torch.ones(64, device="hpu", requires_grad=True)
    out = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5), x, use_reentrant=False)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())  # of the same mask


def test_what_torch_asks():
    import torch.hpu.memory
    import torch.hpu.random
    assert torch.hpu.memory.memory_stats is hpu.memory_stats and torch.get_device_module("hpu") is hpu
    hpu.init()
    assert hpu.is_initialized() and hpu.is_bf16_supported() and not hpu._is_in_bad_fork()
    assert torch.float8_e4m3fn in torch.accelerator.get_device_capability()["supported_dtypes"]
    with torch.autocast("hpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2, device="hpu") @ torch.ones(2, 2, device="hpu")).dtype == torch.bfloat16
    assert torch.amp.GradScaler("hpu", enabled=True).scale(torch.ones(1, device="hpu")).item() == 65536
    with torch.device("hpu"):
        assert torch.ones(1).device.type == "hpu"
    with pytest.warns(FutureWarning):
        assert hpu.memory_cached() == hpu.memory_reserved()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device="hpu")


def test_files(tmp_path):
    for device in ("cpu", "hpu"):
        torch.save({"a": torch.arange(3.0, device=device)}, tmp_path / device)
        for onto in ("cpu", "hpu", "hpu:0", torch.device("hpu"), "meta"):
            found = torch.load(tmp_path / device, map_location=onto)["a"]
            assert found.device.type == torch.device(onto).type
            assert found.is_meta or found.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(RuntimeError, match="device_count"):
        torch.load(tmp_path / "cpu", map_location="hpu:4")


_RANK = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank = int(sys.argv[1])
dist.init_process_group("hccl", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
assert dist.get_backend() == "hccl"
for device in ("cpu", "hpu"):
    x = torch.full((3,), 1.0 + rank, device=device)
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 3
everyone = [None, None]
dist.all_gather_object(everyone, rank)
assert everyone == [0, 1]

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).to("hpu")

def trained(model, part):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    for _ in range(3):
        x = torch.randn(4, 8)[part]
        optimizer.zero_grad()
        model(x.to("hpu")).pow(2).mean().backward()
        optimizer.step()
    return [p.full_tensor().detach().cpu() if hasattr(p, "full_tensor") else p.detach().cpu() for p in model.parameters()]

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, rand
mesh = init_device_mesh("hpu", (2,))
whole, mine = trained(net(), slice(None)), slice(2 * rank, 2 * rank + 2)
def sharded():
    model = net()
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)
for made in (lambda: DistributedDataParallel(net()), lambda: DistributedDataParallel(net(), device_ids=[0]), sharded):
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(trained(made(), mine), whole))
t = distribute_tensor(torch.arange(8.0, device="hpu"), mesh, [Shard(0)])
assert t.to_local().tolist() == [4.0 * rank + i for i in range(4)] and t.redistribute(mesh, [Replicate()]).to_local().tolist() == list(range(8))
dist.barrier()
dist.destroy_process_group()
"""


def test_hccl(tmp_path):
    """Collectives, DistributedDataParallel, FSDP2 and DTensor on two processes, as one process with the whole batch."""
    import os
    ranks = [subprocess.Popen([sys.executable, "-c", _RANK, str(rank), str(tmp_path / "store")], env={**os.environ, "OMP_NUM_THREADS": "1"},
                              stderr=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], errors
