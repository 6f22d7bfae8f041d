# SPDX-License-Identifier: Apache-2.0
"""Steps of ranks on two hosts whose cable carries 1 Gbit/s: gradients in bf16 take less of it, and buckets travel while
backward runs."""

import json
import statistics

import training

RATE, STEPS, BATCH = "1gbit", 12, 8
# 16.8 M parameters beside embeddings: 64 MiB of f32 gradients.
SIZES = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}


def config(folder):
    made = folder / "config"
    made.mkdir()
    sizes = json.loads((training.DEMO / "config.json").read_text()) | SIZES
    (made / "config.json").write_text(json.dumps(sizes))
    return made


def step_of(tools, folder, name, *more, batch, seq_len=128):
    """(seconds, bytes on the cable) of a step: the median of all but the first by the clock of the log; all bytes of the
    run, the weights' one way among them, by its steps."""
    out = folder / name
    command = training.command(tools.binary, out, STEPS, "--tokenizer", training.DEMO, *more, batch=batch, seq_len=seq_len)
    command[command.index("--init") + 1] = str(folder / "config")
    before = tools.pair.sent()
    tools.launchers.two_hosts(command, 2).must_be_ok(name)
    return statistics.median(row["seconds"] for row in training.log(out)[2:]), (tools.pair.sent() - before) / STEPS


def rows(tools, folder):
    config(folder)
    found = []
    tools.pair.rate(RATE)
    try:
        (f32, f32_bytes), (bf16, bf16_bytes) = (
            step_of(tools, folder, f"fast-{dtype}", "--strategy", "fast_ddp", "--fusion-buffer-dtype", dtype, batch=1, seq_len=16)
            for dtype in ("f32", "bf16"))
        found.append((f"fast_ddp through {RATE}, 64 MiB of gradients: a step with a bf16 buffer by one with f32",
                      f"{bf16:.3f} s / {f32:.3f} s = {bf16 / f32:.2f}", bf16 <= 0.7 * f32))
        found.append(("the same: bytes on the cable for each step", f"{bf16_bytes / 1e6:.1f} MB / {f32_bytes / 1e6:.1f} MB = {bf16_bytes / f32_bytes:.2f}",
                      bf16_bytes <= 0.6 * f32_bytes))
        # Forward and backward take about as long as the message.
        whole, _ = step_of(tools, folder, "one-message", "--strategy", "hpu_parallel", batch=BATCH)
        buckets, _ = step_of(tools, folder, "buckets", "--strategy", "hpu_ddp", "--bucket-cap-mb", 8, batch=BATCH)
        found.append((f"hpu_ddp through {RATE}: a step with buckets of 8 MiB by one with one message after backward",
                      f"{buckets:.3f} s / {whole:.3f} s = {buckets / whole:.2f}", buckets <= 0.8 * whole))
    finally:
        tools.pair.rate(None)
    return found
