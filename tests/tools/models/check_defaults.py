# SPDX-License-Identifier: Apache-2.0
"""Configs that name nothing but sizes: what they leave out must be what transformers takes.

    check_defaults.py --binary build/bin/fp8

For each family of fixtures/ a checkpoint is made of a config with sizes alone, and the logits of `fp8 evaluate` are
compared with transformers'. A default that differs (an epsilon, a base of rotary frequencies, a bias, a tied head)
moves them, or changes what tensors there are.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import make_fixtures
import make_fixtures_table as table
import torch
import transformers
from safetensors.torch import load_file, save_file

sys.path.append(str(pathlib.Path(__file__).parents[2] / "support"))
import started_fp8  # noqa: E402

KEPT = set("""
    vocab_size dim hidden_dim hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads
    head_dim max_position_embeddings n_embd n_head n_layer n_positions d_model n_heads n_layers max_seq_len ffn_dim
    word_embed_proj_dim num_local_experts num_experts n_routed_experts num_experts_per_tok moe_intermediate_size
    moe_num_experts moe_k shared_expert_intermediate_size kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim
    v_head_dim rotary_dim n_group topk_group intermediate_size_mlp moe_topk first_k_dense_replace pad_token_id
    num_ln_in_parallel_attn ffn_hidden_size moe_num_shared_experts moe_layer_end_index moe_layer_start_index
    moe_layer_interval n_shared_experts sliding_window_pattern
    d_ff d_kv num_layers num_decoder_layers num_heads encoder_layers decoder_layers encoder_ffn_dim decoder_ffn_dim
    encoder_attention_heads decoder_attention_heads decoder_start_token_id
    """.split())
PADDED = ("glm", "glm4", "phi3", "smollm3")  # whose default id of padding is past these vocabularies
TOLERANCE = 3e-4


def config_of(fixture):
    config = {key: value for key, value in fixture["config"].items() if key in KEPT and value is not None}
    if isinstance(config.get("sliding_window_pattern"), str):  # EXAONE 4's letters are not what Gemma 3 counts by
        del config["sliding_window_pattern"]
    if fixture["config"]["model_type"] in PADDED:
        config["pad_token_id"] = 0
    return config


def logits_of(binary, folder, inputs):
    with tempfile.TemporaryDirectory() as scratch:
        data, out = pathlib.Path(scratch) / "ids.safetensors", pathlib.Path(scratch) / "logits.safetensors"
        save_file(inputs, data)
        run = started_fp8.run(binary, "evaluate", "--quiet", "--device", "cpu", "--dtype", "f32", "--model", folder,
                              "--data", data, "--dump-logits", out)
        if run.returncode != 0:
            raise ValueError(run.stderr.strip())
        return load_file(out)["logits"]


def difference(binary, name, fixture):
    """Between the logits, in deviations of them where they are large."""
    model_type, architectures = fixture["config"]["model_type"], fixture["config"]["architectures"]
    config = config_of(fixture)
    model_class = getattr(transformers, architectures[0])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model_class(transformers.CONFIG_MAPPING[model_type](**config)).float().save_pretrained(folder)
        row = {"type": model_type} | table.ROWS[name]
        tensors = {tensor: make_fixtures.entry_of(tensor, values, row)
                   for tensor, values in load_file(folder / "model.safetensors").items()}
        make_fixtures.write_checkpoint(folder, config | {"model_type": model_type, "architectures": architectures}, tensors)
        inputs = {"input_ids": torch.tensor(make_fixtures.token_ids(f"{name} defaults", 2, 24, config["vocab_size"]))}
        if row.get("kind") == "both":  # labels are what the decoder sees, shifted
            inputs["labels"] = torch.tensor(make_fixtures.token_ids(f"{name} answers", 2, 24, config["vocab_size"]))
        with torch.no_grad():
            expected = make_fixtures.load(model_class, folder)(**inputs).logits
        found = logits_of(binary, folder, inputs).reshape(expected.shape)
    return (found - expected).abs().max().item() / max(1, expected.std().item())


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--binary", required=True)
    arguments, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    checked, failed = 0, []
    for path in sorted(make_fixtures.FIXTURES.glob("*.json")):
        fixture = json.loads(path.read_text())
        parts = "text_config" in fixture["config"] or path.stem == "qwen2_vl"
        if "-" in path.stem.replace("xlm-", "").replace("-v2", "") or parts:
            continue
        torch.manual_seed(0)
        try:
            found = difference(arguments.binary, path.stem, fixture)
        except Exception as error:  # noqa: BLE001: the others go on
            found = f"{type(error).__name__}: {error}"
        checked += 1
        if isinstance(found, str) or found > TOLERANCE:
            failed.append(path.stem)
            print(f"{path.stem}: {found}", flush=True)
    print(f"{checked} families, {len(failed)} differ")
    sys.exit(1 if failed or checked < 50 else 0)


if __name__ == "__main__":
    main()
