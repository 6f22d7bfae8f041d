# SPDX-License-Identifier: Apache-2.0
"""The commands that a soak runs, on the demo model; and what an undisturbed run of each gives."""

import dataclasses
import json
import pathlib
import shutil

DATA = pathlib.Path(__file__).resolve().parents[2] / "tools/demo_data"
SHORT = ("--seq-len", "64", "--batch", "2")
# Of numbers in results: times and what a run says of its own way.
VOLATILE = {
    "seconds",
    "forward_seconds",
    "measured_forward_seconds",
    "tokens_per_second",
    "peak_rss_bytes",
    "units_kept",
    "resumed",
    "resumed_from",
    "finished_before",
    "threads",
    "time",
    "step_seconds",
    "samples_per_second",
    "wall_seconds",
    "run",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "train_tokens_per_second",
    "prompt_tokens_per_second",
}


@dataclasses.dataclass(frozen=True)
class Command:
    """{in}: inputs, which no command may change. {out}: a folder for results."""

    name: str
    words: str
    torch: bool = False
    resume: str = ""  # goes on after a fault
    ranks: int = 1  # processes that talk
    partial: bool = False  # a signal ends it early, with whole files of less work
    files: tuple = ("result",)  # what it writes in {out}; () : it prints its result
    then: str = ""  # a command that joins what several processes made

    def line(self, folder, again=False, words=None):
        text = (words or self.words) + (" " + self.resume if again and self.resume else "")
        return [word.replace("{in}", f"{folder}/in").replace("{out}", f"{folder}/out") for word in text.split()]


TRAIN = "train --init {in}/model --data {in}/calib.txt --out {out}/result --steps 6 --save-every 2 --batch 2 --seq-len 32 --warmup 2 --json"
COMMANDS = (
    Command("quantize", "quantize --json --model {in}/model --dynamic --out {out}/result", resume="--resume"),
    Command("quantize static", "quantize --json --model {in}/model --measurements {in}/stats --out {out}/result", resume="--resume"),
    Command("quantize shards", "quantize --json --model {in}/model --weights-only --shard-size 400000 --out {out}/result", resume="--resume"),
    Command("quantize shares", "quantize --json --model {in}/model --dynamic --shares 5:0.5 --join wait --out {out}/result"),
    Command("convert bf16", "convert --json --model {in}/fp8 --format bf16 --out {out}/result", resume="--resume"),
    Command("convert inc", "convert --json --model {in}/fp8 --format inc --out {out}/result", resume="--resume"),
    Command("inspect", "inspect --json {in}/fp8 --all", files=()),
    Command("inspect measurement", "inspect --json {in}/stats/inc_output_hooks_maxabs.json", files=()),
    Command("inspect page", "inspect --json {in}/fp8 --html {out}/page.html", files=("page.html",)),
    Command("measurements merge", "measurements merge {in}/stats {in}/stats2 --out {out}/result"),
    Command("config check", "config check {in}/quant.json --json", files=()),
    Command("config explain", "config explain {in}/quant.json --model {in}/model --json", files=()),
    Command(
        "measure",
        "measure --json --model {in}/model --data {in}/calib.txt --samples 6 --out {out}/result --snapshot-seconds 0 " + " ".join(SHORT),
        torch=True,
        resume="--resume",
        partial=True,
    ),
    Command(
        "measure blocks",
        "measure --json --block-wise --model {in}/model --data {in}/calib.txt --samples 6 --out {out}/result --snapshot-seconds 0 " + " ".join(SHORT),
        torch=True,
        resume="--resume",
    ),
    Command(
        "measure states",
        "measure --json --config {in}/histogram.json --model {in}/model --data {in}/calib.txt --samples 4 --out {out}/result " + " ".join(SHORT),
        torch=True,
        resume="--resume",
        partial=True,
    ),
    Command(
        "evaluate",
        "evaluate --json --model {in}/fp8 --data {in}/held.txt --samples 4 --dump-logits {out}/logits " + " ".join(SHORT),
        torch=True,
        files=("logits",),
    ),
    Command("generate", "generate --json --model {in}/fp8 --prompt In_the_beginning --tokens 8", torch=True, files=()),
    Command("embed", "embed --json {in}/model --data {in}/lines.txt --out {out}/vectors.safetensors", torch=True, files=("vectors.safetensors",)),
    Command("train", TRAIN + " --precision fp8", torch=True, resume="--resume", partial=True),
    Command(
        "quantize ranks",
        "quantize --json --model {in}/model --dynamic --out {out}/result",
        resume="--resume",
        ranks=4,
        then="quantize --json --model {in}/model --dynamic --out {out}/result --join 4",
    ),
    Command(
        "evaluate ranks",
        "evaluate --json --model {in}/fp8 --data {in}/held.txt --samples 4 --rank-timeout 12 " + " ".join(SHORT),
        torch=True,
        files=(),
        ranks=2,
    ),
    Command("train ranks", TRAIN + " --precision 32-true --strategy hpu_ddp --rank-timeout 12", torch=True, resume="--resume", ranks=2, partial=True),
)


def make_inputs(folder, run):
    """{in}, by the program itself: run(line) must end with 0."""
    place = folder / "in"
    place.mkdir(parents=True)
    shutil.copytree(DATA / "kjv-byte-1.7M", place / "model")
    shutil.copy2(DATA / "kjv_calib.txt", place / "calib.txt")
    (place / "held.txt").write_text((DATA / "kjv_heldout_16k.txt").read_text()[:4000])
    (place / "lines.txt").write_text("\n".join((DATA / "kjv_heldout_16k.txt").read_text().split("\n")[:6]) + "\n")
    (place / "quant.json").write_text(
        json.dumps({"mode": "QUANTIZE", "observer": "maxabs", "scale_method": "maxabs_hw", "dump_stats_path": "stats/inc_output"})
    )
    (place / "histogram.json").write_text(json.dumps({"mode": "MEASURE", "observer": "histogram", "dump_stats_path": "x/inc_output"}))
    run(f"quantize --quiet --model {place}/model --dynamic --out {place}/fp8".split())
    for name, skip in (("stats", 0), ("stats2", 4)):
        run(f"measure --quiet --model {place}/model --data {place}/calib.txt --samples 4 --skip {skip} --out {place}/{name}".split() + list(SHORT))


def steady(value):
    """JSON without what differs from run to run."""
    if isinstance(value, dict):
        return {key: steady(one) for key, one in value.items() if key not in VOLATILE}
    return [steady(one) for one in value] if isinstance(value, list) else value


def steady_bytes(path, data):
    """A file's bytes, without times where it is a log or a list of results."""
    try:
        if path.endswith(".jsonl"):
            return json.dumps([steady(json.loads(line)) for line in data.splitlines()]).encode()
        if path.endswith((".json", ".fingerprint", "stdout")) and data:
            return json.dumps(steady(json.loads(data))).encode()
    except ValueError:
        pass
    return data


def results(folder, command):
    """{path: bytes} of what a command has written in {out}."""
    found = {}
    for name in command.files:
        top = folder / "out" / name
        for path in [top, *top.rglob("*")] if top.is_dir() else [top] if top.exists() else []:
            hidden = any(part.startswith(".") for part in path.relative_to(folder / "out").parts)  # work that goes on, locks
            if path.is_file() and not path.is_symlink() and not hidden:
                found[str(path.relative_to(folder / "out"))] = steady_bytes(str(path), path.read_bytes())
    return found
