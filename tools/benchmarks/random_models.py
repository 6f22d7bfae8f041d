# SPDX-License-Identifier: Apache-2.0
"""Llama checkpoints of random weights, as transformers, fp8 and llama.cpp read them, in the per-user cache.

    python random_models.py checkpoint SIZE           config.json, model.safetensors (bf16), tokenizer.json
    python random_models.py gguf SIZE bf16|q8_0 DIR   the same weights for llama.cpp, whose source is in DIR

Prints the path. Matrices are N(0, 0.02^2), drawn once and repeated; norms are 1. The tokenizer gives a token for each
byte, so that N letters are a prompt of N tokens. A process of its own: what it held would count as its children's.
"""

import json
import math
import os
import pathlib
import sys

VOCABULARY = 32000
POSITIONS = 33024  # 32768 and some to be added
# As in bench_families.cpp: hidden, inner, layers, heads, kv heads.
SIZES = {"0.1B": (768, 2048, 12, 12, 4), "1.1B": (2048, 5632, 22, 32, 4), "3B": (3200, 8640, 26, 32, 32)}


def cache():
    base = os.environ.get("XDG_CACHE_HOME") or str(pathlib.Path.home() / ".cache")
    folder = pathlib.Path(base) / "fp8" / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def tensors(size):
    """[(name, name in GGUF, shape)]"""
    hidden, inner, layers, heads, kv_heads = SIZES[size]
    kv = hidden // heads * kv_heads
    found = [("model.embed_tokens.weight", "token_embd.weight", (VOCABULARY, hidden))]
    for i in range(layers):
        for name, short, shape in (("input_layernorm", "attn_norm", (hidden,)), ("self_attn.q_proj", "attn_q", (hidden, hidden)),
                                   ("self_attn.k_proj", "attn_k", (kv, hidden)), ("self_attn.v_proj", "attn_v", (kv, hidden)),
                                   ("self_attn.o_proj", "attn_output", (hidden, hidden)),
                                   ("post_attention_layernorm", "ffn_norm", (hidden,)), ("mlp.gate_proj", "ffn_gate", (inner, hidden)),
                                   ("mlp.up_proj", "ffn_up", (inner, hidden)), ("mlp.down_proj", "ffn_down", (hidden, inner))):
            found.append((f"model.layers.{i}.{name}.weight", f"blk.{i}.{short}.weight", shape))
    return [*found, ("model.norm.weight", "output_norm.weight", (hidden,)), ("lm_head.weight", "output.weight", (VOCABULARY, hidden))]


def header_of(size):
    """The header of the safetensors file, by name."""
    header, at = {}, 0
    for name, _, shape in tensors(size):
        end = at + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    return header


def write_weights(path, size):
    import numpy

    values = numpy.random.default_rng(1).standard_normal((1 << 24) + 12345, dtype=numpy.float32) * numpy.float32(0.02)
    noise = (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
    head = json.dumps(header_of(size)).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        at = 0
        for _, _, shape in tensors(size):
            left = math.prod(shape)
            if len(shape) == 1:
                file.write(numpy.full(left, 0x3F80, dtype=numpy.uint16).tobytes())
                continue
            while left > 0:
                piece = noise[at : at + left]
                file.write(piece.tobytes())
                left -= len(piece)
                at = (at + len(piece)) % len(noise)


def tokenizer_json():
    """Bytes, by the demo model's tokenizer, and words that no text has."""
    demo = pathlib.Path(__file__).parent.parent / "demo_data/kjv-byte-1.7M/tokenizer.json"
    tokenizer = json.loads(demo.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    for i in range(len(vocabulary), VOCABULARY):
        vocabulary[f"<{i}>"] = i
    return tokenizer


def checkpoint(size):
    folder = cache() / size
    if (folder / "config.json").exists():
        return folder
    hidden, inner, layers, heads, kv_heads = SIZES[size]
    folder.mkdir(exist_ok=True)
    write_weights(folder / "model.safetensors", size)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}\n', encoding="utf-8")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": hidden,
              "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
              "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
              "bos_token_id": 1, "eos_token_id": None}
    temporary = folder / "config.tmp"  # last: it says that all is there
    temporary.write_text(json.dumps(config, indent=1), encoding="utf-8")
    temporary.rename(folder / "config.json")
    return folder


def gguf(size, kind, source):
    """Matrices in bf16 or Q8_0, the norms in f32, no vocabulary."""
    path = cache() / f"{size}-{kind}.gguf"
    if path.exists():
        return path
    sys.path.insert(0, str(pathlib.Path(source) / "gguf-py"))
    import gguf as format_
    import numpy

    weights = checkpoint(size) / "model.safetensors"
    hidden, inner, layers, heads, kv_heads = SIZES[size]
    width = hidden // heads
    temporary = path.with_suffix(".tmp")
    writer = format_.GGUFWriter(temporary, "llama", use_temp_file=True)
    quantized = {"bf16": format_.GGMLQuantizationType.BF16, "q8_0": format_.GGMLQuantizationType.Q8_0}[kind]
    writer.add_file_type({"bf16": format_.LlamaFileType.MOSTLY_BF16, "q8_0": format_.LlamaFileType.MOSTLY_Q8_0}[kind])
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_block_count(layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(width)
    writer.add_layer_norm_rms_eps(1e-5)
    header = header_of(size)
    with weights.open("rb") as file:
        begin = 8 + int.from_bytes(file.read(8), "little")
    for name, short, shape in tensors(size):
        bits = numpy.fromfile(weights, numpy.uint16, math.prod(shape), offset=begin + header[name]["data_offsets"][0])
        values = (bits.astype(numpy.uint32) << 16).view(numpy.float32).reshape(shape)
        if short.endswith(("attn_q.weight", "attn_k.weight")):  # pairs that RoPE turns lie side by side there
            values = values.reshape(-1, 2, width // 2, hidden).swapaxes(1, 2).reshape(shape)
        if len(shape) == 1:
            writer.add_tensor(short, values)
        else:
            writer.add_tensor(short, format_.quants.quantize(numpy.ascontiguousarray(values), quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    temporary.replace(path)
    return path


if __name__ == "__main__":
    print({"checkpoint": checkpoint, "gguf": gguf}[sys.argv[1]](*sys.argv[2:]))
