# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny checkpoint in the published form of a family, with random weights and the demo model's tokenizer.

  tools/examples/tiny_models.py FAMILY FOLDER       FAMILY: qwen3_moe, qwen2_5_vl

Names of keys and tensors are those of the published models; sizes are small. Python's standard library only."""

import array
import json
import pathlib
import random
import shutil
import struct
import sys

TEXT = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None}
CONFIGS = {
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **TEXT, "head_dim": 16,
                  "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True,
                  "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False},
    "qwen2_5_vl": {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", **TEXT,
                   "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "use_sliding_window": False,
                   "image_token_id": 1, "video_token_id": 2, "vision_start_token_id": 3, "vision_end_token_id": 4,
                   "vision_config": {"model_type": "qwen2_5_vl", "depth": 1, "hidden_size": 32, "intermediate_size": 32,
                                     "num_heads": 2, "out_hidden_size": 64, "patch_size": 4, "in_channels": 3,
                                     "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112,
                                     "fullatt_block_indexes": [0], "hidden_act": "silu", "tokens_per_second": 2}},
}


def gated_mlp(prefix, hidden, inner, bias=False):
    shapes = {f"{prefix}.gate_proj": (inner, hidden), f"{prefix}.up_proj": (inner, hidden), f"{prefix}.down_proj": (hidden, inner)}
    tensors = {f"{name}.weight": shape for name, shape in shapes.items()}
    return tensors | ({f"{name}.bias": shape[:1] for name, shape in shapes.items()} if bias else {})


def text_tensors(config):
    hidden, heads, kv = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim", hidden // heads)
    tensors = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,),
               "lm_head.weight": (config["vocab_size"], hidden)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        tensors |= {f"{layer}.input_layernorm.weight": (hidden,), f"{layer}.post_attention_layernorm.weight": (hidden,)}
        for part, rows in (("q", heads * head), ("k", kv * head), ("v", kv * head)):
            tensors[f"{layer}.self_attn.{part}_proj.weight"] = (rows, hidden)
            if config["model_type"] == "qwen2_5_vl":
                tensors[f"{layer}.self_attn.{part}_proj.bias"] = (rows,)
        tensors[f"{layer}.self_attn.o_proj.weight"] = (hidden, heads * head)
        if config["model_type"] == "qwen3_moe":
            tensors |= {f"{layer}.self_attn.q_norm.weight": (head,), f"{layer}.self_attn.k_norm.weight": (head,),
                        f"{layer}.mlp.gate.weight": (config["num_experts"], hidden)}
            for expert in range(config["num_experts"]):
                tensors |= gated_mlp(f"{layer}.mlp.experts.{expert}", hidden, config["moe_intermediate_size"])
        else:
            tensors |= gated_mlp(f"{layer}.mlp", hidden, config["intermediate_size"])
    return tensors


def tower_tensors(config):
    vision = config["vision_config"]
    width, merged = vision["hidden_size"], vision["hidden_size"] * vision["spatial_merge_size"] ** 2
    tensors = {"visual.patch_embed.proj.weight": (width, vision["in_channels"], vision["temporal_patch_size"], vision["patch_size"], vision["patch_size"]),
               "visual.merger.ln_q.weight": (width,), "visual.merger.mlp.0.weight": (merged, merged), "visual.merger.mlp.0.bias": (merged,),
               "visual.merger.mlp.2.weight": (vision["out_hidden_size"], merged), "visual.merger.mlp.2.bias": (vision["out_hidden_size"],)}
    for i in range(vision["depth"]):
        block = f"visual.blocks.{i}"
        tensors |= {f"{block}.norm1.weight": (width,), f"{block}.norm2.weight": (width,),
                    f"{block}.attn.qkv.weight": (3 * width, width), f"{block}.attn.qkv.bias": (3 * width,),
                    f"{block}.attn.proj.weight": (width, width), f"{block}.attn.proj.bias": (width,)}
        tensors |= gated_mlp(f"{block}.mlp", width, vision["intermediate_size"], bias=True)
    return tensors


def bf16_values(name, shape, draw):
    """Little-endian bytes: weights of norms are 1, others are drawn so that a product keeps the size of its input."""
    count = 1
    for size in shape:
        count *= size
    if len(shape) == 1:
        values = [1.0 if "norm" in name or "ln_q" in name else 0.0] * count
    else:
        fan_in = count // shape[0]
        values = [draw.gauss(0, 1 if "embed_tokens" in name else fan_in ** -0.5) for _ in range(count)]
    halves = array.array("H", struct.pack(f"<{count}f", *values))[1::2]  # the upper half of a f32 is its bf16, cut
    return halves.tobytes()


def write(family, folder, tokenizer):
    """config.json, model.safetensors in bf16, and the tokenizer (256 bytes) of the folder `tokenizer`."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[family] | {"torch_dtype": "bfloat16"}, indent=2) + "\n")
    config, draw, header, data = CONFIGS[family], random.Random(1), {"__metadata__": {"format": "pt"}}, bytearray()
    tensors = text_tensors(config) | (tower_tensors(config) if "vision_config" in config else {})
    for name, shape in sorted(tensors.items()):
        values = bf16_values(name, shape, draw)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(pathlib.Path(tokenizer) / name, folder / name)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in CONFIGS:
        sys.exit(__doc__)
    write(sys.argv[1], sys.argv[2], pathlib.Path(__file__).resolve().parents[1] / "demo_data/kjv-byte-1.7M")
