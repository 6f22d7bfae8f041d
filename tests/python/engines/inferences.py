# SPDX-License-Identifier: Apache-2.0
"""Cells of engine_cells.py that split the demo model for inference over two ranks, by DeepSpeed: inference:ORDER:SCALES;
inference:reduced:SCALES, whose ranks add what they have of one token as fp8 codes, inference:reduced:FOLDER by scales that are measured
there; and with measurements and checkpoints of another number of ranks inference:measured:FOLDER, then others() between them, then
inference:files:FOLDER.

    python inferences.py PREFIX FILE [PREFIX]    one process: logits in fp8 by a measurement, which is made with a second prefix"""

import os
import pathlib
import subprocess
import sys

import engine_cells

SCALES = {"static": {"mode": "QUANTIZE", "scale_method": "unit_scale"},
          "dynamic": {"mode": "QUANTIZE", "dynamic_quantization": True, "scale_method": "maxabs_pcs_pow2"}}
CELLS = [f"inference:{order}:{scales}" for order in ("before", "after") for scales in SCALES]
REDUCED = "inference:reduced"
ADDED = "model.layers.0.self_attn.o_proj"
MEASURED = {"scale_method": "maxabs_pow2", "blocklist": {"names": ["lm_head"]}}


def cut(model, names):
    """The model, its Linears of these names as ranks share them out by inputs: each part's product, then the sum."""
    import torch

    class Parts(torch.nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.parts, self.width = torch.nn.ModuleList(), linear.in_features // engine_cells.RANKS
            for weight in linear.weight.split(self.width, 1):
                part = torch.nn.Linear(self.width, linear.out_features, bias=False, device="hpu")
                part.weight = torch.nn.Parameter(weight.detach().clone())
                self.parts.append(part)

        def forward(self, x): return sum(part(y.contiguous()) for part, y in zip(self.parts, x.split(self.width, -1)))
    for name in names:
        model.set_submodule(name, Parts(model.get_submodule(name)))
    return model


def whole_model():
    import torch
    import transformers
    return transformers.AutoModelForCausalLM.from_pretrained(engine_cells.DEMO / "kjv-byte-1.7M", dtype=torch.float32).to("hpu").eval()


def split(model):
    import torch

    import deepspeed
    return deepspeed.init_inference(model, tensor_parallel={"tp_size": engine_cells.RANKS}, dtype=torch.float32,
                                    replace_with_kernel_inject=False).module


def of_ranks(y):
    """[ranks, ...] on the host."""
    import torch
    parts = [torch.empty_like(y) for _ in range(engine_cells.RANKS)]
    torch.distributed.all_gather(parts, y)
    return torch.stack(parts).cpu()


def measured_amaxes(model, prefix):
    """The amaxes of what ranks add in a calibration, the largest of all, and of the sum, computed beside it."""
    import torch

    import fp8
    found, module = [0.0, 0.0], model.get_submodule(ADDED)

    def look(_, given):
        parts = of_ranks(torch.nn.functional.linear(given[0].detach().cpu(), weight))
        found[:] = [max(found[0], parts.abs().max().item()), max(found[1], parts.sum(0).abs().max().item())]
    weight = module.weight.detach().cpu()
    hook = module.register_forward_pre_hook(look)
    config = {**MEASURED, "mode": "MEASURE", "dump_stats_path": prefix, "row_parallel_linear_allreduce_quantization": True}
    plain = model(ids()).logits
    assert torch.equal(fp8.quant.prepare(model, config)(ids()).logits, plain)
    fp8.quant.finalize_calibration(model)
    hook.remove()
    return found


def by_formula(y, scale_inv):
    """The sum of all ranks' y: each cast to E4M3 with the first scale, the sum with the second."""
    import torch

    def through(values, s): return (values * (1 / s)).clamp(-448, 448).to(torch.float8_e4m3fn).float() * s
    return through(through(of_ranks(y).float(), scale_inv[0]).sum(0), scale_inv[1])


def reduced(scales):
    """Of a module whose ranks add their results, with an input of one token and of two: the largest value of the sum, and the largest
    difference from it of what the module gives; the same of one token from what the formula gives, None: each message has a scale of its
    own; and the warnings of the conversion."""
    import math

    import torch

    import fp8
    model, config = split(whole_model()), {**SCALES["static"], "row_parallel_linear_allreduce_quantization": True}
    scale_inv, said = [1.0, 1.0] if scales == "unit" else None, []
    with torch.no_grad():
        if os.path.isabs(scales):
            config = {**config, **MEASURED, "dump_stats_path": f"{scales}/m"}
            scale_inv = [2.0 ** math.ceil(math.log2(amax / 448)) for amax in measured_amaxes(model, f"{scales}/m")]
        elif scales == "own":
            config = {**config, **MEASURED, "dump_stats_path": "own/m"}
            measured(model, "own/m")
        module = fp8.quant.convert(model, config).get_submodule(ADDED)
        for tokens in (1, 2):
            torch.manual_seed(torch.distributed.get_rank())
            x = torch.randn(3, tokens, module.weight.shape[1]).to("hpu")
            own = torch.matmul(x, module.weight.transpose(-1, -2))
            exact, given = of_ranks(own).sum(0), module(x).cpu()
            said.append([exact.abs().max().item(), (given - exact).abs().max().item()])
            if tokens == 1:
                by = (given - by_formula(own, scale_inv)).abs().max().item() if scale_inv else None
        greedy = model.generate(torch.arange(40, 48)[None].to("hpu"), max_new_tokens=8, do_sample=False, pad_token_id=0)
    return {"tokens": said, "formula": by, "greedy": greedy.tolist(), "warnings": list(fp8.quant.report(model).warnings), "scale_inv": scale_inv}


def ids():
    import torch
    return (torch.arange(64)[None] % 60 + 32).to("hpu")


def measured(model, prefix):
    import fp8
    fp8.quant.prepare(model, {**MEASURED, "mode": "MEASURE", "dump_stats_path": prefix})(ids())
    fp8.quant.finalize_calibration(model)


def by(model, prefix):
    """Converted by that measurement."""
    import fp8
    return fp8.quant.convert(model, {**MEASURED, "mode": "QUANTIZE", "dump_stats_path": prefix})


def others(folder):
    """Files of one process from those of two ranks, and of two from those of one."""
    build, source = os.environ.get("FP8_BUILD", engine_cells.DEMO.parents[1] / "build"), engine_cells.DEMO / "kjv-byte-1.7M"
    program = pathlib.Path(build, "bin", "fp8")
    for command in ((program, "measurements", "unify", "two", "--ranks", "1", "--out", "one"), (sys.executable, __file__, "one/m", "of_two.pt"),
                    (sys.executable, __file__, "whole/m", "whole.pt", "whole/m"),
                    (program, "measurements", "expand", "whole", "--ranks", "2", "--out", "parts"),
                    (program, "quantize", source, "--measurements", "whole", "--format", "inc", "-o", "inc_1", "-q"),
                    (program, "convert", "inc_1", "--format", "inc", "--ranks", "2", "-o", "inc_2", "-q")):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]


def files(folder):
    """Largest differences of logits from those of one process with its own measurement: of one process by that of two ranks, and of two
    ranks by that of one; of fp8 from f32; and what is said of checkpoints."""
    import torch

    import fp8
    os.chdir(folder)
    with torch.no_grad():
        parts, whole = by(split(whole_model()), "parts/m"), torch.load("whole.pt")
        said = {"of_two": (torch.load("of_two.pt") - whole).abs().max().item(), "parts": (parts(ids()).logits.cpu() - whole).abs().max().item(),
                "fp8": (whole_model()(ids()).logits.cpu() - whole).abs().max().item(), "refused": []}
    for refused in (lambda: fp8.quant.save(parts, "saved"), lambda: fp8.quant.load(split(whole_model()), checkpoint="inc_1"),
                    lambda: fp8.quant.load(split(whole_model()), checkpoint="inc_2")):
        try:
            refused()
        except RuntimeError as error:
            said["refused"].append(str(error))
    return {**said, "saved": os.path.exists("saved")}


def run(cell, rank):
    """Largest differences of logits: of the split model from one process that computes as its ranks do, both in fp8, and of fp8 from f32.
    With static scales that process has the whole; a dynamic scale is of a rank's part of a row."""
    import torch

    import deepspeed
    import fp8
    torch.hpu.set_device(rank)  # as init_inference does
    deepspeed.init_distributed("hccl", verbose=False)
    _, order, scales = cell.split(":")
    if order == "reduced":
        return reduced(scales)
    if order == "files":
        return files(scales)
    if order == "measured":
        with torch.no_grad():
            measured(split(whole_model()), f"{scales}/two/m")
        return {}
    with torch.no_grad():
        whole = whole_model()
        high = whole(ids()).logits
        expected = fp8.quant.convert(whole, SCALES[scales])(ids()).logits
        fp8_error = (expected - high).abs().max().item()
        parts = fp8.quant.convert(split(whole_model()), SCALES[scales]) if order == "after" else split(fp8.quant.convert(whole_model(), SCALES[scales]))
        found = parts(ids()).logits
        if scales == "dynamic":
            shared = [name for name, module in parts.named_modules() if type(module).__name__ == "LinearAllreduce"]
            expected = fp8.quant.convert(cut(whole_model(), shared), SCALES[scales])(ids()).logits
    converted = [module.name for module in fp8.quant.report(parts).converted]
    rows = parts.get_parameter("model.layers.0.self_attn.q_proj.weight").shape[0]
    return {"split": (found - expected).abs().max().item(), "fp8": fp8_error, "rows": rows, "converted": len(converted)}


if __name__ == "__main__":
    import torch
    with torch.no_grad():
        if len(sys.argv) > 3:
            measured(whole_model(), sys.argv[3])
        torch.save(by(whole_model(), sys.argv[1])(ids()).logits.cpu(), sys.argv[2])
