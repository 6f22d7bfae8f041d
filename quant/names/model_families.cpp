// SPDX-License-Identifier: Apache-2.0
// The table of model families (model_names.h): data, read against transformers 5.23's classes and conversion_mapping.py
// and against vLLM's packed_modules_mapping. A type that the general rule gets right has its name here and no cells.
#include "fp8/quant/names/model_names.h"

namespace fp8::quant {
namespace {

/// Projections of a decoder under their usual names, words in model.embed_tokens, an lm_head: readers call all of them
/// as the file does.
constexpr Family kDecoders = {
    .model_types =
        "llama mistral ministral ministral3 mistral4 qwen2 qwen3 qwen2_moe qwen3_moe qwen3_next gemma gemma2 "
        "gemma3_text gemma4_text gemma4_unified_text vaultgemma phi phi3 olmo olmo2 olmo3 olmoe flex_olmo granite "
        "granite_swa cohere cohere2 cohere2_moe deepseek deepseek_v2 deepseek_v3 deepseek_v32 glm glm4 glm4_moe "
        "glm4_moe_lite glm_moe_dsa ernie4_5 ernie4_5_moe exaone4 exaone_moe smollm3 starcoder2 stablelm nemotron "
        "persimmon helium arcee apertus bitnet cwm diffllama doge dots1 jais2 minicpm3 nanochat seed_oss solar_open "
        "youtu internlm3 iquestcoder hunyuan_v1_dense hyperclovax afmoe axk1 bamba beam flint kolibri1 mellum "
        "mimo_v2_flash minimax_m3_vl_text longcat_flash lfm2 lfm2_moe jamba falcon_h1 zamba2 zaya moshi "
        "recurrent_gemma baichuan internlm internlm2 chatglm xverse orion aquila yi decilm jetmoe gpt_oss llama4_text "
        "aria_text bailing_moe nemotron_h kimi_linear muse_spark",
    .stable = true};

/// transformers 5.23's default of tie_word_embeddings is false for these.
constexpr std::string_view kUntied =
    "afmoe apertus arcee aria_text axk1 axk2 bailing_hybrid bamba beam bitnet blt codegen cwm dbrx deepseek_v2 "
    "deepseek_v3 deepseek_v32 deepseek_v4 diffllama doge dots1 dots3_note dots3_note_text emu3 exaone4 exaone_moe "
    "falcon_h1 flex_olmo flint fuyu git glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa gpt_neox gpt_oss gptj granite "
    "granitemoe granitemoe_swa granitemoehybrid granitemoeshared helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 "
    "hy_v4 hyperclovax inkling2_text inkling_text internlm3 iquestcoder jais2 jamba kimi_linear kolibri1 laguna llama "
    "llama4 llama4_text longcat_flash mamba2 mellum mimo_v2_flash minimax minimax_m2 minimax_m3_vl_text ministral "
    "ministral3 mistral mixtral mllama moshi moss_transcribe_diarize nanochat nemotron nemotron_h olmo olmo2 olmo3 "
    "olmo_hybrid olmoe persimmon phi phi3 phi4_multimodal phimoe qwen2 qwen2_moe qwen3 qwen3_5 qwen3_5_moe "
    "qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next qwen4_exp qwen4_exp_text reformer rembert rwkv seed_oss "
    "solar_open stablelm xlstm";

const std::vector<Family>& rows() {
  static const std::vector<Family> table = {
      kDecoders,
      {.model_types = "qwen3_5_text qwen3_5_moe_text",
       .fused = "in_proj_qkv+in_proj_z in_proj_b+in_proj_a",
       .stable = true},
      {.model_types = "olmo_hybrid", .fused = "q_proj+k_proj+v_proj+g_proj", .stable = true},
      {.model_types = "bailing_hybrid", .fused = "q_proj+k_proj+v_proj+b_proj"},
      {.model_types = "exaone", .fused = "c_fc_0+c_fc_1"},
      // Mixtures whose modules move on load
      {.model_types = "mixtral minimax minimax_m2", .renamed = "block_sparse_moe>mlp"},
      {.model_types = "phimoe", .renamed = "block_sparse_moe.gate>mlp.router block_sparse_moe>mlp"},
      {.model_types = "granitemoe granitemoeshared granitemoehybrid granitemoe_swa", .renamed = "router.layer>router"},
      {.model_types = "hunyuan_v1_moe", .routers = "gate.wg", .renamed = "gate.wg>gate"},
      {.model_types = "hy_v3", .renamed = "router.gate>gate shared_mlp>shared_experts"},
      {.model_types = "hy_v4", .others = "indexer.weights_proj", .renamed = "linear_gate>gate_proj"},
      {.model_types = "laguna", .renamed = "shared_expert>shared_experts"},
      {.model_types = "axk2", .renamed = "W_down>fc1 W_up>fc2 q_b_proj>q_gate_proj"},
      {.model_types = "lfm3", .renamed = "gate_proj>g_proj"},
      {.model_types = "deepseek_v4", .heads = "^head", .renamed = "ffn>mlp head>lm_head"},
      {.model_types = "dbrx", .routers = "router.layer"},
      {.model_types = "hrm_text",
       .split = "!attn.gqkv_proj>self_attn.gate_proj+self_attn.q_proj+self_attn.k_proj+self_attn.v_proj "
                "!mlp.gate_up_proj>mlp.gate_proj+mlp.up_proj"},
      {.model_types = "cohere_compass cohere_compass_text inkling_text qwen3_omni_moe_text"},
      {.model_types = "gemma3n_text",
       .outside = "altup_projections.* altup_unembed_projections.* per_layer_model_projection"},
      {.model_types = "glm5_next glm5_next_text",
       .renamed = "f_a_proj>forget_gate.f_a_proj f_b_proj>forget_gate.f_b_proj"},
      {.model_types = "inkling2 inkling2_text",
       .heads = "unembed",
       .towers = "visual. audio.",
       .built = "k_sconv.weight_proj v_sconv.weight_proj",
       .renamed = "unembed>lm_head visual>vision_tower audio>audio_tower"},
      {.model_types = "inkling_mm_model",
       .heads = "unembed",
       .towers = "visual. audio.",
       .cut = "mlp.w2_md",  // transformers renames its weight alone (5.23: conversion_mapping.py:244)
       .split = "!~mlp.w13_dn>mlp.gate_proj+mlp.up_proj",
       .built = "k_sconv.weight_proj v_sconv.weight_proj",
       .renamed = "unembed>lm_head visual>vision_tower audio>audio_tower w2_md>down_proj"},
      // Decoders with embeddings and heads of their own names
      {.model_types = "gpt_neox", .tied = "lm_head=gpt_neox.embed_in", .renamed = "embed_out>lm_head"},
      {.model_types = "gpt_neox_japanese", .tied = "embed_out=gpt_neox_japanese.embed_in"},
      {.model_types = "gpt2 gpt-sw3 openai-gpt imagegpt decision_transformer",
       .tied = "lm_head=wte lm_head=tokens_embed",
       .transposed = "c_attn q_attn c_proj c_fc"},
      {.model_types = "gpt_bigcode gpt_neo gptj codegen mpt", .tied = "lm_head=transformer.wte"},
      {.model_types = "bloom falcon RefinedWeb RefinedWebModel", .tied = "lm_head=transformer.word_embeddings"},
      {.model_types = "ctrl", .embeddings = "transformer.w", .tied = "lm_head=transformer.w"},
      {.model_types = "mamba mamba2 falcon_mamba", .tied = "lm_head=backbone.embeddings"},
      {.model_types = "rwkv", .heads = "^head", .tied = "head=rwkv.embeddings"},
      {.model_types = "opt", .tied = "lm_head=model.decoder.embed_tokens"},
      {.model_types = "biogpt", .tied = "output_projection=biogpt.embed_tokens"},
      {.model_types = "trocr", .tied = "output_projection=embed_tokens"},
      {.model_types = "xlm flaubert", .outside = "attentions. ffns.", .tied = "pred_layer.proj=transformer.embeddings"},
      {.model_types = "xlnet", .tied = "lm_loss=word_embedding"},
      {.model_types = "cpmant", .tied = "lm_head=cpmant.input_embedding"},
      {.model_types = "qwen4_exp qwen4_exp_text", .embeddings = "ngram_embedding."},
      {.model_types = "musicgen musicgen_melody musicgen_decoder musicgen_melody_decoder",
       .outside = "decoder.layers. text_encoder.encoder.block.",
       .embeddings = "embed_tokens.*",
       .heads = "lm_heads.*"},
      {.model_types = "zamba",
       .refused = "its layers share one transformer block, and transformers ties the weights without their scales "
                  "(modeling_zamba.py:857)"},
      {.model_types = "blt", .outside = "local_encoder. local_decoder. global_transformer. patcher."},
      {.model_types = "xglm xlstm"},
      // Encoders
      {.model_types = "bert big_bird megatron-bert ernie fnet layoutlm mra nystromformer roc_bert roformer squeezebert "
                      "tapas yoso deberta deberta-v2 rembert chinese_clip bert-generation",
       .outside = "embeddings.projection map_inputs_layer embedding_hidden_mapping_in",
       .embeddings = "rel_embeddings",
       .tied = "cls.predictions.decoder=word_embeddings lm_head.decoder=word_embeddings",
       .fused = "query+key+value"},
      {.model_types = "nomic_bert gte jina_embeddings_v3",
       .tied = "lm_head.decoder=word_embeddings cls.predictions.decoder=word_embeddings",
       .split =
           "attention.qkv_proj>self_attn.q_proj+self_attn.k_proj+self_attn.v_proj "
           "mlp.up_gate_proj>mlp.up_proj+mlp.gate_proj mixer.Wqkv>self_attn.q_proj+self_attn.k_proj+self_attn.v_proj "
           "attn.Wqkv>self_attn.q_proj+self_attn.k_proj+self_attn.v_proj",
       .renamed = "encoder.layers>layers encoder.layer>layers"},
      {.model_types =
           "roberta camembert xlm-roberta xlm-roberta-xl roberta-prelayernorm data2vec-text longformer mpnet xmod esm",
       .tied = "lm_head.decoder=word_embeddings",
       .fused = "query+key+value"},
      {.model_types = "ibert", .tied = "lm_head.decoder=word_embeddings", .others = "ibert.encoder."},
      {.model_types = "mobilebert",
       .outside = "embedding_transformation",
       .tied = "cls.predictions.decoder=word_embeddings",
       .cut = "cls.predictions.dense"},
      {.model_types = "albert", .tied = "predictions.decoder=word_embeddings"},
      {.model_types = "distilbert", .tied = "vocab_projector=word_embeddings"},
      {.model_types = "electra convbert",
       .outside = "generator_predictions.dense",
       .tied = "generator_lm_head=word_embeddings"},
      {.model_types = "funnel", .tied = "lm_head=word_embeddings"},
      {.model_types = "luke",
       .outside = "entity_predictions.transform.dense entity_embedding_dense",
       .tied = "lm_head.decoder=word_embeddings entity_predictions.decoder=entity_embeddings"},
      {.model_types = "modernbert modernbert-decoder", .tied = "decoder=tok_embeddings"},
      {.model_types = "modernvbert", .tied = "lm_head=tok_embeddings"},
      {.model_types = "neomme",
       .heads = "embedding_projection",
       .tied = "lm_head=word_embeddings unembedding_projection=embedding_projection"},
      {.model_types = "eurobert esmc perceiver"},
      {.model_types = "ultrabert", .tied = "head.decoder=embed_tokens"},
      {.model_types = "ultravbert", .tied = "lm_head=model.text_model.embed_tokens"},
      // Encoders with decoders
      {.model_types = "t5 mt5 longt5 umt5 switch_transformers pop2piano udop", .tied = "lm_head=shared"},
      {.model_types = "t5gemma2", .tied = "lm_head.out_proj=model.encoder.embed_tokens"},
      {.model_types = "t5gemma", .tied = "lm_head.out_proj=model.decoder.embed_tokens"},
      {.model_types = "bart mbart plbart mvp pegasus pegasus_x blenderbot blenderbot-small bigbird_pegasus led marian "
                      "m2m_100 nllb-moe florence2",
       .tied = "lm_head=shared"},
      {.model_types = "prophetnet xlm-prophetnet", .tied = "lm_head=prophetnet.word_embeddings"},
      {.model_types = "fsmt", .heads = "output_projection"},
      {.model_types = "seamless_m4t seamless_m4t_v2", .tied = "lm_head=shared"},
      // Vision
      {.model_types = "dinov2 dinov2_with_registers",
       .split = "!mlp.weights_in>mlp.gate_proj+mlp.up_proj",
       .renamed = "mlp.weights_out>mlp.down_proj"},
      {.model_types = "tipsv2",
       .split = "!mlp.w12>mlp.gate_proj+mlp.up_proj !attn.qkv>attention.q_proj+attention.k_proj+attention.v_proj"},
      {.model_types = "vit vit_msn vit_mae beit deit ijepa audio-spectrogram-transformer segformer swin swinv2 "
                      "donut-swin bit convnext convnextv2 cvt data2vec-vision efficientnet focalnet hgnet_v2 hiera "
                      "levit mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 poolformer pp_lcnet pvt pvt_v2 regnet "
                      "resnet swiftformer textnet dinov3_vit"},
      {.model_types = "clip clipseg metaclip_2 siglip siglip2 align altclip clip_text_model clip_vision_model "
                      "siglip_vision_model siglip_text_model",
       .outside = "text_model.transformation"},
      // Vision and language
      {.model_types =
           "llava llava_next llava_next_video llava_onevision vipllava video_llava aya_vision got_ocr2 internvl "
           "mistral3 pp_chart2table gemma3 paligemma aria fuyu mllama emu3 cohere2_vision deepseek_vl "
           "deepseek_vl_hybrid exaone4_5 gemma4 gemma4_unified gemma3n glm46v glm4v glm4v_moe glm_ocr glmga "
           "granite4_vision granite_docling idefics2 idefics3 smolvlm lfm2_vl lighton_ocr llama4 minicpm_ocr "
           "muse_glimmer ovis2 pp_formulanet video_llama_3 chameleon kimi_k25 pixtral perception_lm shieldgemma2",
       .towers = "connector. vision_embed_tokens projector. aligner. merger. video_tower. image_tower. embed_vision. "
                 "embed_audio. vision_embedder. vqmodel. vision_projection. layerwise_projectors. spatial_projectors."},
      {.model_types = "step3p7",
       .towers = "vit_large_projector",
       .renamed = "vit_large_projector>multi_modal_projector",
       .towers_stay = true},
      {.model_types = "qwen3_5 qwen3_5_moe minicpmv4_6 minicpmv4_7",
       .towers = "merger.",
       .fused = "in_proj_qkv+in_proj_z in_proj_b+in_proj_a"},
      {.model_types = "janus", .linears = "generation_aligner.", .towers = "aligner. vqmodel."},
      {.model_types = "diffusion_gemma",
       .refused = "the encoder's modules share the decoder's weights, and transformers ties weight without "
                  "weight_scale (modeling_diffusion_gemma.py:1467)"},
      {.model_types = "molmo2",
       .split = "self_attn.att_proj>self_attn.q_proj+self_attn.k_proj+self_attn.v_proj "
                "!mlp.ff_proj>mlp.up_proj+mlp.gate_proj",
       .built = "vision_tower. multi_modal_projector.",
       .fused = "wq+wk+wv",
       .renamed = "transformer.blocks>layers"},
      {.model_types = "qianfan_ocr",
       .towers = "mlp1. vision_model.",
       .split = "!attn.qkv>attention.q_proj+attention.k_proj+attention.v_proj",
       .built = "multi_modal_projector.",
       .renamed = "vision_model>vision_tower attn.proj>attention.projection_layer "
                  "mlp1.1>multi_modal_projector.linear_1 mlp1.3>multi_modal_projector.linear_2"},
      {.model_types = "unlimited_ocr",
       .towers = "sam_model. vision_model. projector.",
       .split = "!self_attn.qkv_proj>self_attn.q_proj+self_attn.k_proj+self_attn.v_proj",
       .renamed = "sam_model>vision_tower.sam_encoder vision_model>vision_tower.vision_encoder transformer>encoder "
                  "blocks>layers projector.layers>multi_modal_projector"},
      {.model_types = "deepseek_ocr2",
       .embeddings = "query_768 query_1024",
       .towers = "sam_model. qwen2_model. projector.",
       .renamed = "sam_model>vision_tower.sam_encoder blocks>layers "
                  "qwen2_model.model.model>vision_tower.vision_encoder projector.layers>multi_modal_projector"},
      {.model_types = "dots3_note",
       .towers = "audio_encoder. vision_encoder.",
       .built = "audio_tower. vision_tower.",
       .renamed = "audio_encoder>audio_tower vision_encoder>vision_tower"},
      {.model_types = "qwen2_5_omni qwen3_omni_moe", .outside = "thinker.model.layers. talker. token2wav. code2wav."},
      {.model_types = "evolla", .outside = "protein_encoder."},
      {.model_types = "idefics", .outside = "gated_cross_attn_layers.", .towers = "vision_model. perceiver_resampler."},
      {.model_types = "videoprism", .outside = "auxiliary_layers."},
      {.model_types = "nemo_speechlm",
       .outside = "perception. ctc_timestamp.",
       .split = "!attn.w_qkv>self_attn.q_proj+self_attn.k_proj+self_attn.v_proj"},
      {.model_types = "vibevoice", .outside = "diffusion_head."},
      {.model_types = "nemotron_h_omni NemotronH_Omni_Reasoning_V3",
       .towers = "mlp1. vision_model. sound_encoder. sound_projection.",
       .built = "vision_tower. multi_modal_projector. audio_tower.",
       .towers_stay = true},
      {.model_types = "ernie4_5_vl_moe",
       .towers = "vision_model. vision_tower. resampler_model.",
       .renamed = "spatial_linear.0>spatial_linear1 spatial_linear.2>spatial_linear2 "  // vLLM's names
                  "temporal_linear.0>temporal_linear1 temporal_linear.2>temporal_linear2"},
      {.model_types = "hunyuan_vl", .towers = "vit. vision_tower.", .renamed = "vit>vision_tower"},
      {.model_types = "qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen2_5_omni_thinker qwen3_omni_moe_thinker",
       .embeddings = "audio_bos_eos_token",
       .towers = "visual. audio_tower."},
      {.model_types = "cosmos3_edge cosmos3_omni",
       .towers = "^blocks. ^merger. ^deepstack_merger_list. ^patch_embed. visual. projector."},
      {.model_types = "hyperclovax_vision_v2",
       .towers = "vision_projector vision_projector.",
       .renamed = "vision_projector>projector"},
      {.model_types = "lfm3_vl", .towers = "vision_tower. multi_modal_projector.", .renamed = "gate_proj>g_proj"},
      {.model_types = "minimax_m3_vl",
       .towers = "patch_merge_mlp. multi_modal_projector. vision_tower.",
       .split = "gate_proj>gate_up_proj up_proj>gate_up_proj",
       .renamed = "block_sparse_moe>mlp patch_merge_mlp>multi_modal_projector"},
      {.model_types = "mistral_large4",
       .heads = "^output",
       .towers = "vision_encoder. vision_language_adapter. patch_merger.",
       .renamed = "vision_encoder>vision_tower vision_language_adapter>multi_modal_projector "
                  "patch_merger>multi_modal_projector output>lm_head gate>mlp.gate"},
      {.model_types = "paddleocr_vl", .towers = "visual. mlp_AR.", .renamed = "mlp_AR>projector"},
      {.model_types = "blip-2 instructblip instructblipvideo", .towers = "vision_model. qformer."},
      {.model_types = "blip",
       .heads = "text_decoder.cls.predictions.decoder",
       .tied = "text_decoder.cls.predictions.decoder=text_decoder.bert.embeddings.word_embeddings"},
      {.model_types = "git",
       .heads = "^output",
       .tied = "output=git.embeddings.word_embeddings",
       .towers = "image_encoder. visual_projection."},
      {.model_types = "kosmos-2 kosmos-2.5",
       .embeddings = "segment_emb",
       .tied = "text_model.lm_head=text_model.model.embed_tokens",
       .towers = "vision_model."},
      {.model_types = "pix2struct", .outside = "patch_projection", .heads = "decoder.lm_head"},
      {.model_types = "pi0",
       .outside = "gemma_expert. state_proj action_in_proj action_out_proj action_time_mlp_in action_time_mlp_out"},
      // Speech
      {.model_types = "whisper moonshine moonshine_streaming canary",
       .outside = "encoder.layers. encoder.subsampling.linear",
       .tied = "proj_out=model.decoder.embed_tokens"},
      {.model_types = "cohere_asr", .heads = "log_softmax.mlp.layer0", .renamed = "log_softmax.mlp.layer0>proj_out"},
      {.model_types = "speech_to_text", .tied = "lm_head=model.decoder.embed_tokens"},
      {.model_types = "speecht5",
       .outside = "feature_projection.projection",
       .embeddings = "pe_k",
       .tied =
           "text_decoder_postnet.lm_head=text_decoder_prenet.embed_tokens text_decoder_postnet.lm_head=embed_tokens"},
      {.model_types = "granite_speech granite_speech_plus",
       .outside = "encoder.",
       .embeddings = "rel_pos_emb",
       .towers = "projector."},
      {.model_types = "granite_speech5_ctc",
       .outside = "input_linear out_mid",
       .embeddings = "rel_pos_emb",
       .tied = "ctc_head=encoder.out"},
      {.model_types = "qwen2_audio audioflamingo3 musicflamingo glmasr voxtral voxtral_realtime qwen3_asr fun_asr_nano "
                      "moss_transcribe_diarize dia",
       .outside = "encoder.layers.",
       .towers = "audio_tower. multi_modal_projector."},
      {.model_types = "phi4_multimodal", .embeddings = "bias_values", .towers = "embed_tokens_extend."},
      {.model_types = "wav2vec2 wav2vec2-bert wav2vec2-conformer hubert data2vec-audio sew sew-d unispeech "
                      "unispeech-sat wavlm lasr_ctc parakeet_ctc",
       .outside =
           "feature_projection feature_projection.projection upsample.projection subsampling.linear subsampler."},
  };
  return table;
}

}  // namespace

const std::vector<Family>& model_families() { return rows(); }
std::string_view untied_types() { return kUntied; }

}  // namespace fp8::quant
