# SPDX-License-Identifier: Apache-2.0
"""Tiny configs: every size in a transformers config made small, by the name of its key."""

import re

# Sizes of the language part and of towers (vision, audio): different from each other wherever a model allows it, so
# that no shape is taken for another by chance. All widths are multiples of 32, for blocks of 32.
TEXT = {"width": 64, "inner": 160, "heads": 4, "kv": 2, "head": 16, "layers": 2, "vocab": 320, "positions": 224}
TOWER = {"width": 128, "inner": 192, "heads": 4, "kv": 4, "head": 32, "layers": 2, "vocab": 320, "positions": 224}
WIDE = {"width": 128, "inner": 256, "heads": 4, "kv": 2, "head": 32, "layers": 2, "vocab": 320, "positions": 224}  # blocks of 128
UNIFORM = {"width": 64, "inner": 128, "heads": 4, "kv": 4, "head": 16, "layers": 2, "vocab": 320, "positions": 224}

# (pattern of the whole key, the size it takes or a number). First match wins; sizes only ever shrink.
RULES = [
    (r"(type_vocab_size|num_labels|num_channels|in_channels|out_channels|hc_mult|n_langs)", None),
    (r"(vocab_size|.*_vocab_size|vocab_size_.*|codebook_size|num_embeddings|vocab_offset|unpadded_vocab_size)", "vocab"),
    (r"(max_.*position.*|n_positions|max_sequence_length|.*max_position_embeddings|seq_length|max_seq_len|n_ctx"
     r"|model_max_length|max_target_positions|max_.*_positions|context_length|block_size)", "positions"),
    (r"(num_experts_per_tok|num_experts_per_token|moe_topk|moe_top_k|moe_k|top_k|moe_num_experts_per_tok)", 2),
    (r"(n_group|topk_group|num_expert_group|n_groups)", 1),
    (r"(n_shared_experts|num_shared_experts|moe_num_shared_experts)", 1),
    (r"(.*num_.*experts|num_experts|n_routed_experts|moe_num_experts|num_local_experts|zero_expert_num)", 4),
    (r"(first_k_dense_replace|num_dense_layers|moe_layer_start_index)", 1),
    (r"(num_(nextn|mtp).*)", 0),
    (r"(.*layer_period|.*layer_offset|layers?_per_.*|.*_layer_interval|.*layer_step|.*every_n_layers)", None),
    (r"(.*num.*_layers|n_layers?|.*encoder_layers|.*decoder_layers|depth|layers|num_blocks|.*_depth|num_hidden_groups)",
     "layers"),
    (r"(num_key_value_heads|.*num_key_value_heads|num_kv_heads|kv_n_heads|num_query_groups)", "kv"),
    (r"(linear_num_(key|value)_heads)", 4),
    (r"(num_attention_heads|.*attention_heads|n_heads?|num_heads|.*_num_heads|resampler_heads|.*n_heads)", "heads"),
    (r"(qk_rope_head_dim|qk_nope_head_dim|v_head_dim)", 16),
    (r"(qk_head_dim)", 32),
    (r"(head_dim|.*head_dim|d_kv|dim_head|kv_channels|attention_head_size|d_head)", "head"),
    (r"(q_lora_rank)", 96),
    (r"(kv_lora_rank)", 32),
    (r"(mamba_d_state|state_size|ssm_state_size)", 16),
    (r"(rotary_dim)", 8),
    (r"(.*intermediate.*size.*|.*ffn_dim|ffn_hidden_size|dff|d_ff|dim_ff|mlp_dim|.*linear_units|expert_ffn_hidden_size"
     r"|feed_forward_size|share_expert_dim)", "inner"),
    (r"(patch_size|encoder_stride)", 16),
    (r"(mm_tokens_per_image)", 4),
    (r"(image_size|crop_size)", 64),
    (r"(num_conv_pos_embeddings)", 16),
    (r"(num_conv_pos_embedding_groups)", 4),
    (r"(max_source_positions)", 60),
    (r"(sliding_window.*|attention_window.*|local_attention|attention_chunk_size)", 16),
    (r"(window_size)", 64),
    (r"(.*hidden_size|hidden_size_.*|d_model|n_embd|.*embed_dim|embedding_size|.*_dim|.*projection.*|emb_dim|dim"
     r"|embedding_dim|lru_width|.*proj_size|.*hidden_dim|.*embedding_size)", "width"),
]
RULES = [(re.compile(pattern), size) for pattern, size in RULES]
TOWERS = re.compile(r"vision|visual|audio|image|speech|encoder_config|backbone|qformer|acoustic|perceiver|vq_|vit")
TOKEN = re.compile(r".*(token_id|token_index|_token_ids?|(bos|eos|pad|unk|mask|sep|cls)_(index|id))")
TOKEN_KEYS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
EXPERTS = re.compile(r"expert|n_group|topk_group")


def sizes_of(path, uniform):
    """`uniform`: one set of sizes for all parts (a dictionary, or True for UNIFORM)."""
    if uniform:
        return uniform if isinstance(uniform, dict) else UNIFORM
    return TOWER if TOWERS.search(path) and "text" not in path else TEXT


class Tokens:
    """Small token ids: the special ids of one model, all different."""

    def __init__(self):
        self.ids = {}

    def __getitem__(self, key):
        return self.ids.setdefault(key, len(self.ids) + 1)


def shrink_value(key, value, sizes, tokens):
    """The small value of an integer, or None where it stays."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if TOKEN.fullmatch(key):
        return tokens[key] if value >= 0 else None
    for pattern, size in RULES:
        if pattern.fullmatch(key):
            small = sizes.get(size, size)
            return small if isinstance(small, int) and small < value else None
    return None


def shrink_stages(key, value):
    """Stages of a pyramid: one block each, the first 64 wide and the others in proportion; None where it stays."""
    if not isinstance(value, (list, tuple)) or len(value) < 2 or not all(type(item) is int for item in value):
        return None
    if key in ("depths", "num_block_repeats"):
        return [1] * len(value)
    if key in ("hidden_sizes", "embed_dims") and value[0] > 64:
        small = [item * 64 // value[0] for item in value]
        return small if all(item % 32 == 0 for item in small) else None
    return None


def cut_layers(kinds):
    """The first layer of each kind, at least two layers, in the order of their first appearance."""
    chosen = []
    for kind in kinds:
        if kind not in chosen:
            chosen.append(kind)
    return (chosen + list(kinds))[:max(2, len(chosen))]


def shrink(config, path="", uniform=False, tokens=None):
    """Keyword arguments that make a small config of the class of `config`; sub-configs are dictionaries."""
    tokens = tokens or Tokens()
    sizes = sizes_of(path, uniform)
    fields = getattr(type(config), "__dataclass_fields__", {})
    result = {}
    for key, value in vars(config).items():
        if key.startswith("_"):
            continue
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            result[key] = {"model_type": value.model_type, **shrink(value, f"{path}.{key}", uniform, tokens)}
            continue
        given = key in fields and fields[key].default is not None
        if key == "layer_types" or key == "layers_block_type":
            result[key] = cut_layers(value) if value else value
            continue
        if key not in fields and not EXPERTS.search(key) and key not in TOKEN_KEYS:
            continue
        if not given and not TOKEN.fullmatch(key) and not EXPERTS.search(key):
            continue  # derived from other keys by the class
        if isinstance(value, list) and value and TOKEN.fullmatch(key):
            result[key] = tokens[key]
            continue
        small = shrink_stages(key, value) or shrink_value(key, value, sizes, tokens)
        if small is not None:
            aliases = [alias for alias, name in (type(config).attribute_map or {}).items() if name == key and alias in fields]
            result.update({name: small for name in (key, *aliases)})  # an alias with a default would win over the name
    layers = result.get("layer_types") or result.get("layers_block_type")
    if layers:
        for key in ("num_hidden_layers", "num_layers", "n_layer"):
            if key in result or key in fields:
                result[key] = len(layers)
                break
    return result
