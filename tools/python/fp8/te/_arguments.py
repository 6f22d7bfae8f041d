# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments, for all modules of fp8.te: what an argument of Transformer Engine asks for is done, or refused by name."""

import typing

import torch

HIGH = (torch.float32, torch.bfloat16, torch.float16)
# Of several processes, of CUDA, and of products that are not here: the values that ask for nothing.
_NOTHING: dict[str, tuple[typing.Any, ...]] = {
    **dict.fromkeys("""sequence_parallel skip_weight_param_allocation fuse_wgrad_accumulation delay_wgrad_compute fp8_output
        fp8_grad fp8_dpa fp8_mha save_original_input return_layernorm_output_gathered rotary_pos_interleaved ub_tp_comm_overlap ub_overlap_ag
        ub_overlap_rs ub_overlap_rs_dgrad ub_bulk_dgrad ub_bulk_wgrad""".split(), (False, None)),
    **dict.fromkeys("""tp_group get_rng_state_tracker rng_tracker_name parameters_split cp_group cp_global_ranks cp_stream inference_params
        core_attention_bias alibi_slopes qk_norm_type activation_params cu_seqlens_q cu_seqlens_kv cu_seqlens_q_padded cu_seqlens_kv_padded
        max_seqlen_q max_seqlen_kv""".split(), (None,)),
    "tp_size": (1,), "parallel_mode": (None, "row", "column"), "softmax_type": ("vanilla",), "core_attention_bias_type": ("no_bias",),
    "drop_path_rate": (0,), "set_parallel_mode": (False, True), "fast_zero_fill": (True, False), "pad_between_seqs": (None, False),
    "window_size": (None, (-1, -1)), "enc_dec_window_size": (None, (-1, -1))}
_IGNORED = {"layer_number", "seq_length", "micro_batch_size", "ub_name", "cp_comm_type"}  # they choose kernels and name buffers
_HINTS = {"fp8_dpa": "attention learns in fp8 from C++ alone"}


def refuse(where: str, found: typing.Mapping[str, typing.Any]) -> None:
    """Raises ValueError for the first that asks for something, TypeError for what is no argument."""
    for key, value in found.items():
        if key in _NOTHING:
            alone = key == "tp_group" and hasattr(value, "size") and value.size() == 1
            one_of(where, key, None if alone else value, *_NOTHING[key])
        elif key not in _IGNORED:
            raise TypeError(f"{where}: found an unexpected argument '{key}'")


def one_of(where: str, key: str, found: typing.Any, *allowed: typing.Any) -> None:
    said = f"a tensor of sizes {list(found.shape)}" if isinstance(found, torch.Tensor) else repr(found)
    expect(found in allowed, where, key, said, ", ".join(map(repr, allowed)) + (f"; {_HINTS[key]}" if key in _HINTS else ""))


def expect(holds: bool, where: str, key: str, found: typing.Any, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{where}: {key}: found {found}, allowed: {allowed}")


def sizes(where: str, **found: int) -> None:
    for key, size in found.items():
        expect(type(size) is int and 1 <= size <= 1 << 30, where, key, size, f"1 to {1 << 30}")
