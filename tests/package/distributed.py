# SPDX-License-Identifier: Apache-2.0
"""torch.distributed on hpu from Python: the backend "hccl" of three lines, every collective, DistributedDataParallel.

distributed.py libfp8_transformer_engine.so FOLDER VERSION [RUNS]: two processes of itself, RUNS times (2)."""
import os, subprocess, sys, time
import device_module
library, folder, version = sys.argv[1:4]
if "RANK" not in os.environ:
    device_module.load(library, version)
    for run in range(int(sys.argv[4]) if len(sys.argv) > 4 else 2):
        store = f"{folder}/store_{run}"
        ranks = [subprocess.Popen([sys.executable] + sys.argv[:4], env=dict(os.environ, RANK=str(rank), WORLD_SIZE="2", STORE=store, OMP_NUM_THREADS="1"))
                 for rank in range(2)]
        assert [r.wait(timeout=300) for r in ranks] == [0, 0], f"run {run}: {[r.returncode for r in ranks]}"
    sys.exit()

torch = device_module.load(library, version)
import datetime, json
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

dist.Backend.register_backend(
    "hccl", lambda store, rank, size, timeout: dist.ProcessGroupGloo(store, rank, size, timeout=timeout), devices=["cpu", "hpu"])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("hccl", init_method="file://" + os.environ["STORE"], rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))

# Each collective as it is on the CPU.
def made(device): return (torch.arange(6.0) + 10 * rank).to(device)
def summed(t): dist.all_reduce(t); return [t]
def gathered(t): out = [torch.zeros_like(t) for _ in range(size)]; dist.all_gather(out, t); return out
def sent(t): dist.broadcast(t, src=1); return [t]
def scattered(t): dist.scatter(t, [t + i for i in range(size)] if rank == 0 else None, src=0); return [t]
def in_one(t): out = torch.zeros(6 * size, device=t.device); dist.all_gather_into_tensor(out, t); return [out]
def exchanged(t): out = torch.zeros_like(t); dist.all_to_all_single(out, t); return [out]
def later(t): work = dist.all_reduce(t, async_op=True); work.wait(); return [t]
for call in (summed, gathered, sent, scattered, in_one, exchanged, later):
    cpu, hpu = call(made("cpu")), call(made("hpu"))
    assert all(h.device.type == "hpu" and torch.equal(h.cpu(), c) for c, h in zip(cpu, hpu)), call.__name__
dist.barrier()
codes = torch.full((4,), 2.0 + rank, device="hpu").to(torch.float8_e4m3fn)
dist.broadcast(codes, src=1)
assert codes.float().cpu().tolist() == [3.0] * 4
for wrong in (lambda: dist.all_reduce(codes), lambda: dist.all_reduce(made("hpu"), op=dist.ReduceOp.PRODUCT)):
    try: wrong()
    except (RuntimeError, TypeError) as told: assert "allowed" in str(told) or "Supported ops in HCCL" in str(told), told
    else: raise AssertionError("was not refused")

# Data parallel training: the same as one process with the whole batch, on every form of buckets.
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).to("hpu")
def train(model, part, steps=8):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    for _ in range(steps):
        x, y = torch.randn(8, 16), torch.randn(8, 4)
        optimizer.zero_grad()
        (model(x[part].to("hpu")) - y[part].to("hpu")).pow(2).mean().backward()
        optimizer.step()
    return [p.detach().cpu() for p in model.parameters()]
whole = train(net(), slice(None))
share = slice(4 * rank, 4 * rank + 4)
for form in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.001}, {"static_graph": True}, {"find_unused_parameters": True}):
    weights = train(DDP(net(), **form), share)
    everywhere = [torch.zeros_like(weights[0]) for _ in range(size)]
    dist.all_gather(everywhere, weights[0])
    assert all(torch.equal(w, weights[0]) for w in everywhere), form
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(weights, whole)), form
hooked = DDP(net())
hooked.register_comm_hook(None, default_hooks.fp16_compress_hook)  # torch refuses the bf16 one by name without CUDA
assert all(torch.allclose(a, b, atol=2e-2) for a, b in zip(train(hooked, share), whole))
# fp8 under DistributedDataParallel: the ranks of a group share their amaxes, forward and backward, so they have one scale.
def scales(recipe, group):
    model = net()
    linears = [model[0].weight, model[2].weight], ["0", "2"], ["Linear", "Linear"]
    fp8.attach_training(*linears, recipe)
    parallel, optimizer = DDP(model), torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    for _ in range(4):
        x = torch.randn(8, 16) * (1 + 6 * rank)
        region = fp8.enter_autocast(recipe, group=group)
        loss = parallel(x.to("hpu")).pow(2).mean()
        fp8.exit_autocast(region)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    mine = [json.loads(fp8.training_state(w)) for w in linears[0]]
    mine = [[s[way]["scale"] + [max(row) for row in zip(*s[way]["amax_history"])] for way in ("forward", "backward")] for s in mine]
    others = [None] * size
    dist.all_gather_object(others, mine)
    return others
fp8, pair = torch.ops.fp8, dist.new_group(list(range(size)))
for recipe in ("habana-hybrid", "nvidia"):
    for group in (dist.group.WORLD.group_name, pair.group_name):
        first, second = scales(recipe, group)
        assert first == second, (recipe, first, second)
    first, second = scales(recipe, "")
    assert first != second, recipe
try: fp8.enter_autocast("nvidia", group="no such group")
except RuntimeError as told: assert "found 'no such group', allowed: the group_name of a group of torch.distributed" in str(told), told
else: raise AssertionError("was not refused")
# Engines that put other parameters in the place of those that were converted: their modules are named, never silent.
def sharded(parallel, keep=False):
    model = net()
    fp8.attach_training([model[0].weight, model[2].weight], ["up", "down"], ["Linear", "Linear"], "nvidia")
    kept = list(model.parameters()) if keep else []  # noqa: F841
    parallel(model)
    region = fp8.enter_autocast("nvidia")
    model(torch.randn(8, 16).to("hpu"))
    fp8.exit_autocast(region)
def sharding():
    import contextlib
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    class Event(torch.Event):
        def __new__(cls, *args, **options): return super().__new__(cls, device="hpu:0")
    stream, hpu = torch.Stream(device="hpu:0"), torch.hpu  # what FSDP2 asks of a device: one stream, synchronous
    hpu.Stream, hpu.Event, hpu.stream = (lambda **_: torch.Stream(device="hpu:0")), Event, (lambda _: contextlib.nullcontext())
    hpu.current_stream = hpu.default_stream = lambda *_: stream
    mesh = init_device_mesh("hpu", (size,))
    for engine in (lambda m: fully_shard(m, mesh=mesh), lambda m: parallelize_module(m, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})):
        try: sharded(engine)
        except RuntimeError as told: assert "'up', 'down'" in str(told) and "no product ran in fp8" in str(told), told
        else: raise AssertionError("fp8 was lost silently")
        shown = os.dup(2)  # torch prints what operators warn of
        with open(f"{folder}/warned_{rank}", "w+") as told:
            os.dup2(told.fileno(), 2)
            try: sharded(engine, keep=True)  # the optimizer was made before, say
            finally: os.dup2(shown, 2)
            told.seek(0)
            assert "'up', 'down': converted for fp8 training, and this region ran no product in fp8" in told.read()
if os.environ["STORE"].endswith("_0"): sharding()
dist.all_reduce(torch.zeros(1 << 16, device="hpu"), async_op=True)  # nobody waits for it
# Its thread in torch asks for the interpreter's lock to give the tensor back, and before Python 3.14 that ends a process
# whose interpreter is ending: so it has a second before.
time.sleep(1)
dist.destroy_process_group()
