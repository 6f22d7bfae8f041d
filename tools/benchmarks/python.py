# SPDX-License-Identifier: Apache-2.0
"""What the Python package costs beside torch alone and beside the operators that it calls.

    ./tools/bench python [--rounds 7] [--threads 1]

One JSON line per case, medians over rounds that go in turns. `ratio` is the first figure by the second.

    autoload     seconds of `import torch` with the package and without (TORCH_DEVICE_BACKEND_AUTOLOAD=0)
    import       seconds of `import torch, fp8` and of `import torch`, both with the package
    convert      seconds of prepare() and convert(), and of the operators alone on the same lists of weights
    memory       bytes of the host that each of the two took at its peak
    measured     seconds of a forward between prepare() and convert(), and of one that nothing watches
    attention    seconds of a forward with attention "fp8" and with "sdpa", 1,024 tokens
    one token    seconds of a forward of one token on hpu and on the CPU
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def seconds(call, repeat=1):
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


def in_turns(rounds, first, second, repeat=1):
    """Medians of both, measured one after the other in each round."""
    first(), second()
    pairs = [(seconds(first, repeat), seconds(second, repeat)) for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*pairs)]


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
        say("measured", *in_turns(rounds, lambda: watched(ids), lambda: plain(ids), 4))
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
        say("one token", *in_turns(rounds, lambda: here(on_hpu), lambda: there(one), 50), hidden=hidden)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["FP8_THREADS"] = str(options.threads)
    if options.worker:
        return worker(*options.worker)
    starts(options.rounds)
    conversions(options.rounds)
    forwards(options.rounds)


if __name__ == "__main__":
    main()
