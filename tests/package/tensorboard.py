# SPDX-License-Identifier: Apache-2.0
"""What `fp8 train --profile` writes, in TensorBoard's plug-in: tensorboard.py libfp8_transformer_engine.so FOLDER VERSION FP8, as operators.py."""
import importlib.util, json, os, subprocess, sys
_, folder, _, fp8 = sys.argv[1:]
if importlib.util.find_spec("torch_tb_profiler") is None: sys.exit("SKIPPED: this Python has no torch-tb-profiler")
import torch
from safetensors.torch import save_file
from torch_tb_profiler.io import Cache
from torch_tb_profiler.profiler.loader import RunLoader

def check(profile):
    views = {view.display_name for view in profile.views}
    assert views == {"Overview", "Operator", "Trace", "Memory"}, views
    assert [row[0] for row in profile.overview["steps"]["rows"]] == ["2", "3", "4"], profile.overview
    calls = {row["name"]: row["calls"] for row in profile.operation_table_by_name["data"]}
    assert calls["hpu::fp8_gemm_v2"] == 3 * 3 * 7 * config["num_hidden_layers"], calls  # of 7 layers y, dx and dW
    rows = {row[0]: row for row in profile.get_memory_stats()["rows"]["CPU"]}  # the plug-in knows no other device
    # lm_head's y, dx and dW in bf16, in kB, of 64 tokens and as many words
    assert rows["aten::mm"][1] == 3 * 3 and rows["aten::mm"][2] == 3 * 2 * (64 * 64 + 2 * 64 * config["hidden_size"]) / 1024, rows["aten::mm"]

config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
          "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}

if __name__ == "__main__":
    os.chdir(folder)
    with open("config.json", "w") as file: json.dump(config, file)
    save_file({"input_ids": torch.arange(16 * 32).reshape(16, 32) % 64}, "data.safetensors")
    subprocess.run([fp8, "train", "--init", "config.json", "--data", "data.safetensors", "--out", "run", "--steps", "6", "--batch", "2", "--seq-len", "32",
                    "--precision", "fp8", "--threads", "1", "--profile", "board", "--profile-schedule", "1,1,3"], check=True)
    profiles = list(RunLoader("board", "board", Cache()).load().profiles.values())
    assert len(profiles) == 1, profiles
    check(profiles[0])
    print("torch-tb-profiler shows", ", ".join(view.display_name for view in profiles[0].views))
