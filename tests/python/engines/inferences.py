# SPDX-License-Identifier: Apache-2.0
"""Cells of engine_cells.py that split the demo model for inference over two ranks, by DeepSpeed: inference:ORDER:SCALES."""

import engine_cells

SCALES = {"static": {"mode": "QUANTIZE", "scale_method": "unit_scale"},
          "dynamic": {"mode": "QUANTIZE", "dynamic_quantization": True, "scale_method": "maxabs_pcs_pow2"}}
CELLS = [f"inference:{order}:{scales}" for order in ("before", "after") for scales in SCALES]


def run(cell, rank):
    """Largest differences of logits: of the split model from the whole one, both in fp8, and of the whole and the split one from f32."""
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
        parts = fp8.quant.convert(split(model()), SCALES[scales]) if order == "after" else split(fp8.quant.convert(model(), SCALES[scales]))
        found = parts(ids).logits
    converted = [module.name for module in fp8.quant.report(parts).converted]
    rows = parts.get_parameter("model.layers.0.self_attn.q_proj.weight").shape[0]
    return {"split": (found - expected).abs().max().item(), "fp8": (expected - high).abs().max().item(),
            "split from f32": (found - high).abs().max().item(), "rows": rows, "converted": len(converted)}
