#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Published layouts that transformers has no class of: vision and audio models of remote code, draft layers, heads.

  layouts.py --binary build/bin/fp8

A tiny checkpoint of each has its names; `fp8 quantize --dry-run` must put into fp8 the linear layers of the language
model's blocks and nothing else. The names are those of the published files and of vLLM's loaders for them."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import save_file

LAYERS, WIDTH, VOCAB = 2, 64, 320
LLAMA = "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj mlp.up_proj mlp.down_proj"
QWEN1 = "attn.c_attn attn.c_proj mlp.w1 mlp.w2 mlp.c_proj"
GLM = "self_attention.query_key_value self_attention.dense mlp.dense_h_to_4h mlp.dense_4h_to_h"
MOLMO = "att_proj attn_out ff_proj ff_out"
FUSED = "self_attn.qkv_proj self_attn.o_proj mlp.gate_up_proj mlp.down_proj"
COGVLM = ("self_attn.vision_expert_query_key_value self_attn.language_expert_query_key_value mlp.language_mlp.gate_proj "
          "mlp.vision_mlp.gate_proj")
VIT = "attn.qkv attn.proj mlp.fc1 mlp.fc2"
CLIP = "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.out_proj mlp.fc1 mlp.fc2"
KIMI = "wqkv wo mlp.fc0 mlp.fc1"
RESBLOCK = "attn.in_proj attn.out_proj mlp.c_fc mlp.c_proj"


def below(prefix, parts, count=LAYERS):
    return [f"{prefix}.{i}.{part}" for i in range(count) for part in parts.split()]


def layout(text, plain, part=None, text_type="qwen2", blocks=LLAMA, words="embed_tokens", layers="layers", head="lm_head",
           count="num_hidden_layers", **config):
    """text: the prefix of words and blocks; plain: everything else; part: the key of the language model's config."""
    sizes = {"vocab_size": VOCAB, "hidden_size": WIDTH, count: LAYERS}
    model = config | ({part: {"model_type": text_type} | sizes} if part else sizes)
    return {"config": model, "fp8": below(f"{text}.{layers}", blocks), "plain": plain, "tables": [words if "." in words else f"{text}.{words}", head]}


def towers():
    vit, deep = below("vision_model.encoder.layers", VIT), below("visual.blocks", VIT)
    internvl = vit + ["mlp1.1", "mlp1.3"]
    clip = below("model.vision_tower.vision_tower.vision_model.encoder.layers", CLIP)
    siglip, whisper = below("vpm.encoder.layers", CLIP), below("audio_tower.layers", CLIP.replace("mlp.", ""))
    return {
        **{name: layout("language_model.model", internvl, "llm_config", model_type=name, head="language_model.lm_head")
           for name in ("internvl_chat", "h2ovl_chat", "NVLM_D", "skywork_chat", "eagle_chat", "sailvl", "points")},
        "mono_internvl": layout("language_model.model", ["mlp1.1", "mlp1.3"], "llm_config", "internlm2", "attention.wqkv attention.wo "
                                "feed_forward.w1 feed_forward.w2 feed_forward.w3", "tok_embeddings", model_type="internvl_chat",
                                head="language_model.output"),
        "qwen2_vl": layout("model", deep + ["visual.merger.mlp.0", "visual.merger.mlp.2"], model_type="qwen2_vl"),
        "qwen3_vl": layout("model.language_model", [f"model.{n}" for n in deep] + ["model.visual.merger.linear_fc1",
                           "model.visual.deepstack_merger_list.0.linear_fc1"], "text_config", "qwen3_vl_text", model_type="qwen3_vl"),
        "minicpmv": layout("llm.model", siglip + ["resampler.kv_proj", "resampler.attn.out_proj"], model_type="minicpmv", head="llm.lm_head"),
        "minicpmo": layout("llm.model", siglip + below("apm.layers", CLIP.replace("mlp.", "")) + below("tts.model.layers", LLAMA, 3)
                           + ["resampler.kv_proj", "audio_projection_layer.linear1", "tts.projector.linear1"], model_type="minicpmo",
                           head="llm.lm_head"),
        "ovis": layout("llm.model", below("visual_tokenizer.backbone.vision_model.encoder.layers", CLIP) + ["visual_tokenizer.head.0"],
                       "llm_config", model_type="ovis", head="llm.lm_head"),
        "phi3_v": layout("model", below("model.vision_embed_tokens.img_processor.vision_model.encoder.layers", CLIP)
                         + ["model.vision_embed_tokens.img_projection.0", "model.vision_embed_tokens.img_projection.2"], blocks=FUSED,
                         model_type="phi3_v"),
        "llava_llama": layout("model", clip + ["model.mm_projector.0", "model.mm_projector.2"], model_type="llava_llama"),
        "llava_qwen": layout("model", clip + ["model.mm_projector.0", "model.vision_resampler.mlp.0"], model_type="llava_qwen"),
        "bunny-qwen2": layout("model", clip + ["model.mm_projector.0"], model_type="bunny-qwen2"),
        "vila": layout("llm.model", below("vision_tower.vision_tower.vision_model.encoder.layers", CLIP) + ["mm_projector.layers.1",
                       "mm_projector.layers.3"], "llm_cfg", model_type="llava_llama", head="llm.lm_head", num_hidden_layers=LAYERS,
                       vocab_size=VOCAB),
        "cogvlm2": layout("model", below("model.vision.transformer.layers", "attention.query_key_value attention.dense mlp.fc1", 3)
                          + ["model.vision.linear_proj.dense_h_to_4h"], blocks=COGVLM, model_type="cogvlm2"),
        "glm-4v": layout("transformer.encoder", below("transformer.vision.transformer.layers", "attention.query_key_value mlp.fc1", 3)
                         + ["transformer.vision.linear_proj.dense_h_to_4h"], blocks=GLM, words="transformer.embedding.word_embeddings",
                         count="num_layers", model_type="chatglm", head="transformer.output_layer"),
        "deepseek_vl_v2": layout("language.model", below("vision.blocks", VIT, 3) + ["projector.layers.0", "projector.layers.2"],
                                 "language_config", "deepseek_v2", model_type="deepseek_vl_v2", head="language.lm_head"),
        "multi_modality": layout("language_model.model", below("vision_model.vision_tower.blocks", VIT) + ["aligner.layers.0",
                                 "gen_aligner.layers.0", "gen_head.output_mlp_projector", "gen_head.vision_head"], "language_config",
                                 "llama", model_type="multi_modality", head="language_model.lm_head"),
        "molmo": layout("model.transformer", below("model.vision_backbone.image_vit.transformer.resblocks", "attention.wq attention.wo", 3)
                        + ["model.vision_backbone.image_projector.w1", "model.vision_backbone.image_pooling_2d.wq"], blocks=MOLMO,
                        words="model.transformer.wte.embedding", layers="blocks", model_type="molmo", head="model.transformer.ff_out"),
        "kimi_vl": layout("language_model.model", below("vision_tower.encoder.blocks", KIMI) + ["multi_modal_projector.linear_1"],
                          "text_config", "deepseek_v3", model_type="kimi_vl", head="language_model.lm_head"),
        "ultravox": layout("language_model.model", whisper + ["multi_modal_projector.linear_1", "multi_modal_projector.linear_2"],
                           "text_config", "llama", model_type="ultravox", head="language_model.lm_head"),
        "qwen-vl": layout("transformer", below("transformer.visual.transformer.resblocks", RESBLOCK) + ["transformer.visual.attn_pool.kv_proj"],
                          blocks=QWEN1, words="wte", layers="h", model_type="qwen"),
        "qwen-audio": layout("transformer", below("transformer.audio.layers", CLIP.replace("mlp.", "")) + ["transformer.audio.proj"],
                             blocks=QWEN1, words="wte", layers="h", model_type="qwen"),
        "mplugowl3": layout("language_model.model", below("vision_model.encoder.layers", CLIP) + ["vision2text_model.linear1"],
                            model_type="mplugowl3", head="language_model.lm_head"),
        "keye": layout("model", below("visual.vision_model.encoder.layers", CLIP) + ["mlp_AR.linear_1", "mlp_AR.linear_2"],
                       model_type="Keye"),
        "dots_ocr": layout("model", below("vision_tower.blocks", VIT, 3) + ["vision_tower.merger.mlp.0"], model_type="dots_ocr"),
        "midashenglm": layout("decoder.model", below("audio_encoder.blocks", VIT) + ["audio_projector.net.0"], "text_config", "qwen2",
                              model_type="midashenglm", head="decoder.lm_head"),
        "step1v": layout("model", below("vision_model.transformer.resblocks", RESBLOCK) + ["vit_large_projector"], "text_config", "step3_text",
                         model_type="step3_vl"),
        "r_vl": layout("language_model.model", below("vision_tower.vision_tower.vision_model.encoder.layers", CLIP) + ["pre_mlp_proj",
                       "mm_mlp.0"], "text_config", "qwen3", model_type="R", head="language_model.lm_head"),
    }


def drafts():
    block = [f"self_attn.{n}_proj" for n in "qkvo"] + [f"mlp.{n}_proj" for n in ("gate", "up", "down")]
    inner = [f"model.layers.{LAYERS}.{n}" for n in [*block, "eh_proj", "shared_head.head"]]

    def draft(name, plain, **config):
        return layout("model", plain, model_type=name, num_nextn_predict_layers=1, **config)

    return {
        **{f"{name} draft": draft(name, inner) for name in ("deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa",
                                                           "bailing_moe", "step3p5", "pangu_ultra_moe", "minimax_m2")},
        **{f"{name} draft": draft(name, [f"mtp.{n}" for n in ["fc", *[f"layers.0.{n}" for n in block]]])
           for name in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "exaone_moe")},
        "mimo draft": draft("mimo", [f"model.mtp_layers.0.{n}" for n in [*block, "input_proj"]]),
        "mimo_v2_flash draft": draft("mimo_v2_flash", [f"model.mtp.layers.{i}.{n}" for i in range(LAYERS) for n in [*block, "eh_proj"]]),
        "longcat_flash draft": draft("longcat_flash", [f"model.mtp.layers.0.{n}" for n in ["eh_proj.linear", *block]]),
        "ernie4_5_moe draft": draft("ernie4_5_moe", [f"model.mtp_block.0.{n}" for n in block] + ["model.mtp_linear_proj.0"]),
        "nemotron_h draft": draft("nemotron_h", ["mtp.layers.0.eh_proj", "mtp.layers.0.mixer.q_proj", "mtp.layers.1.mixer.up_proj"]),
        "gemma4_assistant": layout("model", ["pre_projection", "post_projection", "masked_embedding.centroids"], "text_config",
                                   "gemma4_text", model_type="gemma4_assistant"),
    }


HEADS = {"ForSequenceClassification": ["score"], "ForTokenClassification": ["score"], "ForQuestionAnswering": ["qa_outputs"],
         "ForRewardModel": ["score.0", "score.2"], "ForProcessRewardModel": ["score.0", "score.2"], "ForTextEncoding": ["linear"],
         "ForRewardModelWithGating": ["regression_layer", "gating.layers.0", "gating.layers.2"], "ForRetrieval": ["custom_text_proj"],
         "ForSequenceEmbedding": ["embedding_head.0", "dense"], "ForCausalLMWithValueHead": ["v_head.summary"]}


def heads():
    return {f"{name} {suffix}": layout("model", plain, model_type=name, architectures=[name.capitalize() + suffix],
                                       head="lm_head" if "CausalLM" in suffix else "model.embed_tokens")
            for suffix, plain in HEADS.items() for name in ("llama", "qwen2", "qwen3", "mistral", "gemma2")}


def write(folder, made):
    tensors = {name: torch.randn(WIDTH, WIDTH) for name in made["fp8"] + made["plain"]}
    tensors |= {name: torch.randn(VOCAB, WIDTH) for name in made["tables"]}
    text = made["fp8"][0].rpartition(".0.")[0]
    for i in range(LAYERS):
        tensors[f"{text}.{i}.input_norm"] = torch.ones(WIDTH)
    tensors[text.rpartition(".")[0] + ".norm"] = torch.ones(WIDTH)
    folder.mkdir(parents=True)
    save_file({f"{name}.weight": t.bfloat16() for name, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(made["config"]))


def problem(binary, folder, made):
    """What is wrong with the plan of a layout; empty if it is right."""
    write(folder, made)
    command = [binary, "quantize", "--model", folder, "--out", folder / "out", "--dynamic", "--dry-run", "--json"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip()
    planned, wanted = set(json.loads(done.stdout)["modules"]), set(made["fp8"])
    return "".join(f" {what} {sorted(names)[:4]}" for what, names in (("in fp8:", planned - wanted), ("kept:", wanted - planned)) if names)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the tool: build/bin/fp8")
    binary, wrong = parser.parse_known_args()[0].binary, 0
    layouts = towers() | drafts() | heads()
    with tempfile.TemporaryDirectory() as work:
        for i, (name, made) in enumerate(layouts.items()):
            found = problem(binary, pathlib.Path(work) / str(i), made)
            wrong += bool(found)
            if found:
                print(f"wrong {name}: {found}")
    print(f"{len(layouts)} layouts: {len(layouts) - wrong} right, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
