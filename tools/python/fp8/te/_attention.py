# SPDX-License-Identifier: Apache-2.0
"""Attention, which stays in high precision inside of fp8_autocast but where it is asked to be in fp8, and layers around it, whose
products are in fp8 there.

    >>> import torch, fp8
    >>> layer = fp8.te.TransformerLayer(64, 256, 4, num_gqa_groups=2, activation="swiglu", normalization="RMSNorm", fuse_qkv_params=True)
    >>> with fp8.te.fp8_autocast(True, fp8_recipe="nvidia"):
    ...     loss = layer(torch.randn(16, 2, 64).to("hpu")).square().mean()    # [length, batch, hidden]
    >>> loss.backward()"""

import functools
from typing import Any, Iterable, cast

import torch
from torch.nn import functional as F  # noqa: N812

from fp8._trainers import expect
from fp8.te import _attached, _layers, _region
from fp8.te._layers import one_of, refuse, sizes

Tensor = torch.Tensor | None
Window = tuple[int, int] | None
_DOT, _MHA, _LAYER = "te.DotProductAttention", "te.MultiheadAttention", "te.TransformerLayer"
_OF_WEIGHTS, _OF_NORMS = ("init_method", "output_layer_init_method", "bias", "minimize_memory"), ("normalization", "zero_centered_gamma")
_SHARED = (*_OF_WEIGHTS, *_OF_NORMS, "params_dtype", "device")  # of a layer, its attention and its MLP
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded", "max_seqlen_q", "max_seqlen_kv")


def _without(found: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in names}


def _one_with(where: str, key: str, found: Any, needed: bool, by: str, kind: str) -> None:
    if (found is not None) != needed:
        expect(False, where, key, None if needed else "one", f"{'one' if needed else None} with {by} {kind!r}")


def rotary_position_embedding(dim: int, positions: int, base: float = 10000.0, device: Any = "hpu") -> torch.Tensor:
    """Angles for rotary_pos_emb, [positions, 1, 1, dim]: position * base^(-2 i / dim) for i < dim / 2, twice."""
    expect(dim >= 2 and dim % 2 == 0, "rotary_position_embedding", "dim", dim, "even numbers >= 2")
    return torch.ops.fp8.rotary_angles(dim, positions, base, torch.device(device))


@_region.unseen
def _attend(operator: Any, *args: Any) -> torch.Tensor: return operator._op(*args)  # by itself torch looks for a tracer's objects in all


class FusedAttention(torch.nn.Module):
    """Habana's, in fp8 inside of fp8_autocast, its gradients too. q, k, v: [batch, heads, length, depth]; attention_mask: bool (True: seen)
    or added; softmax_mode: "None", "fast". enable_recompute: backward computes the softmax again instead of keeping it. name: in messages."""

    def __init__(self, scale: float | None = None, attention_dropout: float = 0.0, enable_recompute: bool = False,
                 name: str = "fused_attention") -> None:
        super().__init__()
        expect(0 <= attention_dropout <= 1, "te.FusedAttention", "attention_dropout", attention_dropout, "0 to 1")
        self.scale, self.attention_dropout, self.enable_recompute = scale, attention_dropout, enable_recompute
        self._state = torch.classes.fp8.State(name, attention=True)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attention_mask: Tensor = None, is_causal: bool = False,
                softmax_mode: str = "None") -> torch.Tensor:
        return _attend(torch.ops.fp8.fused_attention, q, k, v, attention_mask, is_causal, softmax_mode, self.attention_dropout, self.scale,
                       self.enable_recompute, self.training, self._state)

    def get_extra_state(self) -> torch.Tensor: return _attached.filled(bytes(self._state.bytes().tolist()))

    def set_extra_state(self, state: torch.Tensor) -> None:
        if state.numel() > 0:  # other libraries write none where they have nothing to say
            self._state.set_bytes(state)


class DotProductAttention(torch.nn.Module):
    """softmax(scale q k^T) v. query_layer: "sbhd" [length, batch, heads, kv_channels], "bshd" [batch, length, ...], or packed sequences "thd"
    [rows, heads, kv_channels]; key_layer, value_layer: with num_gqa_groups heads. attention_mask: bool, True where a key is masked out,
    [batch, 1, 1, keys] of padding, else [batch, heads, queries, keys]. window_size: query i sees keys i + d - first to i + d + second, -1: no
    limit; d: 0 for causal masks from the top left, else the sequence's keys less its queries. fp8_dpa: in fp8 inside of fp8_autocast."""

    def __init__(self, num_attention_heads: int, kv_channels: int, num_gqa_groups: int | None = None, attention_dropout: float = 0.0,
                 qkv_format: str = "sbhd", attn_mask_type: str = "causal", window_size: Window = None, *, softmax_scale: float | None = None,
                 attention_type: str = "self", fp8_dpa: bool = False, name: str = "attention", **nothing: Any) -> None:
        super().__init__()
        refuse(_DOT, nothing)
        one_of(_DOT, "attention_type", attention_type, "self", "cross")
        self.num_attention_heads, self.num_gqa_groups, self.kv_channels = num_attention_heads, num_gqa_groups or num_attention_heads, kv_channels
        self.attention_dropout, self.softmax_scale, self.window_size = attention_dropout, softmax_scale, window_size or (-1, -1)
        self.qkv_format, self.attn_mask_type, self.attention_type = qkv_format, attn_mask_type, attention_type
        torch.ops.fp8.check_attention(*self._options(attn_mask_type), fp8_dpa)
        self.fused_attention = FusedAttention(softmax_scale, attention_dropout, True, name) if fp8_dpa else None

    def _options(self, kind: str, window: Window = None) -> tuple[Any, ...]:
        return (self.num_attention_heads, self.num_gqa_groups, self.kv_channels, self.qkv_format, kind, self.attention_dropout,
                self.softmax_scale, window or self.window_size)

    def forward(self, query_layer: torch.Tensor, key_layer: torch.Tensor, value_layer: torch.Tensor, attention_mask: Tensor = None, *,
                cu_seqlens_q: Tensor = None, cu_seqlens_kv: Tensor = None, cu_seqlens_q_padded: Tensor = None, cu_seqlens_kv_padded: Tensor = None,
                max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None, attn_mask_type: str | None = None, window_size: Window = None,
                checkpoint_core_attention: bool = False, **nothing: Any) -> torch.Tensor:
        """The heads' results side by side. cu_seqlens_q, cu_seqlens_kv: [sequences + 1], the sums of their lengths from 0, of "thd", and in
        place of a padding mask; _padded: where each begins, with rows of none between; max_seqlen_*: none is longer. attn_mask_type,
        window_size: instead of the module's. checkpoint_core_attention: computed again in backward."""
        refuse(_DOT, nothing)
        run: Any = functools.partial(_region.checkpoint, _attend, use_reentrant=False) if checkpoint_core_attention else _attend
        return run(torch.ops.fp8.dot_product_attention, query_layer, key_layer, value_layer, attention_mask,
                   *self._options(attn_mask_type or self.attn_mask_type, window_size), cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded,
                   cu_seqlens_kv_padded, max_seqlen_q, max_seqlen_kv, self.training, self.fused_attention and self.fused_attention._state)


class MultiheadAttention(torch.nn.Module):
    """proj(attention(q, k, v)). With fuse_qkv_params one weight makes q, k and v, rows [groups, heads / groups + 2, depth] with
    qkv_weight_interleaved, else [heads, depth], [groups, depth], [groups, depth]; without, each has its own. attention_type "cross": k and v
    are of encoder_output. forward gives y, or with return_bias and return_layernorm_output (y without the bias, the bias, the norm).
    window_size, fp8_dpa: of DotProductAttention. options: as in TransformerLayer."""
    layernorm: Any

    def __init__(self, hidden_size: int, num_attention_heads: int, kv_channels: int | None = None, attention_dropout: float = 0.1,
                 layernorm_epsilon: float = 1e-5, *, attn_mask_type: str = "causal", window_size: Window = None, num_gqa_groups: int | None = None,
                 return_bias: bool = False, return_layernorm_output: bool = False, input_layernorm: bool = False, attention_type: str = "self",
                 fuse_qkv_params: bool = False, qkv_weight_interleaved: bool = True, qkv_format: str = "sbhd", fp8_dpa: bool = False,
                 name: str | None = None, **options: Any) -> None:
        super().__init__()
        refuse(_MHA, _without(options, _SHARED))
        sizes(_MHA, hidden_size=hidden_size, num_attention_heads=num_attention_heads)
        expect(bool(kv_channels) or hidden_size % num_attention_heads == 0, _MHA, "num_attention_heads", num_attention_heads,
               f"divisors of hidden_size = {hidden_size} without kv_channels")
        expect(input_layernorm or not return_layernorm_output, _MHA, "return_layernorm_output", True, "False without input_layernorm")
        name, depth = name or "self_attention", kv_channels or hidden_size // num_attention_heads
        core = DotProductAttention(num_attention_heads, depth, num_gqa_groups, attention_dropout, qkv_format, attn_mask_type, window_size,
                                   attention_type=attention_type, fp8_dpa=fp8_dpa, name=f"{name}.core_attention")
        self.return_bias, self.return_layernorm_output, self._interleaved = return_bias, return_layernorm_output, qkv_weight_interleaved
        last_init, linear, groups = options.pop("output_layer_init_method", None), _without(options, _OF_NORMS), core.num_gqa_groups
        heads = {"query_layer": num_attention_heads, "key_layer": groups, "value_layer": groups}
        if fuse_qkv_params:
            cross = {"query_layer": num_attention_heads, "key_value": 2 * groups}
            heads = cross if attention_type == "cross" else {"qkv": num_attention_heads + 2 * groups}
        first = next(iter(heads))
        if input_layernorm and attention_type == "self" and first != "qkv":
            self.layernorm = _layers.norm(_MHA, hidden_size, layernorm_epsilon, **_without(options, _OF_WEIGHTS))
        elif input_layernorm:
            part = f"layernorm_{first.removesuffix('_layer')}"
            self.add_module(part, _layers.LayerNormLinear(hidden_size, heads.pop(first) * depth, layernorm_epsilon, return_layernorm_output=True,
                                                          name=f"{name}.{part}", **options))
        for part, count in heads.items():
            self.add_module(part, _layers.Linear(hidden_size, count * depth, name=f"{name}.{part}", **linear))
        self._parts = [part for part in self._modules if part != "layernorm"]
        self.core_attention = core
        self.proj = _layers.Linear(num_attention_heads * depth, hidden_size, return_bias=return_bias, name=f"{name}.proj",
                                   **{**linear, "init_method": last_init})

    def forward(self, hidden_states: torch.Tensor, attention_mask: Tensor = None, encoder_output: Tensor = None, *,
                is_first_microbatch: bool | None = None, rotary_pos_emb: Tensor = None, **core: Any) -> _layers.Results:
        """rotary_pos_emb: angles of rotary_position_embedding(), by which q and k are turned. core: of DotProductAttention's forward."""
        attention = self.core_attention
        kind = attention.attention_type
        _one_with(_MHA, "encoder_output", encoder_output, kind == "cross", "attention_type", kind)
        with _region.microbatch(is_first_microbatch):
            q, k, v, normal = self._projected(hidden_states, hidden_states if encoder_output is None else encoder_output)
            if rotary_pos_emb is not None:
                expect(kind == "self", _MHA, "rotary_pos_emb", "one", "None with attention_type 'cross'")
                lengths = core.get("cu_seqlens_q"), core.get("cu_seqlens_q_padded")
                q, k = (torch.ops.fp8.rotated(t, rotary_pos_emb, attention.qkv_format, *lengths) for t in (q, k))
            y = self.proj(attention(q, k, v, attention_mask, **core))
        asked = [*(y if self.return_bias else [y]), *[normal] * self.return_layernorm_output]
        return tuple(asked) if len(asked) > 1 else asked[0]

    def _projected(self, x: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """q, k, v and norm(x)."""
        if "layernorm" in self._modules:
            x = source = self.layernorm(x)
        parts: list[Any] = [self._modules[part] for part in self._parts]
        y = parts[0](x)
        y, normal = y if isinstance(y, tuple) else (y, x)
        projected, core = [y, *[part(source) for part in parts[1:]]], self.core_attention
        return *torch.ops.fp8.heads(projected, core.num_attention_heads, core.num_gqa_groups, core.kv_channels, self._interleaved), normal


class TransformerLayer(torch.nn.Module):
    """x + drop(attention(norm(x))), after a decoder's attention to encoder_output, and h + drop(mlp(norm(h))).

    parallel_attention_mlp: x + drop(attention(norm(x)) + mlp(norm(x))); apply_residual_connection_post_layernorm: norm(x) takes the place of x in
    every sum; output_layernorm: norm(y), and none before the self attention; window_size, enc_dec_window_size, fp8_dpa: of DotProductAttention.
    options: init_method, output_layer_init_method, bias, minimize_memory, normalization, zero_centered_gamma, params_dtype, device."""
    layernorm: Any

    def __init__(self, hidden_size: int, ffn_hidden_size: int, num_attention_heads: int, num_gqa_groups: int | None = None,
                 layernorm_epsilon: float = 1e-5, hidden_dropout: float = 0.1, attention_dropout: float = 0.1, *, kv_channels: int | None = None,
                 self_attn_mask_type: str = "causal", window_size: Window = None, enc_dec_attn_mask_type: str = "no_mask",
                 enc_dec_window_size: Window = None, fp8_dpa: bool = False, layer_type: str = "encoder",
                 apply_residual_connection_post_layernorm: bool = False, output_layernorm: bool = False, parallel_attention_mlp: bool = False,
                 fuse_qkv_params: bool = False, qkv_weight_interleaved: bool = True, activation: str = "gelu", attn_input_format: str = "sbhd",
                 checkpoint_mlp: bool = False, name: str | None = None, **options: Any) -> None:
        super().__init__()
        refuse(_LAYER, _without(options, _SHARED))
        one_of(_LAYER, "layer_type", layer_type, "encoder", "decoder")
        expect(0 <= hidden_dropout <= 1, _LAYER, "hidden_dropout", hidden_dropout, "0 to 1")
        post, decoder, name = apply_residual_connection_post_layernorm, layer_type == "decoder", name or "layer"
        expect(not (parallel_attention_mlp and (decoder or post or output_layernorm)), _LAYER, "parallel_attention_mlp", True,
               "False beside layer_type 'decoder', apply_residual_connection_post_layernorm, output_layernorm")
        self.hidden_dropout, self.layer_type, self.parallel_attention_mlp = hidden_dropout, layer_type, parallel_attention_mlp

        def attention(kind: str, mask: str, window: Window) -> MultiheadAttention:
            normed, part = kind == "cross" or not output_layernorm, "inter_attention" if kind == "cross" else "self_attention"
            return MultiheadAttention(hidden_size, num_attention_heads, kv_channels, attention_dropout, layernorm_epsilon, attn_mask_type=mask,
                                      window_size=window, num_gqa_groups=num_gqa_groups, attention_type=kind, input_layernorm=normed,
                                      return_layernorm_output=normed and post, fuse_qkv_params=fuse_qkv_params, qkv_format=attn_input_format,
                                      qkv_weight_interleaved=qkv_weight_interleaved, fp8_dpa=fp8_dpa, name=f"{name}.{part}", **options)
        self.self_attention = attention("self", self_attn_mask_type, window_size)
        if decoder:
            self.inter_attention = attention("cross", enc_dec_attn_mask_type, enc_dec_window_size)
        self.layernorm_mlp = _layers.LayerNormMLP(hidden_size, ffn_hidden_size, layernorm_epsilon, activation=activation, checkpoint=checkpoint_mlp,
                                                  return_layernorm_output=post, name=f"{name}.layernorm_mlp", **options)
        if output_layernorm:
            self.layernorm = _layers.norm(_LAYER, hidden_size, layernorm_epsilon, **_without(options, _OF_WEIGHTS))

    def forward(self, hidden_states: torch.Tensor, attention_mask: Tensor = None, *, self_attn_mask_type: str | None = None,
                window_size: Window = None, encoder_output: Tensor = None, enc_dec_attn_mask: Tensor = None,
                enc_dec_attn_mask_type: str | None = None, enc_dec_window_size: Window = None, is_first_microbatch: bool | None = None,
                rotary_pos_emb: Tensor = None, **core: Any) -> torch.Tensor:
        """encoder_output, enc_dec_*: of a decoder alone. core: as in MultiheadAttention; cu_seqlens_kv is the decoder's other attention's."""
        decoder = self.layer_type == "decoder"
        _one_with(_LAYER, "encoder_output", encoder_output, decoder, "layer_type", self.layer_type)
        expect(decoder or enc_dec_attn_mask is None, _LAYER, "enc_dec_attn_mask", "one", "None with layer_type 'encoder'")
        own, cross = core, core
        if decoder:  # each gets the lengths where its masks are of padding and none is given
            takes = ["padding" in (kind or part.core_attention.attn_mask_type) and mask is None for kind, mask, part in (
                (self_attn_mask_type, attention_mask, self.self_attention), (enc_dec_attn_mask_type, enc_dec_attn_mask, self.inter_attention))]
            own = _without(core, _LENGTHS if takes == [False, True] else [key for key in core if "_kv" in key])
            cross = core if takes[1] else _without(core, _LENGTHS)
        with _region.microbatch(is_first_microbatch):
            y = self.self_attention(hidden_states, attention_mask, rotary_pos_emb=rotary_pos_emb, attn_mask_type=self_attn_mask_type,
                                    window_size=window_size, **own)
            if self.parallel_attention_mlp:
                return self._added(y + self.layernorm_mlp(hidden_states), hidden_states)
            h = self._added(y, hidden_states)
            if decoder:
                h = self._added(self.inter_attention(h, enc_dec_attn_mask, encoder_output, attn_mask_type=enc_dec_attn_mask_type,
                                                     window_size=enc_dec_window_size, **cross), h)
            h = self._added(self.layernorm_mlp(h), h)
        return self.layernorm(h) if "layernorm" in self._modules else h

    def _added(self, result: Any, x: torch.Tensor) -> torch.Tensor:
        """result: what is added, or beside it what takes the place of x."""
        y, x = result if isinstance(result, tuple) else (result, x)
        return x + (F.dropout(y, self.hidden_dropout, True) if self.training and self.hidden_dropout > 0 else y)
