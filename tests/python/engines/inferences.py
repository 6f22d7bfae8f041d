# SPDX-License-Identifier: Apache-2.0
"""Cells of engine_cells.py that split the demo model for inference over two ranks, by DeepSpeed: inference:ORDER:SCALES."""

import engine_cells

SCALES = {"static": {"mode": "QUANTIZE", "scale_method": "unit_scale"},
          "dynamic": {"mode": "QUANTIZE", "dynamic_quantization": True, "scale_method": "maxabs_pcs_pow2"}}
CELLS = [f"inference:{order}:{scales}" for order in ("before", "after") for scales in SCALES]


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


def run(cell, rank):
    """Largest differences of logits: of the split model from one process that computes as its ranks do, both in fp8, and of fp8 from f32.
    With static scales that process has the whole; a dynamic scale is of a rank's part of a row."""
    import torch
    import transformers

    import deepspeed
    import fp8
    _, order, scales = cell.split(":")
    torch.hpu.set_device(rank)  # as init_inference does
    deepspeed.init_distributed("hccl", verbose=False)

    def model():
        return transformers.AutoModelForCausalLM.from_pretrained(engine_cells.DEMO / "kjv-byte-1.7M", dtype=torch.float32).to("hpu").eval()

    def split(model):
        return deepspeed.init_inference(model, tensor_parallel={"tp_size": engine_cells.RANKS}, dtype=torch.float32,
                                        replace_with_kernel_inject=False).module

    ids = (torch.arange(64)[None] % 60 + 32).to("hpu")
    with torch.no_grad():
        whole = model()
        high = whole(ids).logits
        expected = fp8.quant.convert(whole, SCALES[scales])(ids).logits
        fp8_error = (expected - high).abs().max().item()
        parts = fp8.quant.convert(split(model()), SCALES[scales]) if order == "after" else split(fp8.quant.convert(model(), SCALES[scales]))
        found = parts(ids).logits
        if scales == "dynamic":
            shared = [name for name, module in parts.named_modules() if type(module).__name__ == "LinearAllreduce"]
            expected = fp8.quant.convert(cut(model(), shared), SCALES[scales])(ids).logits
    converted = [module.name for module in fp8.quant.report(parts).converted]
    rows = parts.get_parameter("model.layers.0.self_attn.q_proj.weight").shape[0]
    return {"split": (found - expected).abs().max().item(), "fp8": fp8_error, "rows": rows, "converted": len(converted)}
