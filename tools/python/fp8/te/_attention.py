# SPDX-License-Identifier: Apache-2.0
"""Attention, which stays in high precision inside of fp8_autocast, and layers around it, whose products are in fp8 there.

    >>> import torch, fp8
    >>> layer = fp8.te.TransformerLayer(64, 256, 4, num_gqa_groups=2, activation="swiglu", normalization="RMSNorm", fuse_qkv_params=True)
    >>> with fp8.te.fp8_autocast(True, fp8_recipe="nvidia"):
    ...     loss = layer(torch.randn(16, 2, 64).to("hpu")).square().mean()    # [length, batch, hidden]
    >>> loss.backward()"""

import contextlib
import functools
import typing

import torch
from torch.nn import functional as F  # noqa: N812

from fp8.te import _arguments, _layers, _region

Tensor = typing.Optional[torch.Tensor]
_DOT, _MHA, _LAYER = "te.DotProductAttention", "te.MultiheadAttention", "te.TransformerLayer"
_MASKS = ("no_mask", "causal", "causal_bottom_right", "padding", "padding_causal", "padding_causal_bottom_right", "arbitrary")
_FORMATS = ("sbhd", "bshd")
_WEIGHTS = ("init_method", "output_layer_init_method", "bias", "minimize_memory")
_SHARED = (*_WEIGHTS, "normalization", "zero_centered_gamma", "params_dtype", "device")  # of a layer, its attention and its MLP


def rotary_position_embedding(dim: int, positions: int, base: float = 10000.0, device: typing.Any = "hpu") -> torch.Tensor:
    """Angles for rotary_pos_emb, [positions, 1, 1, dim]: position * base^(-2 i / dim) for i < dim / 2, twice."""
    _arguments.expect(dim >= 2 and dim % 2 == 0, "rotary_position_embedding", "dim", dim, "even numbers >= 2")
    return typing.cast(torch.Tensor, torch.ops.fp8.rotary_angles(dim, positions, base, torch.device(device)))


class FusedAttention(torch.nn.Module):
    """Habana's. q, k, v: [batch, heads, length, depth]; attention_mask: bool (True: seen) or added. enable_recompute changes nothing."""
    scale: typing.Optional[float]
    attention_dropout: float
    enable_recompute: bool

    def __init__(self, scale: typing.Optional[float] = None, attention_dropout: float = 0.0, enable_recompute: bool = False) -> None:
        super().__init__()
        _arguments.expect(0 <= attention_dropout <= 1, "te.FusedAttention", "attention_dropout", attention_dropout, "0 to 1")
        self.scale, self.attention_dropout, self.enable_recompute = scale, attention_dropout, enable_recompute

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attention_mask: Tensor = None, is_causal: bool = False,
                softmax_mode: str = "None") -> torch.Tensor:
        """Raises ValueError inside of an enabled fp8_autocast."""
        _arguments.expect(not _region.is_fp8_enabled(), "te.FusedAttention", "fp8_autocast", "enabled=True", "False (C++ alone learns it in fp8)")
        _arguments.one_of("te.FusedAttention", "softmax_mode", softmax_mode, "None", "none")
        return F.scaled_dot_product_attention(q, k, v, attention_mask, self.attention_dropout if self.training else 0.0, is_causal,
                                              scale=self.scale, enable_gqa=q.dim() == 4 and q.size(1) != k.size(1))


class DotProductAttention(torch.nn.Module):
    """softmax(scale q k^T) v. query_layer: "sbhd" [length, batch, heads, kv_channels] or "bshd" [batch, length, ...]; key_layer, value_layer: with
    num_gqa_groups heads. attention_mask: bool, True where a key is masked out, [batch, 1, 1, keys] of padding, else [batch, heads, queries, keys]."""
    num_attention_heads: int
    num_gqa_groups: int
    kv_channels: int
    attention_dropout: float
    softmax_scale: typing.Optional[float]
    qkv_format: str
    attn_mask_type: str
    attention_type: str

    def __init__(self, num_attention_heads: int, kv_channels: int, num_gqa_groups: typing.Optional[int] = None, attention_dropout: float = 0.0,
                 qkv_format: str = "sbhd", attn_mask_type: str = "causal", *, softmax_scale: typing.Optional[float] = None,
                 attention_type: str = "self", **nothing: typing.Any) -> None:
        super().__init__()
        groups = num_gqa_groups or num_attention_heads
        _arguments.refuse(_DOT, nothing)
        _arguments.sizes(_DOT, num_attention_heads=num_attention_heads, kv_channels=kv_channels, num_gqa_groups=groups)
        _arguments.expect(num_attention_heads % groups == 0, _DOT, "num_gqa_groups", groups, f"divisors of {num_attention_heads} heads")
        _arguments.expect(0 <= attention_dropout <= 1, _DOT, "attention_dropout", attention_dropout, "0 to 1")
        _arguments.one_of(_DOT, "qkv_format", qkv_format, *_FORMATS)
        _arguments.one_of(_DOT, "attn_mask_type", attn_mask_type, *_MASKS)
        _arguments.one_of(_DOT, "attention_type", attention_type, "self", "cross")
        self.num_attention_heads, self.num_gqa_groups, self.kv_channels = num_attention_heads, groups, kv_channels
        self.attention_dropout, self.softmax_scale = attention_dropout, softmax_scale
        self.qkv_format, self.attn_mask_type, self.attention_type = qkv_format, attn_mask_type, attention_type

    def forward(self, query_layer: torch.Tensor, key_layer: torch.Tensor, value_layer: torch.Tensor, attention_mask: Tensor = None, *,
                attn_mask_type: typing.Optional[str] = None, checkpoint_core_attention: bool = False, **nothing: typing.Any) -> torch.Tensor:
        """The heads' results side by side. attn_mask_type: instead of the module's. checkpoint_core_attention: computed again in backward."""
        kind, mask = attn_mask_type or self.attn_mask_type, attention_mask
        _arguments.refuse(_DOT, nothing)
        _arguments.one_of(_DOT, "attn_mask_type", kind, *_MASKS)
        for key, t, heads in (("query_layer", query_layer, self.num_attention_heads), ("key_layer", key_layer, self.num_gqa_groups),
                              ("value_layer", value_layer, self.num_gqa_groups)):
            fits = t.dim() == 4 and list(t.shape[2:]) == [heads, self.kv_channels] and t.shape[:2] in (query_layer.shape[:2], key_layer.shape[:2])
            _arguments.expect(fits, _DOT, key, f"sizes {list(t.shape)}", f"[length, batch, {heads}, {self.kv_channels}] (\"bshd\": batch first)")
        batch, length = (0, 1) if self.qkv_format == "bshd" else (1, 0)
        scores = [query_layer.size(batch), query_layer.size(2), query_layer.size(length), key_layer.size(length)]
        whole = [scores[0], 1, 1, scores[3]] if "padding" in kind else scores if kind == "arbitrary" else None
        fits = mask is None if whole is None else mask is not None and mask.dtype == torch.bool and mask.dim() == 4 and all(
            size == full or (size == 1 and kind == "arbitrary") for size, full in zip(mask.shape, whole))
        found = None if mask is None else f"sizes {list(mask.shape)} of {mask.dtype}"
        _arguments.expect(fits, _DOT, "attention_mask", found, f"{whole and f'sizes {whole} of torch.bool'} with attn_mask_type {kind!r}")
        run = torch.ops.fp8.dot_product_attention
        run = functools.partial(_region.checkpoint, run, use_reentrant=False) if checkpoint_core_attention else run
        dropout = self.attention_dropout if self.training else 0.0
        return typing.cast(torch.Tensor, run(query_layer, key_layer, value_layer, mask, self.qkv_format, kind, dropout, self.softmax_scale))


class MultiheadAttention(torch.nn.Module):
    """proj(attention(q, k, v)). With fuse_qkv_params one weight makes q, k and v, rows [groups, heads / groups + 2, depth] with
    qkv_weight_interleaved, else [heads, depth], [groups, depth], [groups, depth]; without, each has its own. attention_type "cross": k and v
    are of encoder_output. forward gives y, or with return_bias and return_layernorm_output (y without the bias, the bias, the norm)."""
    core_attention: DotProductAttention
    proj: _layers.Linear

    return_bias: bool
    return_layernorm_output: bool
    layernorm: typing.Any

    def __init__(self, hidden_size: int, num_attention_heads: int, kv_channels: typing.Optional[int] = None, attention_dropout: float = 0.1,
                 layernorm_epsilon: float = 1e-5, *, init_method: _layers.Init = None, output_layer_init_method: _layers.Init = None,
                 attn_mask_type: str = "causal", num_gqa_groups: typing.Optional[int] = None, params_dtype: typing.Optional[torch.dtype] = None,
                 return_bias: bool = False, return_layernorm_output: bool = False, input_layernorm: bool = False, attention_type: str = "self",
                 fuse_qkv_params: bool = False, zero_centered_gamma: bool = False, qkv_weight_interleaved: bool = True, bias: bool = True,
                 minimize_memory: bool = False, normalization: str = "LayerNorm", device: typing.Any = "hpu", qkv_format: str = "sbhd",
                 name: typing.Optional[str] = None, **nothing: typing.Any) -> None:
        super().__init__()
        _arguments.refuse(_MHA, nothing)
        _arguments.sizes(_MHA, hidden_size=hidden_size, num_attention_heads=num_attention_heads)
        _arguments.expect(bool(kv_channels) or hidden_size % num_attention_heads == 0, _MHA, "num_attention_heads", num_attention_heads,
                          f"divisors of hidden_size = {hidden_size} without kv_channels")
        _arguments.expect(input_layernorm or not return_layernorm_output, _MHA, "return_layernorm_output", True, "False without input_layernorm")
        core = DotProductAttention(num_attention_heads, kv_channels or hidden_size // num_attention_heads, num_gqa_groups, attention_dropout,
                                   qkv_format, attn_mask_type, attention_type=attention_type)
        depth, groups, name = core.kv_channels, core.num_gqa_groups, name or "self_attention"
        self.return_bias, self.return_layernorm_output, self._interleaved = return_bias, return_layernorm_output, qkv_weight_interleaved
        made: dict[str, typing.Any] = {"params_dtype": params_dtype, "device": device}
        norm: dict[str, typing.Any] = {"zero_centered_gamma": zero_centered_gamma, "normalization": normalization, **made}
        linear: dict[str, typing.Any] = {"bias": bias, "minimize_memory": minimize_memory, **made}
        heads = {"query_layer": num_attention_heads, "key_layer": groups, "value_layer": groups}
        if fuse_qkv_params:
            cross = {"query_layer": num_attention_heads, "key_value": 2 * groups}
            heads = cross if attention_type == "cross" else {"qkv": num_attention_heads + 2 * groups}
        first = next(iter(heads))
        if input_layernorm and attention_type == "self" and first != "qkv":
            self.layernorm = _layers.norm(_MHA, hidden_size, layernorm_epsilon, **norm)
        elif input_layernorm:
            part = f"layernorm_{first.removesuffix('_layer')}"
            self.add_module(part, _layers.LayerNormLinear(hidden_size, heads.pop(first) * depth, layernorm_epsilon, return_layernorm_output=True,
                                                          init_method=init_method, name=f"{name}.{part}", **{**norm, **linear}))
        for part, count in heads.items():
            self.add_module(part, _layers.Linear(hidden_size, count * depth, init_method=init_method, name=f"{name}.{part}", **linear))
        self._parts = [part for part in self._modules if part != "layernorm"]
        self.core_attention = core
        self.proj = _layers.Linear(num_attention_heads * depth, hidden_size, return_bias=return_bias, init_method=output_layer_init_method,
                                   name=f"{name}.proj", **linear)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Tensor = None, encoder_output: Tensor = None, *,
                is_first_microbatch: typing.Optional[bool] = None, rotary_pos_emb: Tensor = None, **core: typing.Any) -> _layers.Results:
        """rotary_pos_emb: angles of rotary_position_embedding(), by which q and k are turned. core: of DotProductAttention's forward."""
        cross = self.core_attention.attention_type == "cross"
        _arguments.expect((encoder_output is not None) == cross, _MHA, "encoder_output", "None" if cross else "one",
                          f"{'one' if cross else 'None'} with attention_type {self.core_attention.attention_type!r}")
        with _region.microbatch(is_first_microbatch):
            q, k, v, normal = self._projected(hidden_states, hidden_states if encoder_output is None else encoder_output)
            if rotary_pos_emb is not None:
                _arguments.expect(not cross, _MHA, "rotary_pos_emb", "one", "None with attention_type 'cross'")
                q, k = self._turned(q, rotary_pos_emb), self._turned(k, rotary_pos_emb)
            y = self.proj(self.core_attention(q, k, v, attention_mask, **core))
        asked = [*(y if self.return_bias else [y]), *[normal] * self.return_layernorm_output]
        return tuple(asked) if len(asked) > 1 else asked[0]

    def _projected(self, x: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """q, k, v and norm(x)."""
        if "layernorm" in self._modules:
            x = source = self.layernorm(x)
        first, *others = (typing.cast(typing.Any, self._modules[part]) for part in self._parts)
        y, normal = first(x) if isinstance(first, _layers.LayerNormLinear) else (first(x), x)
        groups, depth = self.core_attention.num_gqa_groups, self.core_attention.kv_channels
        each, found = self.core_attention.num_attention_heads // groups, list[torch.Tensor]()
        shares = ([each, 1, 1],) if not others else ([each], [1, 1]) if len(others) == 1 else ([each], [1], [1])
        for t, of_group in zip((y, *(other(source) for other in others)), shares):
            if self._interleaved:
                found += [part.flatten(-3, -2) for part in t.unflatten(-1, (groups, -1, depth)).split(of_group, -2)]
            else:
                found += t.unflatten(-1, (-1, depth)).split([share * groups for share in of_group], -2)
        return *found, normal

    def _turned(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """The first elements of each head, as many as there are angles, half against half."""
        batch_first, count = self.core_attention.qkv_format == "bshd", angles.size(-1)
        length, depth = x.size(1 if batch_first else 0), x.size(-1)
        fits = angles.dim() == 4 and angles.size(0) >= length and list(angles.shape[1:3]) == [1, 1] and count % 2 == 0 and 2 <= count <= depth
        _arguments.expect(fits, _MHA, "rotary_pos_emb", f"sizes {list(angles.shape)}", f"[{length} or more, 1, 1, an even number up to {depth}]")
        return typing.cast(torch.Tensor, torch.ops.fp8.rotated(x, angles[:length].transpose(0, 1) if batch_first else angles[:length]))


class TransformerLayer(torch.nn.Module):
    """x + drop(attention(norm(x))), after a decoder's attention to encoder_output, and h + drop(mlp(norm(h))).

    parallel_attention_mlp: x + drop(attention(norm(x)) + mlp(norm(x))); apply_residual_connection_post_layernorm: norm(x) takes the place of x in
    every sum; output_layernorm: norm(y), and none before the self attention. options: init_method, output_layer_init_method, bias, normalization,
    zero_centered_gamma, params_dtype, device."""
    self_attention: MultiheadAttention
    layernorm_mlp: _layers.LayerNormMLP

    hidden_dropout: float
    layer_type: str
    parallel_attention_mlp: bool
    inter_attention: MultiheadAttention
    self_attention: MultiheadAttention
    layernorm_mlp: _layers.LayerNormMLP
    layernorm: typing.Any

    def __init__(self, hidden_size: int, ffn_hidden_size: int, num_attention_heads: int, num_gqa_groups: typing.Optional[int] = None,
                 layernorm_epsilon: float = 1e-5, hidden_dropout: float = 0.1, attention_dropout: float = 0.1, *,
                 kv_channels: typing.Optional[int] = None, self_attn_mask_type: str = "causal", enc_dec_attn_mask_type: str = "no_mask",
                 layer_type: str = "encoder", apply_residual_connection_post_layernorm: bool = False, output_layernorm: bool = False,
                 parallel_attention_mlp: bool = False, fuse_qkv_params: bool = False, qkv_weight_interleaved: bool = True, activation: str = "gelu",
                 attn_input_format: str = "sbhd", checkpoint_mlp: bool = False, name: typing.Optional[str] = None, **options: typing.Any) -> None:
        super().__init__()
        _arguments.refuse(_LAYER, {key: value for key, value in options.items() if key not in _SHARED})
        _arguments.one_of(_LAYER, "layer_type", layer_type, "encoder", "decoder")
        _arguments.expect(0 <= hidden_dropout <= 1, _LAYER, "hidden_dropout", hidden_dropout, "0 to 1")
        post, decoder, name = apply_residual_connection_post_layernorm, layer_type == "decoder", name or "layer"
        _arguments.expect(not (parallel_attention_mlp and (decoder or post or output_layernorm)), _LAYER, "parallel_attention_mlp", True,
                          "False beside layer_type 'decoder', apply_residual_connection_post_layernorm, output_layernorm")
        self.hidden_dropout, self.layer_type, self.parallel_attention_mlp = hidden_dropout, layer_type, parallel_attention_mlp

        def attention(part: str, cross: bool, kind: str) -> MultiheadAttention:
            normed = cross or not output_layernorm
            return MultiheadAttention(hidden_size, num_attention_heads, kv_channels, attention_dropout, layernorm_epsilon, attn_mask_type=kind,
                                      num_gqa_groups=num_gqa_groups, attention_type="cross" if cross else "self", input_layernorm=normed,
                                      return_layernorm_output=normed and post, fuse_qkv_params=fuse_qkv_params, qkv_format=attn_input_format,
                                      qkv_weight_interleaved=qkv_weight_interleaved, name=f"{name}.{part}", **options)

        self.self_attention = attention("self_attention", False, self_attn_mask_type)
        if decoder:
            self.inter_attention = attention("inter_attention", True, enc_dec_attn_mask_type)
        self.layernorm_mlp = _layers.LayerNormMLP(hidden_size, ffn_hidden_size, layernorm_epsilon, activation=activation, checkpoint=checkpoint_mlp,
                                                  return_layernorm_output=post, name=f"{name}.layernorm_mlp", **options)
        if output_layernorm:
            norm = {key: value for key, value in options.items() if key not in _WEIGHTS}
            self.layernorm = _layers.norm(_LAYER, hidden_size, layernorm_epsilon, **norm)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Tensor = None, *, self_attn_mask_type: typing.Optional[str] = None,
                encoder_output: Tensor = None, enc_dec_attn_mask: Tensor = None, enc_dec_attn_mask_type: typing.Optional[str] = None,
                is_first_microbatch: typing.Optional[bool] = None, rotary_pos_emb: Tensor = None, **core: typing.Any) -> torch.Tensor:
        """encoder_output, enc_dec_attn_mask: of a decoder alone. core: as in MultiheadAttention."""
        decoder = self.layer_type == "decoder"
        _arguments.expect((encoder_output is not None) == decoder, _LAYER, "encoder_output", "None" if encoder_output is None else "one",
                          f"{'one' if decoder else 'None'} with layer_type {self.layer_type!r}")
        _arguments.expect(decoder or enc_dec_attn_mask is None, _LAYER, "enc_dec_attn_mask", "one", "None with layer_type 'encoder'")
        with _region.microbatch(is_first_microbatch):
            y = self.self_attention(hidden_states, attention_mask, rotary_pos_emb=rotary_pos_emb, attn_mask_type=self_attn_mask_type, **core)
            if self.parallel_attention_mlp:
                return self._added(y + self.layernorm_mlp(hidden_states), hidden_states)
            h = self._added(y, hidden_states)
            if decoder:
                h = self._added(self.inter_attention(h, enc_dec_attn_mask, encoder_output, attn_mask_type=enc_dec_attn_mask_type, **core), h)
            h = self._added(self.layernorm_mlp(h), h)
        return typing.cast(torch.Tensor, self.layernorm(h)) if "layernorm" in self._modules else h

    def _added(self, result: typing.Any, x: torch.Tensor) -> torch.Tensor:
        """result: what is added, or beside it what takes the place of x."""
        y, x = result if isinstance(result, tuple) else (result, x)
        return x + (F.dropout(y, self.hidden_dropout, True) if self.training and self.hidden_dropout > 0 else y)


def quantized_model_init(enabled: bool = True, recipe: typing.Any = None,
                         preserve_high_precision_init_val: bool = False) -> typing.ContextManager[None]:
    """Modules that are made inside hold weights in fp8 alone: from C++, so that enabled=True raises ValueError."""
    _arguments.expect(not enabled, "quantized_model_init", "enabled", enabled, "False (C++'s te::quantized_model_init makes such weights)")
    return contextlib.nullcontext()
