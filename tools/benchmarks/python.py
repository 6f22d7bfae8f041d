# SPDX-License-Identifier: Apache-2.0
"""What the Python package costs beside torch alone and beside the operators that it calls.

    ./tools/bench python [--rounds 7] [--threads 1] [--only CASE...]

One JSON line per case, medians over rounds that go in turns. `ratio` is the first figure by the second.

    autoload     seconds of `import torch` with the package and without (TORCH_DEVICE_BACKEND_AUTOLOAD=0)
    import       seconds of `import torch, fp8` and of `import torch`, both with the package
    convert      seconds of prepare() and convert(), and of the operators alone on the same lists of weights
    memory       bytes of the host that each of the two took at its peak
    measured     seconds of a forward between prepare() and convert(), and of one that nothing watches
    attention    seconds of a forward with attention "fp8" and with "sdpa", 1,024 tokens
    one token    seconds of a forward of one token on hpu and on the CPU
    step         seconds of a step of a model after te.convert_modules(), and of its weights attached by the bare operators
    layer        seconds of a step of te.TransformerLayer, and of C++'s (fp8_bench "training te.TransformerLayer"): the least of
                 the rounds
    fit          seconds of the process, the least of the rounds, of Lightning's fit() of 100 steps in fp8; and of a bare loop of
                 them with what Lightning costs by itself: fit() less a bare loop of f32 on the CPU
    lightning    seconds of the imports of lightning and fp8.lightning, and of lightning alone
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def seconds(call, repeat=1, clock=time.perf_counter):
    start = clock()
    for _ in range(repeat):
        call()
    return (clock() - start) / repeat


def in_turns(rounds, *calls, repeat=1, clock=time.perf_counter, of=statistics.median):
    """The median of each, measured one after the other in each round."""
    for call in calls:
        call()
    found = [[seconds(call, repeat, clock) for call in calls] for _ in range(rounds)]
    return [of(column) for column in zip(*found)]


def say(case, first, second, **more):
    print(json.dumps({"case": case, "first": first, "second": second, "ratio": round(first / second, 4),
                      "difference": round(first - second, 4), **more}), flush=True)


def python(code, **environment):
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, check=True)


def starts(rounds):
    say("autoload", *in_turns(rounds, lambda: python("import torch"), lambda: python("import torch", TORCH_DEVICE_BACKEND_AUTOLOAD="0")))
    say("import", *in_turns(rounds, lambda: python("import torch, fp8; fp8.quant"), lambda: python("import torch")))


def llama(hidden, layers, **more):
    import torch
    import transformers
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=hidden, intermediate_size=hidden * 3, num_hidden_layers=layers, num_attention_heads=hidden // 64,
                                      num_key_value_heads=hidden // 64, vocab_size=512, max_position_embeddings=2048, **more)
    return transformers.LlamaForCausalLM(config).eval()


def front(model, ids, folder):
    """prepare(), one forward, convert()."""
    import fp8
    fp8.quant.prepare(model, {"dump_stats_path": folder + "/front/inc"})
    model(ids)
    fp8.quant.convert(model)


def operators(model, ids, folder):
    """The same work, by the operators that the front calls."""
    import torch
    config = {"mode": "MEASURE", "dump_stats_path": folder + "/operators/inc"}
    named = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    lists = [module.weight for _, module in named], [name for name, _ in named], ["Linear"] * len(named)
    session = torch.ops.fp8.measure_begin(*lists, [None] * len(named), "", json.dumps(config))
    model(ids)
    torch.ops.fp8.measure_end(session, True)
    torch.ops.fp8.convert(*lists, json.dumps({"quant_config": {**config, "mode": "QUANTIZE"}}))


def peak_memory():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def worker(which, what, folder):
    """One of front and operators in a process of its own: its seconds and the bytes that it adds to the peak."""
    import torch
    torch.set_grad_enabled(False)
    model = llama(1024, 8).bfloat16().to("hpu")
    ids = torch.arange(32, device="hpu")[None]
    model(ids)
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")  # the peak begins anew
    before = peak_memory()
    taken = seconds(lambda: {"front": front, "operators": operators}[which](model, ids, folder))
    print(json.dumps({"seconds": taken, "memory": peak_memory() - before}[what]))


def conversions(rounds):
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for what in ("seconds", "memory"):
                for which in ("front", "operators"):
                    run = subprocess.run([sys.executable, __file__, "--worker", which, what, folder], stdout=subprocess.PIPE, check=True)
                    found.setdefault((what, which), []).append(json.loads(run.stdout))
    median = {key: statistics.median(values) for key, values in found.items()}
    say("convert", median["seconds", "front"], median["seconds", "operators"])
    say("memory", median["memory", "front"], max(median["memory", "operators"], 1))


def forwards(rounds):
    import fp8
    import torch
    torch.set_grad_enabled(False)
    plain, watched = llama(512, 4).to("hpu"), llama(512, 4).to("hpu")
    ids = torch.arange(256, device="hpu")[None]
    with tempfile.TemporaryDirectory() as folder:
        fp8.quant.prepare(watched, {"dump_stats_path": folder + "/inc"})
        say("measured", *in_turns(rounds, lambda: watched(ids), lambda: plain(ids), repeat=4))
        fp8.quant.finalize_calibration(watched)
        for fused in (True, False):
            sdpa, coded = llama(512, 4).bfloat16().to("hpu"), llama(512, 4).bfloat16().to("hpu")
            fp8.attention.use(coded, fused=fused)
            front(coded, ids, folder)
            front(sdpa, ids, folder)
            long = torch.arange(1024, device="hpu")[None] % 512
            say("attention", *in_turns(rounds, lambda: coded(long), lambda: sdpa(long)), fused=fused)
    for hidden in (64, 256, 512):
        here, there = llama(hidden, 4).to("hpu"), llama(hidden, 4)
        one = torch.zeros(1, 1, dtype=torch.int64)
        on_hpu = one.to("hpu")
        say("one token", *in_turns(rounds, lambda: here(on_hpu), lambda: there(one), repeat=50), hidden=hidden)


STEPS, FIT = 20, 100  # of a sample


def network(hidden, device):
    import torch
    torch.manual_seed(0)
    return torch.nn.Sequential(*(layer for _ in range(4) for layer in (torch.nn.Linear(hidden, hidden), torch.nn.ReLU()))).to(device)


def loop(model, x, region, optimizer=None, steps=STEPS):
    import torch
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        with region():
            loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def steps(rounds):
    import contextlib

    import fp8
    import torch

    @contextlib.contextmanager
    def bare():
        number = torch.ops.fp8.enter_autocast("nvidia")
        yield
        torch.ops.fp8.exit_autocast(number)

    for hidden in (64, 256, 1024):
        converted, attached, x = network(hidden, "hpu"), network(hidden, "hpu"), torch.randn(256, hidden, device="hpu")
        fp8.te.convert_modules(converted)
        weights = [module.weight for module in attached if isinstance(module, torch.nn.Linear)]
        torch.ops.fp8.attach_training(weights, [str(i) for i in range(len(weights))], ["Linear"] * len(weights), "nvidia")
        region = fp8.te.fp8_autocast(True, fp8_recipe="nvidia")
        say("step", *in_turns(rounds, lambda: loop(converted, x, lambda: region), lambda: loop(attached, x, bare)), hidden=hidden)


def layer(rounds):
    """C++'s sizes: hidden 256, inner 1024, 4 heads, 128 x 4 tokens. Each program measures for a second in each round."""
    import fp8
    import torch
    module, x = fp8.te.TransformerLayer(256, 1024, 4, hidden_dropout=0, attention_dropout=0), torch.randn(128, 4, 256, device="hpu")
    program = [os.environ["FP8_BENCH"], "training te.TransformerLayer", "--threads", os.environ["OMP_NUM_THREADS"]]

    def step():
        with fp8.te.fp8_autocast(True, fp8_recipe="nvidia"):
            y = module(x.detach().requires_grad_())
        y.backward(torch.ones_like(y))

    def here():
        samples, end = [], time.perf_counter() + 1
        while time.perf_counter() < end:
            samples.append(seconds(step))
        return statistics.median(samples)

    def there():
        return json.loads(subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])["ns"] * 1e-9

    here()
    pairs = [(here(), there()) for _ in range(rounds)]
    say("layer", *(min(column) for column in zip(*pairs)))


def fits(rounds):
    import contextlib
    import logging
    import warnings

    import fp8
    import lightning.pytorch as pl
    import torch
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Net(pl.LightningModule):
        def __init__(self, device):
            super().__init__()
            self.net = network(256, device)

        def training_step(self, batch, _):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    data = torch.utils.data.DataLoader([torch.randn(256)] * 256 * FIT, batch_size=256)

    def fit(kind, **how):
        trainer = pl.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **how)
        trainer.fit(kind, data)

    @contextlib.contextmanager
    def in_fp8():
        with torch.autocast("hpu", torch.bfloat16, cache_enabled=False), fp8.te.fp8_autocast(True):
            yield

    def both(device, region, **how):
        """fit(), and the loop."""
        module, bare = Net(device), network(256, device)
        if device == "hpu":
            fp8.te.convert_modules(bare)

        def loops():
            optimizer = torch.optim.SGD(bare.parameters(), lr=1e-3)
            for batch in data:
                loop(bare, batch.to(device), region, optimizer, 1)
        return lambda: fit(module, **how), loops

    calls = *both("hpu", in_fp8, accelerator="hpu", precision="fp8"), *both("cpu", contextlib.nullcontext, accelerator="cpu")
    here, bare, there, alone = in_turns(rounds, *calls, clock=time.process_time, of=min)
    say("fit", here, bare + there - alone, bare=bare, cpu=[there, alone])


def lightning(rounds):
    say("lightning", *in_turns(rounds, lambda: python("import torch, lightning.pytorch, fp8.lightning"),
                               lambda: python("import torch, lightning.pytorch")))


CASES = {"starts": starts, "conversions": conversions, "forwards": forwards, "step": steps, "layer": layer, "fit": fits, "lightning": lightning}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["FP8_THREADS"] = str(options.threads)
    if options.worker:
        return worker(*options.worker)
    for case in options.only:
        CASES[case](options.rounds)
        if "torch" in sys.modules:
            sys.modules["torch"].set_grad_enabled(True)  # cases of inference turn it off


if __name__ == "__main__":
    main()
