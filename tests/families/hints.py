# SPDX-License-Identifier: Apache-2.0
"""What the general rules of shrink.py cannot know: values for single model types."""

import shrink

# Types tested with another class than the auto maps' first.
CLASSES = {
    "musicgen": ("seq2seq", "MusicgenForConditionalGeneration"),  # the auto maps' class takes the config of its decoder
    "musicgen_melody": ("seq2seq", "MusicgenMelodyForConditionalGeneration"),
}

# Entries of the auto maps that are no model of their own, and what their parts are tested by.
NOT_MODELS = {"encoder-decoder", "speech-encoder-decoder", "vision-encoder-decoder", "timm_wrapper",
              "shieldgemma2",
              # read another model's cache in all of their layers; transformers 5.23 refuses to make such a config's layers
              "gemma4_assistant", "gemma4_unified_assistant"}

# Types whose code needs a package that set-up does not install: torchvision, which timm needs, has wheels for the CPU in
# PyTorch's own index alone; natten is built from source for CUDA.
NEEDS = {"fast_vlm": "timm", "gemma3n": "timm", "perception_lm": "timm", "dinat": "natten"}

# Arguments without which the default config cannot be made.
DEFAULTS = {}

BASE_VQ = {"channel_multiplier": [1, 1], "base_channels": 32, "num_res_blocks": 1, "latent_channels": 32}
TEXT_KINDS = ["sliding_attention", "full_attention"]
DOTS3 = {"num_key_value_heads": 4, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_q_lora_rank": 96,
         "swa_kv_lora_rank": 64, "swa_head_dim": 32, "swa_qk_nope_head_dim": 16, "swa_v_head_dim": 16}
VIBEVOICE_CODEC = {"downsampling_ratios": [2, 4], "depths": [1, 1, 1], "num_filters": 32, "hidden_size": 64}
ONE_KV = {"num_key_value_heads": 1, "head_dim": 16}
QWEN4_EXP = {"ple_embed_dim": 64, "ngram_vocab_size_base": 500, "split_ngram_parts": 2, "hc_lowrank": 32, "heads_per_ngram": 2,
             "layer_types": ["linear_attention", "indexed_attention"], "ple_layer_ids": [1], "eos_token_id": 2,
             "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 32, "indexer_budget": 8, "indexer_compress_ratio": 4}

# Rotary embeddings of three axes: the sections of a head of 16 must add up to 8, or to 4 where half of it is rotated.
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
HALF_MROPE = MROPE | {"mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}

PINPOINTS = [[64, 64], [64, 128], [128, 64]]
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
HINTS = {
    "nemo_speechlm": {"text_config": {"num_key_value_heads": 4}},
    "paligemma": {"text_config": {"num_key_value_heads": 1, "num_attention_heads": 4, "head_dim": 16}},
    "step3p7": {"text_config": {"sliding_window": 16}},
    "swin": {"image_size": 224, "patch_size": 4, "embed_dim": 96},
    "bit": {"hidden_sizes": [128, 256, 512, 1024]},
    "blip-2": {"image_token_index": 40, "num_query_tokens": 4},
    "instructblip": {"image_token_index": 40, "num_query_tokens": 4},
    "instructblipvideo": {"video_token_index": 40, "image_token_index": 40, "num_query_tokens": 4},
    "efficientnet": {"num_block_repeats": [1] * 7, "width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280},
    "llama4": {"vision_config": {"intermediate_size": 512, "projector_input_dim": 96, "projector_output_dim": 96,
                                 "vision_output_dim": 96, "image_size": 64}},
    "kosmos-2": {"latent_query_num": 4},
    "kyutai_speech_to_text": {"codec_config": {"codebook_size": 256, "hidden_size": 128, "upsample_groups": 128},
                              "codebook_vocab_size": 257, "num_codebooks": 4},
    "mobilebert": {"hidden_size": 128, "embedding_size": 64, "intra_bottleneck_size": 64, "true_hidden_size": 64,
                   "num_feedforward_networks": 2},
    "inkling_mm_model": {"vision_config": {"num_hidden_layers": 4},
                         "text_config": {"num_hidden_layers": 12, "layer_types": ["hybrid_sliding", "hybrid"] * 6,
                                         "mlp_layer_types": ["dense"] + ["sparse"] * 11}},
    "align": {"vision_config": {"image_size": 64, "num_block_repeats": [1] * 7, "depth_coefficient": 1.0, "width_coefficient": 1.0,
                                "hidden_dim": 1280}, "projection_dim": 320},
    "bamba": {"attn_layer_indices": [1]},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "topk_method": "greedy"},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "hunyuan_vl": {"text_config": {"head_dim": 16, "num_key_value_heads": 2, "rope_parameters": ROPE | {"mrope_section": [2, 2, 2, 2]}}},
    "cohere_compass": {"text_config": {"layer_types": TEXT_KINDS, "rope_parameters": {kind: ROPE for kind in TEXT_KINDS}}},
    "cohere_compass_text": {"layer_types": TEXT_KINDS, "rope_parameters": {kind: ROPE for kind in TEXT_KINDS}},
    "dots3_note_text": DOTS3,
    "dots3_note": {"text_config": DOTS3, "audio_config": {"adapter_input_size": 128, "adapter_out_dim": 64},
                   "vision_config": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2, "adapter_in_dim": 128,
                                     "adapter_out_dim": 64}},
    "llava_next": {"image_grid_pinpoints": PINPOINTS},
    "llava_next_video": {"image_grid_pinpoints": PINPOINTS},
    "llava_onevision": {"image_grid_pinpoints": PINPOINTS},
    "aria": {"projector_patch_to_query_dict": {16: 8}},
    "blt": {"encoder_hash_byte_group_vocab": 320, "encoder_hash_byte_group_size": [3, 4],
            "patcher_config": {"num_hidden_layers": 2}},
    "chameleon": {"vq_config": BASE_VQ, "vocabulary_map": {"<image>": 1, "IMGIMGBSZ": 2}},
    "cosmos3_edge": {"text_config": {"head_dim": 128}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}, "ffn_config": {"moe_top_k": 2}},
    "deepseek_ocr2": {"text_config": {"num_key_value_heads": 2, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
                                      "moe_intermediate_size": 96, "mlp_layer_types": ["dense", "sparse"]},
                      "vision_config": {"sam_config": {"downsample_channels": [64, 128], "output_channels": 64, "mlp_dim": 192,
                                                       "global_attn_indexes": [1], "window_size": 2}}},
    "dia": {"encoder_config": {"vocab_size": 320}, "decoder_config": {"num_channels": 3, "cross_hidden_size": 128},
            "delay_pattern": [0, 1, 2]},
    "granite_speech5_ctc": {"encoder_config": {"num_hidden_layers": 3}},
    "hgnet_v2": {"stage_in_channels": [48, 64, 128, 256], "stage_mid_channels": [16, 16, 32, 32],
                 "stage_out_channels": [64, 128, 256, 512], "stage_num_blocks": [1] * 4, "stage_numb_of_layers": [2] * 4},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 96}},
    "donut-swin": {"embed_dim": 96, "image_size": 224, "patch_size": 4},
    "swinv2": {"embed_dim": 96, "image_size": 224, "patch_size": 4},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "emu3": {"vq_config": BASE_VQ, "vocabulary_map": {"<image>": 1}},
    "ernie4_5_vl_moe": {"text_config": {"moe_intermediate_size": [96, 32], "head_dim": 16}},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "florence2": {"vision_config": {"depths": [1, 1, 1, 1], "embed_dim": [32, 32, 64, 64], "num_heads": [2, 2, 4, 4],
                                    "num_groups": [2, 2, 4, 4], "projection_dim": 64}},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 32, "hidden_size": 128},
                     "text_config": {"hidden_size": 128}},
    "gemma3n_text": {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "intermediate_size": 160,
                     "layer_types": TEXT_KINDS * 2, "activation_sparsity_pattern": [0.0] * 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "intermediate_size": 160},
    "granite4_vision": {"deepstack_layer_map": [[-1, 0]], "spatial_target_layers": [1], "downsample_rate": "2/4"},
    "hunyuan_v1_dense": {"head_dim": 16, "num_key_value_heads": 2},
    "hunyuan_v1_moe": {"head_dim": 16, "num_key_value_heads": 2, "num_experts": 4, "moe_topk": 2},
    "janus": {"vq_config": BASE_VQ | {"num_embeddings": 64}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 16},
    "ministral": {"head_dim": 16},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "moshi": {"audio_encoder_config": {"codebook_size": 256}, "audio_vocab_size": 256},
    "muse_spark": {"text_config": {"qk_scale_factor": 1.0},  # 5.5: a choice of one token
                   "audio_config": {"num_hidden_layers": 4, "hidden_sizes": [32, 32, 64, 64], "depths": [1, 1, 1, 1]}},
    "muse_glimmer": {"text_config": {"qk_scale_factor": 1.0}},
    "musicgen": {"audio_encoder": {"codebook_size": 256}, "decoder": {"num_codebooks": 2}},
    "musicgen_melody": {"audio_encoder": {"codebook_size": 256}},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "pi0": {"vlm_config": {"text_config": ONE_KV, "vision_config": {"vision_use_head": False}, "projection_dim": 64},
            "dit_config": ONE_KV | {"hidden_size": 96}, "chunk_size": 8},
    "pix2struct": {"vision_config": {"patch_embed_hidden_size": 768}},
    "perceiver": {"num_self_attends_per_block": 2, "d_latents": 96, "num_latents": 16, "image_size": 32,
                  "num_self_attention_heads": 4, "num_cross_attention_heads": 4, "train_size": [16, 16], "num_frames": 2,
                  "output_shape": [1, 2, 32, 32], "audio_samples_per_frame": 192},
    "qwen2_5_omni": {
        "thinker_config": {"text_config": {"rope_parameters": MROPE}, "audio_config": {"output_dim": 64},
                           "vision_config": {"out_hidden_size": 64, "fullatt_block_indexes": [1]}},
        "talker_config": {"rope_parameters": MROPE, "hidden_size": 96},
        "token2wav_config": {"dit_config": {"enc_channels": [32, 32, 32, 32, 96], "num_embeds": 320, "look_ahead_layers": [1],
                                            "look_backward_layers": [0]},
                             "bigvgan_config": {"upsample_initial_channel": 64, "upsample_rates": [3, 2],
                                                "upsample_kernel_sizes": [7, 4]}}},
    "qwen3_omni_moe": {
        "thinker_config": {"text_config": {"rope_parameters": MROPE}, "audio_config": {"output_dim": 64},
                           "vision_config": {"out_hidden_size": 64, "deepstack_visual_indexes": [0, 1]}},
        "talker_config": {"text_config": {"rope_parameters": MROPE, "hidden_size": 96, "head_dim": 16, "moe_intermediate_size": 128,
                                          "shared_expert_intermediate_size": 192},
                          "code_predictor_config": {"num_code_groups": 4, "hidden_size": 96}, "num_code_groups": 4,
                          "accept_hidden_layer": 1, "spatial_merge_size": 2},
        "code2wav_config": {"num_quantizers": 4, "num_key_value_heads": 4}},
    "qwen4_exp": {"text_config": QWEN4_EXP, "vision_config": {"out_hidden_size": 64}},
    "qwen4_exp_text": QWEN4_EXP,
    "reformer": {"is_decoder": False, "axial_pos_shape": [16, 14], "axial_pos_embds_dim": [32, 32],
                 "attn_layers": ["local", "lsh"], "num_buckets": 4, "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8},
    "wav2vec2-bert": {"vocab_size": 40},
    "wav2vec2-conformer": {"vocab_size": 40},
    "videoprism": {"text_config": {"hidden_size": 128}, "vision_config": {"image_size": 72, "num_frames": 4}},
    "vibevoice": {"audio_config": VIBEVOICE_CODEC, "semantic_model_config": VIBEVOICE_CODEC | {"hidden_size": 32}},
    "vibevoice_asr": {"acoustic_tokenizer_encoder_config": VIBEVOICE_CODEC, "acoustic_tokenizer_chunk_size": 1600,
                      "semantic_tokenizer_encoder_config": VIBEVOICE_CODEC | {"hidden_size": 32}},
    "voxtral": {"audio_config": {"intermediate_size": 512}, "audio_token_id": 40,
                "text_config": {"num_key_value_heads": 2, "head_dim": 16}},
    "voxtral_realtime": {"text_config": {"head_dim": 16}},
    "xmod": {"languages": ["en_XX", "fr_XX"], "default_language": "fr_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
}

# Variants TYPE@WORD: other sizes ("config") or another way to save ("save"). Sizes that coincide, as in real models, must
# not turn a projection into an embedding; transformers 5 can save the experts stacked, as it holds them.
VARIANTS = {
    "llama@coincident": {"config": {"vocab_size": 160, "max_position_embeddings": 64}},
    "bert@coincident": {"config": {"vocab_size": 160, "max_position_embeddings": 64}},
    "dinov2@swiglu": {"config": {"use_swiglu_ffn": True}},
    "mixtral@stacked": {"save": {"save_original_format": False}},
    "qwen3_moe@stacked": {"save": {"save_original_format": False}},
    "deepseek_v3@ragged": {"config": {"hidden_size": 256, "q_lora_rank": 128, "kv_lora_rank": 128}},
    "mixtral@wide-stacked": {"sizes": shrink.WIDE, "save": {"save_original_format": False}},
    **{f"{name}@wide": {"sizes": shrink.WIDE} for name in ("llama", "qwen3", "qwen3_moe", "mixtral", "llama4", "gemma3")},
    "ernie4_5_vl_moe@wide": {"sizes": shrink.WIDE},
    "qwen2_5_vl@wide": {"sizes": shrink.WIDE,
                        "config": {"text_config": {"rope_parameters": {"mrope_section": [4, 6, 6]}}}},  # of a head of 32
    **{f"{name}@{word}": {"class": ("labels", prefix + suffix), "config": {"num_labels": 2 if word == "answers" else 40}}
       for word, suffix, classes in (
           ("sequence", "ForSequenceClassification", {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma2": "Gemma2",
                                                      "mistral": "Mistral", "bert": "Bert", "roberta": "Roberta", "deberta-v2": "DebertaV2",
                                                      "modernbert": "ModernBert", "distilbert": "DistilBert", "electra": "Electra"}),
           ("token", "ForTokenClassification", {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "bert": "Bert", "roberta": "Roberta",
                                                "deberta-v2": "DebertaV2", "modernbert": "ModernBert", "gpt_neox": "GPTNeoX"}),
           ("answers", "ForQuestionAnswering", {"llama": "Llama", "qwen2": "Qwen2"}),
           ("embedding", "Model", {"llama": "Llama", "qwen3": "Qwen3", "bert": "Bert", "xlm-roberta": "XLMRoberta", "mpnet": "MPNet"}))
       for name, prefix in classes.items()},
}

# Stacked in the checkpoint, but read one by one as soon as they are quantized: transformers makes a ModuleList of them.
EXPERTS_ONE_BY_ONE = {"llama4", "llama4_text"}

# How large the random weights of a model with experts are (1: outputs as large as inputs). A router without training has
# no margin between its choices: the rounding of 8 bits then changes experts, which tells nothing about the checkpoint.
# Smaller weights leave the residual stream, and so the choices, more as they are.
EXPERTS_GAIN = 0.4
# And of models whose random attention is nearly a choice of one token (no division by the root of the head's size).
GAINS = {name: 0.5 for name in ("longt5", "mt5", "umt5", "pop2piano", "muse_spark", "olmo_hybrid", "nemotron", "speecht5", "granite",
                                "t5", "switch_transformers")}
GAINS |= {name: 0.5 for name in ("dia", "pix2struct", "udop", "granite4_vision", "minicpm_ocr", "minicpmv4_6",
                                 "minicpmv4_7", "lfm3_vl")}
GAINS |= {"nemotron": 0.3, "kolibri1": 0.7, "axk1": 0.3, "minimax_m3_vl_text": 0.3}

# Files that a class reads beside the checkpoint, and what torch saves in them.
FILES = {"qwen2_5_omni": {"spk_dict.pt": {}}}

# Types whose code mixes bf16 and float32 when weights are decompressed.
DTYPES = {"ctrl": "float32", "hy_v4": "float32"}

# Types with such rotary embeddings in their text part.
MROPE_TYPES = {
    "qwen2_vl": MROPE, "qwen2_5_vl": MROPE, "qwen2_5_omni_thinker": MROPE, "qwen3_vl": MROPE, "qwen3_vl_moe": MROPE,
    "qwen3_omni_moe_thinker": MROPE, "paddleocr_vl": MROPE, "glm4v": HALF_MROPE, "glm4v_moe": HALF_MROPE, "glm_ocr": HALF_MROPE,
    "glm46v": HALF_MROPE, "glmga": HALF_MROPE, "ernie4_5_vl_moe": MROPE | {"mrope_section": [3, 3, 2]},
    "qwen3_5": HALF_MROPE, "qwen3_5_moe": HALF_MROPE,
}


def of(name):
    """The hints for a model type or a variant, to be merged into its arguments in this order."""
    model_type = name.partition("@")[0]
    hints = [HINTS.get(model_type, {})]
    if model_type in MROPE_TYPES:
        hints.append({"text_config": {"rope_parameters": MROPE_TYPES[model_type]}})
    return [*hints, VARIANTS.get(name, {}).get("config", {})]
