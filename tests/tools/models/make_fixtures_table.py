# SPDX-License-Identifier: Apache-2.0
"""The rows of make_fixtures.py: a tiny config for each family and for what is peculiar to it.

A row's keys:
    type       model_type, where it is not the row's name up to the first dash
    model      the class, where it is not the one of AutoModelForCausalLM
    config     what differs from COMMON
    without    keys of COMMON that the family has not
    modern     config.json has rope_parameters as transformers 5 writes them, not rope_theta and rope_scaling
    flat       config.json has what is in text_config at its top
    hub, drop  keys of config.json that checkpoints on the hub have, or have not
    values     (pattern, mean, amplitude) of tensors, before VALUES
    more       {name: shape} of tensors that transformers does not store
    in_first   pattern of weights [.., in, out]
    controls   changes of the config that must change the logits (each number with a fraction is tried anyway)
    idle       numbers of the config that change nothing
    inert      pattern of tensors that change nothing, by the mathematics
    head, last_norm, adds_one: what makes logits larger
"""

# Epsilon and theta are not the defaults: whoever does not read them must fail.
COMMON = {
    "vocab_size": 48, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": None, "rms_norm_eps": 0.01, "layer_norm_eps": 0.01, "layer_norm_epsilon": 0.01, "norm_eps": 0.01,
    "norm_epsilon": 0.01, "rope_theta": 1000.0, "tie_word_embeddings": False,
}

HEAD = r"^(language_model\.)?(lm_head|embed_out|output)\.weight$"
LAST_NORM = (r"^(language_model\.)?(model|transformer|gpt_neox|model\.decoder)\."
             r"(norm|ln_f|final_layernorm|final_layer_norm|norm_f)\.weight$")
VALUES = [
    (r"e_score_correction_bias$", 0, 0.25),
    (r"sinks$", 0, 1.0),
    (r"(class_embedding|gate(_attn|_ffn)?)$", 0, 0.25),
    (r"(bias|\.b)$", 0, 0.125),
    (r"(norm\w*|ln_\w+|ln\w*|LayerNorm|layernorm\w*)(\.\d+)?\.weight$", 1, 0.25),
    (r"(embed\w*|wte|wpe|embeddings\w*)\.weight$", 0, 1.0),
]
ONE_ADDED = [(r"norm\w*\.weight$", 0, 0.25)]
GEMMA = ONE_ADDED + [("embed_tokens", 0, 0.125)]  # embeddings times 8
TIED = {"tie_word_embeddings": True}
CONV1D = r"c_(attn|proj|fc)\.weight$"
LEGACY = ("rope_theta", "rope_scaling", "partial_rotary_factor")
UNSCALED = {"rope_scaling": None}
UNSCALED_MODERN = {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}
SHORT_FACTOR = [1.0, 1.0, 1.25, 1.25, 1.5, 1.5, 1.75, 2.0]
LONG_FACTOR = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]
YARN = {"factor": 4.0, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 16}
MLA = {"num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
       "v_head_dim": 24}
MOE = {"first_k_dense_replace": 1, "moe_intermediate_size": 48, "n_routed_experts": 4, "n_shared_experts": 1,
       "num_experts_per_tok": 2, "routed_scaling_factor": 1.5}
GROUPED = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.0}
GPT_OSS = {"head_dim": 32, "intermediate_size": 96, "num_hidden_layers": 4, "num_local_experts": 4,
           "num_experts_per_tok": 2, "sliding_window": 16, "swiglu_limit": 1.0,
           "rope_scaling": YARN | {"rope_type": "yarn", "truncate": False}}
MPT_ATTENTION = {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
                 "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv": None,
                 "prefix_lm": False, "qk_ln": False, "softmax_scale": None}
SOFT_CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 20.0}

ROWS = {
    "llama": {},
    "mistral": {"config": {"sliding_window": None}},
    "qwen2": {"config": {"use_sliding_window": False} | TIED, "hub": {"sliding_window": 16}, "drop": ["layer_types"]},
    "qwen3": {"config": {"head_dim": 32}, "modern": True},
    "gemma2": {"config": {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 16} | SOFT_CAPS | TIED,
               "drop": ["layer_types"], "values": GEMMA, "adds_one": True,
               "controls": [{"attn_logit_softcapping": None}, {"final_logit_softcapping": None},
                            {"query_pre_attn_scalar": 32}, {"sliding_window": 64}]},
    "phi3": {"config": {"sliding_window": None}, "without": ["head_dim"], "drop": ["partial_rotary_factor"]},
    "gpt2": {"in_first": CONV1D, "config": TIED},

    "llama-llama3": {"config": {"num_hidden_layers": 2, "max_position_embeddings": 256, "rope_scaling": {
                         "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 32}},
                     "controls": [UNSCALED, {"rope_scaling": {
                         "rope_type": "linear", "factor": 8.0}}]},
    "llama-linear": {"config": {"num_hidden_layers": 2, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
                     "hub": {"rope_scaling": {"type": "linear", "factor": 4.0}}, "controls": [UNSCALED]},
    "llama-dynamic": {"config": {"num_hidden_layers": 2, "max_position_embeddings": 16,
                                 "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "controls": [UNSCALED]},
    "llama-yarn": {"config": {"num_hidden_layers": 2, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                               "original_max_position_embeddings": 16}},
                   "modern": True, "controls": [UNSCALED_MODERN]},
    "llama-bias": {"config": {"attention_bias": True, "mlp_bias": True, "rope_theta": 10000.0} | TIED,
                   "drop": ["rope_theta", "rope_scaling"], "inert": r"k_proj\.bias"},
    "llama4": {"type": "llama4_text", "modern": True, "in_first": r"experts\.(gate_up|down)_proj$",
               "config": {"num_hidden_layers": 4, "intermediate_size": 48, "intermediate_size_mlp": 96,
                          "num_local_experts": 4, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2,
                          "no_rope_layers": [1, 1, 1, 0], "attention_chunk_size": 16, "floor_scale": 8,
                          "attn_scale": 0.5},
               "controls": [{"attention_chunk_size": 64}, {"use_qk_norm": False}, {"attn_temperature_tuning": False},
                            {"no_rope_layers": [1, 1, 1, 1]}]},
    "mistral-window": {"config": {"sliding_window": 16}, "modern": True, "controls": [{"sliding_window": None}]},
    "mixtral": {"config": {"num_local_experts": 4, "sliding_window": None}},
    "mixtral-window": {"config": {"num_local_experts": 4, "num_hidden_layers": 2, "sliding_window": 16},
                       "controls": [{"sliding_window": None}]},
    "qwen2-window": {"config": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
                     "drop": ["layer_types"],
                     "controls": [{"use_sliding_window": False}, {"max_window_layers": 0}, {"max_window_layers": 2}]},
    "qwen2_moe": {"config": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
                             "shared_expert_intermediate_size": 80, "mlp_only_layers": [0],
                             "decoder_sparse_step": 1, "norm_topk_prob": False},
                  "drop": ["layer_types", "sliding_window", "max_window_layers"],
                  "controls": [{"norm_topk_prob": True}]},
    "qwen3_moe": {"config": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 32,
                             "mlp_only_layers": [], "decoder_sparse_step": 2, "norm_topk_prob": True,
                             "num_hidden_layers": 4},
                  "hub": {"num_experts": 4}, "drop": ["num_local_experts"], "controls": [{"norm_topk_prob": False}]},
    "gemma": {"config": {"head_dim": 32} | TIED, "values": GEMMA, "adds_one": True},
    "gemma3_text": {"config": {"head_dim": 32, "num_hidden_layers": 4, "query_pre_attn_scalar": 24,
                               "sliding_window": 16, "sliding_window_pattern": 2, "rope_local_base_freq": 100.0,
                               "layer_types": ["sliding_attention", "full_attention"] * 2} | TIED,
                    "hub": {"sliding_window_pattern": 2}, "drop": ["layer_types", "_sliding_window_pattern"],
                    "values": GEMMA, "adds_one": True,
                    "controls": [{"sliding_window": 64}, {"sliding_window_pattern": 4}, {"query_pre_attn_scalar": 32}]},
    "phi": {"config": {"partial_rotary_factor": 0.5, "qk_layernorm": False}, "inert": r"k_proj\.bias"},
    "phi-qknorm": {"config": {"partial_rotary_factor": 0.5, "qk_layernorm": True, "num_key_value_heads": 4},
                   "modern": True, "controls": [{"qk_layernorm": False}], "inert": r"k_layernorm\.bias"},
    "phi3-longrope": {"config": {"original_max_position_embeddings": 16, "sliding_window": None, "rope_scaling": {
                          "rope_type": "longrope", "short_factor": SHORT_FACTOR, "long_factor": LONG_FACTOR}},
                      "hub": {"rope_scaling": {"type": "longrope", "short_factor": SHORT_FACTOR,
                                               "long_factor": LONG_FACTOR}},
                      "without": ["head_dim"], "drop": ["partial_rotary_factor"],
                      "controls": [UNSCALED, {"original_max_position_embeddings": 64}]},
    "phi3-partial": {"config": {"partial_rotary_factor": 0.75, "sliding_window": None} | TIED,
                     "idle": ["partial_rotary_factor"],
                     "without": ["head_dim"], "controls": [{"partial_rotary_factor": 0.5}]},
    "phimoe": {"config": {"num_hidden_layers": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
                          "attention_bias": True, "lm_head_bias": True, "sliding_window": None,
                          "router_jitter_noise": 0.125, "rope_scaling": {
                              "rope_type": "longrope", "short_factor": SHORT_FACTOR, "long_factor": LONG_FACTOR,
                              "short_mscale": 1.25, "long_mscale": 1.5, "original_max_position_embeddings": 16}},
               "hub": {"rope_scaling": {
                   "type": "longrope", "short_factor": SHORT_FACTOR, "long_factor": LONG_FACTOR, "short_mscale": 1.25,
                   "long_mscale": 1.5, "original_max_position_embeddings": 16}},
               "idle": ["num_experts_per_tok"], "controls": [UNSCALED]},
    "gpt_neox": {"config": {"rotary_pct": 0.25, "rotary_emb_base": 1000.0, "use_parallel_residual": True},
                 "hub": {"rotary_pct": 0.25, "rotary_emb_base": 1000.0}, "drop": LEGACY,
                 "controls": [{"use_parallel_residual": False}]},
    "gpt_neox-serial": {"config": {"rotary_pct": 0.25, "rotary_emb_base": 1000.0, "use_parallel_residual": False},
                        "modern": True, "drop": ["rope_theta", "rotary_pct", "rotary_emb_base"],
                        "controls": [{"use_parallel_residual": True}]},
    "gptj": {"config": {"rotary_dim": 8}, "controls": [{"rotary_dim": 16}]},
    "opt": {"config": {"ffn_dim": 96, "word_embed_proj_dim": 64} | TIED, "inert": r"k_proj\.bias",
            "controls": [{"activation_function": "gelu"}]},
    "opt-350m": {"config": {"ffn_dim": 96, "word_embed_proj_dim": 32, "do_layer_norm_before": False} | TIED,
                 "inert": r"k_proj\.bias", "head": r"project_out"},
    "bloom": {"config": TIED},
    "bloom-post": {"config": {"hidden_size": 96, "n_head": 6, "apply_residual_connection_post_layernorm": True} | TIED,
                   "hub": {"n_embed": 96, "num_attention_heads": 6}, "drop": ["hidden_size", "n_head"],
                   "controls": [{"apply_residual_connection_post_layernorm": False}]},
    "falcon": {"config": {"multi_query": True, "parallel_attn": True, "new_decoder_architecture": False,
                          "ffn_hidden_size": 256} | TIED, "drop": ["num_kv_heads", "ffn_hidden_size"]},
    "falcon-40b": {"config": {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 96},
                   "modern": True, "drop": ["num_ln_in_parallel_attn"]},
    "falcon-rw": {"config": {"hidden_size": 96, "num_attention_heads": 6, "alibi": True, "multi_query": False,
                             "parallel_attn": False, "bias": True, "ffn_hidden_size": 96, "num_kv_heads": None} | TIED,
                  "drop": ["rope_theta", "rope_scaling", "num_kv_heads"], "controls": [{"alibi": False}]},
    "mpt": {"config": {"max_seq_len": 64} | TIED, "hub": {"attn_config": MPT_ATTENTION}},
    "mpt-clip": {"config": {"d_model": 96, "n_heads": 6, "max_seq_len": 64,
                            "attn_config": {"clip_qkv": 1.0, "softmax_scale": 0.5}} | TIED,
                 "hub": {"attn_config": MPT_ATTENTION | {"clip_qkv": 1.0, "softmax_scale": 0.5}}},
    "olmo": {"config": {"clip_qkv": 0.75}, "controls": [{"clip_qkv": None}]},
    "olmo2": {"modern": True},
    "olmoe": {"config": {"num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 48,
                         "norm_topk_prob": False, "clip_qkv": 0.75}, "modern": True,
              "controls": [{"norm_topk_prob": True}, {"clip_qkv": None}]},
    "granite": {"config": {"embedding_multiplier": 6.0, "attention_multiplier": 0.375, "residual_multiplier": 0.5,
                           "logits_scaling": 1.5} | TIED, "values": [("embed_tokens", 0, 0.25)]},
    "granitemoe": {"config": {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 48,
                              "embedding_multiplier": 6.0, "attention_multiplier": 0.375, "residual_multiplier": 0.5,
                              "logits_scaling": 1.5} | TIED, "values": [("embed_tokens", 0, 0.25)], "modern": True},
    "starcoder2": {"config": {"sliding_window": 16, "use_bias": True} | TIED, "inert": r"k_proj\.bias",
                   "controls": [{"sliding_window": None}]},
    "stablelm": {"config": {"partial_rotary_factor": 0.25, "use_qkv_bias": True}, "inert": r"k_proj\.bias"},
    "stablelm-parallel": {"config": {"partial_rotary_factor": 0.25, "use_parallel_residual": True,
                                     "qk_layernorm": True},
                          "modern": True},
    "cohere": {"config": {"logit_scale": 0.25, "use_qk_norm": False} | TIED},
    "cohere-qknorm": {"config": {"logit_scale": 0.25, "use_qk_norm": True} | TIED, "modern": True},
    "cohere2": {"config": {"num_hidden_layers": 4, "logit_scale": 0.25, "sliding_window": 16,
                           "sliding_window_pattern": 2} | TIED,
                "hub": {"sliding_window_pattern": 2}, "drop": ["layer_types"],
                "controls": [{"sliding_window": 64}, {"sliding_window_pattern": 4}]},
    "smollm3": {"config": {"no_rope_layers": [1, 0, 1]} | TIED, "modern": True, "drop": ["layer_types"],
                "controls": [{"no_rope_layers": [1, 1, 1]}]},
    "glm": {"config": {"partial_rotary_factor": 0.5, "attention_bias": True}},
    "glm4": {"config": {"partial_rotary_factor": 0.5, "attention_bias": True}, "modern": True},
    "glm4_moe": {"config": {"partial_rotary_factor": 0.5, "attention_bias": True, "moe_intermediate_size": 48,
                            "num_experts_per_tok": 2, "n_shared_experts": 1, "n_routed_experts": 4, "n_group": 1,
                            "topk_group": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
                            "use_qk_norm": False, "num_nextn_predict_layers": 0}},
    "glm4_moe-qknorm": {"config": {"partial_rotary_factor": 0.5, "attention_bias": True, "moe_intermediate_size": 48,
                                   "num_experts_per_tok": 2, "n_shared_experts": 1, "n_routed_experts": 4,
                                   "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
                                   "routed_scaling_factor": 2.5, "use_qk_norm": True, "norm_topk_prob": False,
                                   "num_nextn_predict_layers": 0},
                        "modern": True, "controls": [{"norm_topk_prob": True}]},
    "exaone4": {"config": {"num_hidden_layers": 4, "sliding_window": 16, "sliding_window_pattern": "LLLG",
                           "layer_types": ["sliding_attention"] * 3 + ["full_attention"]} | TIED,
                "controls": [{"sliding_window": 64}]},
    "nemotron": {"config": {"partial_rotary_factor": 0.5}, "values": ONE_ADDED, "adds_one": True},
    "deepseek_v2": {"config": MLA | MOE | {"q_lora_rank": None, "topk_method": "greedy", "norm_topk_prob": False},
                    "without": ["head_dim"], "drop": ["head_dim", "qk_head_dim"]},
    "deepseek_v2-grouped": {
        "config": MLA | MOE | GROUPED | {"topk_method": "group_limited_greedy", "norm_topk_prob": False,
                                         "rope_scaling": YARN | {"rope_type": "yarn", "mscale": 0.75,
                                                                 "mscale_all_dim": 0.5}},
        "hub": {"rope_scaling": YARN | {"type": "yarn", "mscale": 0.75, "mscale_all_dim": 0.5}},
        "without": ["head_dim"], "drop": ["head_dim", "qk_head_dim"],
        "controls": [UNSCALED, {"topk_method": "greedy"}, {"topk_group": 2}]},
    "deepseek_v3": {
        "config": MLA | MOE | GROUPED | {"norm_topk_prob": True, "num_nextn_predict_layers": 0,
                                         "rope_scaling": YARN | {"rope_type": "yarn", "mscale": 1.0,
                                                                 "mscale_all_dim": 1.0}},
        "hub": {"rope_scaling": YARN | {"type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0}},
        "without": ["head_dim"], "drop": ["head_dim", "qk_head_dim"],
        "controls": [UNSCALED, {"norm_topk_prob": False}, {"topk_group": 2}]},
    "gpt_oss": {"config": GPT_OSS, "modern": True, "in_first": r"experts\.(gate_up|down)_proj$",
                "drop": ["swiglu_alpha"], "inert": r"k_proj\.bias",
                "controls": [UNSCALED_MODERN, {"sliding_window": 64}, {"rope_parameters": YARN | {
                    "rope_type": "yarn", "truncate": True, "rope_theta": 1000.0}}]},
    "gpt_oss-mxfp4": {"config": GPT_OSS, "hub": {"quantization_config": {
                          "quant_method": "mxfp4", "modules_to_not_convert": [
                              "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                              "lm_head"]}},
                      "drop": ["swiglu_alpha"], "inert": r"k_proj\.bias",
                      "controls": [UNSCALED, {"sliding_window": 64}]},
    "hunyuan_v1_dense": {"config": {"head_dim": 32, "rope_scaling": {
                             "rope_type": "dynamic", "alpha": 100.0, "factor": 1.0}} | TIED,
                         "hub": {"rope_scaling": {"type": "dynamic", "alpha": 100.0, "factor": 1.0}},
                         "drop": ["eod_token_id"], "idle": ["factor"], "controls": [UNSCALED]},
    "hunyuan_v1_moe": {"config": {"num_experts": 4, "moe_topk": 2, "intermediate_size": 48, "num_hidden_layers": 2},
                       "hub": {"moe_topk": [2, 2]}, "drop": ["eod_token_id"], "modern": True},
    "ernie4_5": {"config": {"use_bias": False} | TIED},
    "ernie4_5_moe": {"config": {"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1,
                                "moe_layer_start_index": 1, "moe_layer_end_index": 2, "moe_layer_interval": 1,
                                "moe_intermediate_size": 48, "use_bias": False} | TIED, "modern": True,
                     "idle": ["moe_norm_min"]},
    "seed_oss": {"config": {"head_dim": 32, "attention_bias": True, "attention_out_bias": False},
                 "modern": True, "inert": r"k_proj\.bias"},
    "minimax_m2": {"config": {"head_dim": 32, "intermediate_size": 48, "num_local_experts": 4,
                              "num_experts_per_tok": 2, "rotary_dim": 16, "num_hidden_layers": 2},
                   "hub": {"rotary_dim": 16}, "drop": ["partial_rotary_factor"], "controls": [{"rotary_dim": 32}]},
    # Not built in: adding_a_family_test.cpp adds it.
    "arcee-added": {},
}

BERT = {"pad_token_id": 0, "type_vocab_size": 2, "tie_word_embeddings": True}
ROBERTA = BERT | {"pad_token_id": 1, "max_position_embeddings": 66, "bos_token_id": 0}
DISTILBERT = {"pad_token_id": 0, "hidden_dim": 96, "tie_word_embeddings": True}
ELECTRA = BERT | {"embedding_size": 32}
MODERNBERT = {"pad_token_id": 0, "num_hidden_layers": 4, "global_attn_every_n_layers": 2, "local_attention": 16,
              "global_rope_theta": 1000.0, "local_rope_theta": 100.0, "cls_token_id": 1, "sep_token_id": 2,
              "tie_word_embeddings": True}
MODERNBERT_HUB = {"global_rope_theta": 1000.0, "local_rope_theta": 100.0, "global_attn_every_n_layers": 2}
DEBERTA = {"pad_token_id": 0, "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm",
           "share_att_key": True, "pos_att_type": "p2c|c2p", "position_biased_input": False, "type_vocab_size": 0,
           "max_relative_positions": -1, "pooler_hidden_size": 64, "tie_word_embeddings": True}
T5 = {"d_ff": 96, "d_kv": 24, "num_layers": 2, "num_decoder_layers": 3, "relative_attention_num_buckets": 8,
      "relative_attention_max_distance": 16, "pad_token_id": 0, "decoder_start_token_id": 0}
T5_QUERIES = [(r"Attention\.q\.weight$", 0, 0.0625)]  # scores are not scaled
BART = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "pad_token_id": 1, "bos_token_id": 0,
        "decoder_start_token_id": 2, "tie_word_embeddings": True}
FEW = {"num_hidden_layers": 2}
DISTANCES = [{"relative_attention_max_distance": 12}]
LOCAL = [{"local_attention": 64}, {"global_attn_every_n_layers": 4}]
RELATIVE = [{"pos_att_type": "c2p"}, {"norm_rel_ebd": "none"}, {"max_relative_positions": 12}]

ENCODERS = {
    "bert": {"model": "BertForMaskedLM", "config": BERT},
    "roberta": {"model": "RobertaForMaskedLM", "config": ROBERTA},
    "distilbert": {"model": "DistilBertForMaskedLM", "config": DISTILBERT},
    "electra": {"model": "ElectraForMaskedLM", "config": ELECTRA},
    "modernbert": {"model": "ModernBertForMaskedLM", "config": MODERNBERT, "hub": MODERNBERT_HUB,
                   "without": ["rope_theta"],
                   "drop": ["layer_types", "rope_theta", "rope_scaling", "rope_local_base_freq"], "controls": LOCAL},
    "deberta-v2": {"type": "deberta-v2", "model": "DebertaV2ForMaskedLM", "config": DEBERTA,
                   "hub": {"pos_att_type": "p2c|c2p"}, "controls": RELATIVE},
    # Distances without buckets, projections of their own, words and positions of another width.
    "deberta-v2-own": {"type": "deberta-v2", "model": "DebertaV2ForMaskedLM",
                       "config": DEBERTA | FEW | {"share_att_key": False, "position_buckets": -1,
                                                  "max_relative_positions": 6, "norm_rel_ebd": "none",
                                                  "position_biased_input": True, "type_vocab_size": 2,
                                                  "embedding_size": 32},
                       "controls": [{"pos_att_type": "c2p"}, {"pos_att_type": "p2c"}]},
    # The convolution of the large ones, the head of the third version.
    "deberta-v2-conv": {"type": "deberta-v2", "model": "DebertaV2ForMaskedLM",
                        "config": DEBERTA | FEW | {"pos_att_type": "p2c", "conv_kernel_size": 3, "conv_act": "gelu",
                                                   "conv_groups": 2, "legacy": False},
                        "controls": [{"conv_act": "tanh"}, {"conv_kernel_size": 0}]},
    "xlm-roberta": {"type": "xlm-roberta", "model": "XLMRobertaForMaskedLM",
                    "config": ROBERTA | {"num_hidden_layers": 2}},
}
CLASSIFIERS = {
    "bert-classifier": {"model": "BertForSequenceClassification", "config": BERT | FEW},
    "roberta-classifier": {"model": "RobertaForSequenceClassification", "config": ROBERTA | FEW},
    "distilbert-classifier": {"model": "DistilBertForSequenceClassification",
                              "config": DISTILBERT | {"n_layers": 2}},
    "electra-classifier": {"model": "ElectraForSequenceClassification", "config": ELECTRA | FEW},
    "modernbert-classifier": {"model": "ModernBertForSequenceClassification",
                              "config": MODERNBERT | {"classifier_pooling": "mean"}, "modern": True,
                              "without": ["rope_theta"], "drop": [*MODERNBERT_HUB],
                              "controls": [{"classifier_pooling": "cls"}]},
    "deberta-v2-classifier": {"type": "deberta-v2", "model": "DebertaV2ForSequenceClassification",
                              "config": DEBERTA | FEW, "controls": RELATIVE},
}
BOTH = {
    "t5": {"values": T5_QUERIES, "model": "T5ForConditionalGeneration",
           "config": T5 | {"feed_forward_proj": "relu"} | TIED,
           "drop": ["scale_decoder_outputs", "dense_act_fn", "is_gated_act"], "controls": DISTANCES,
           "last_norm": r"decoder\.final_layer_norm\.weight"},
    # Its head is not tied, whatever transformers 5 stores.
    "t5-gated": {"values": T5_QUERIES, "model": "T5ForConditionalGeneration", "more": {"lm_head.weight": [48, 64]},
                 "config": T5 | {"feed_forward_proj": "gated-gelu"}, "hub": {"tie_word_embeddings": False},
                 "drop": ["scale_decoder_outputs", "dense_act_fn", "is_gated_act"], "controls": DISTANCES},
    "mt5": {"values": T5_QUERIES, "model": "MT5ForConditionalGeneration", "more": {"lm_head.weight": [48, 64]},
            "config": T5 | {"feed_forward_proj": "gated-gelu"}, "hub": {"tie_word_embeddings": False},
            "drop": ["scale_decoder_outputs", "dense_act_fn", "is_gated_act"], "controls": DISTANCES},
    "bart": {"model": "BartForConditionalGeneration", "config": BART,
             "last_norm": r"decoder\.layers\.1\.final_layer_norm\.weight"},
}
# Softmax does not see what a bias of the keys adds to all of a query's scores.
INERT = r"(key|k_lin|k_proj|pos_key_proj)\.bias$|^bert\.pooler|token_type_embeddings"
ENCODERS = {name: {"kind": "encoder", "inert": INERT, "last_norm": r"^(cls|lm_head|vocab|generator|head|mask_pred)\w*\."
                   r"(predictions\.transform\.LayerNorm\.|layer_norm\.|LayerNorm\.|norm\.)?weight$"} | row
            for name, row in ENCODERS.items()}
ROWS |= ENCODERS
ROWS |= {name: {"kind": "classifier", "inert": INERT, "idle": ["layer_norm_eps"]} | row
         | {"config": row["config"] | {"num_labels": 5}}
         for name, row in CLASSIFIERS.items()}
ROWS |= {name: {"kind": "both", "inert": INERT} | row for name, row in BOTH.items()}

# The language part of models that see, on text alone: the tower is there, as small as it gets.
TEXT = {key: COMMON[key] for key in (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "rms_norm_eps", "rope_theta")}
TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "image_size": 8, "patch_size": 4}
QWEN_TOWER = {"depth": 1, "embed_dim": 16, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 1, "patch_size": 4}
QWEN_IDS = {"image_token_id": 1, "video_token_id": 2, "vision_start_token_id": 0, "vision_end_token_id": 0}
MROPE = {"type": "mrope", "mrope_section": [2, 3, 3]}
SEEING = {
    "qwen2_vl": {"model": "Qwen2VLForConditionalGeneration", "flat": True, "hub": {"rope_scaling": MROPE},
                 "drop": ["layer_types"], "config": QWEN_IDS | {
        "text_config": TEXT | {"rope_scaling": MROPE}, "vision_config": QWEN_TOWER}},
    "qwen2_5_vl": {"model": "Qwen2_5_VLForConditionalGeneration", "modern": True, "config": QWEN_IDS | {
        "text_config": TEXT | {"rope_scaling": MROPE},
        "vision_config": {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4,
                          "out_hidden_size": 64, "fullatt_block_indexes": [0]}}},
    "llava": {"model": "LlavaForConditionalGeneration", "config": {
        "text_config": TEXT | {"model_type": "llama"}, "vision_config": TOWER | {"model_type": "clip_vision_model"},
        "image_token_index": 0}},
    "gemma3": {"model": "Gemma3ForConditionalGeneration", "values": GEMMA, "adds_one": True,
               "drop": ["_sliding_window_pattern"], "config": {
        "text_config": TEXT | {"head_dim": 32, "rope_local_base_freq": 100.0, "query_pre_attn_scalar": 24,
                               "sliding_window": 16,
                               "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "vision_config": TOWER | {"vision_use_head": False, "model_type": "siglip_vision_model"},
        "mm_tokens_per_image": 1, "image_token_index": 0} | TIED},
    "mllama": {"model": "MllamaForConditionalGeneration", "config": {
        "text_config": TEXT | {"cross_attention_layers": [1]}, "image_token_index": 0,
        "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_global_layers": 1,
                          "attention_heads": 2, "image_size": 8, "patch_size": 4, "max_num_tiles": 1,
                          "supported_aspect_ratios": [[1, 1]], "intermediate_layers_indices": [0],
                          "vision_output_dim": 32}}},
}
ROWS |= {name: {"inert": r"visi|visual|multi_modal|cross_attn"} | row for name, row in SEEING.items()}
