# SPDX-License-Identifier: Apache-2.0
"""Modules without a weight that measuring and converting know by name, with the call forms of Habana's and vLLM's modules.

    >>> import torch, fp8
    >>> matmul = fp8.nn.Matmul()
    >>> a, b = torch.randn(2, 4, 8).to("hpu"), torch.randn(2, 8, 4).to("hpu")
    >>> torch.equal(matmul(a, b), a @ b)
    True

Put them where attention multiplies, takes a softmax, or keeps keys and values: fp8.quant.prepare() measures them and
fp8.quant.convert() runs them in fp8. Until then each is torch's own operation."""

import copy
import typing

import torch

from fp8 import _autoload, _library

_autoload.register()


class Operation(torch.nn.Module):
    """What these modules share: a node of the runtime, which is in fp8 after convert(). Copies stay so; files do not."""

    KIND = ""

    def __init__(self) -> None:
        super().__init__()
        _library.require()
        self.node: typing.Any = torch.classes.fp8.Node(self.KIND)

    def __deepcopy__(self, memo: dict[int, typing.Any]) -> "Operation":
        made = type(self).__new__(type(self))
        memo.update({id(self): made, id(self.node): self.node.copy()})
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    def __getstate__(self) -> dict[str, typing.Any]:
        if scheme := self.node.describe():
            raise RuntimeError(f"{type(self).__name__} is in fp8 ({scheme}): a pickle would lose its scales; fp8.quant.save() keeps them")
        return {name: value for name, value in self.__dict__.items() if name != "node"}

    def __setstate__(self, state: dict[str, typing.Any]) -> None:
        super().__setstate__(state)
        self.node = torch.classes.fp8.Node(self.KIND)

    def extra_repr(self) -> str:
        return str(self.node.describe())


class Matmul(Operation):
    """torch.matmul(x, y)."""

    KIND = "Matmul"

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return typing.cast(torch.Tensor, self.node.matmul(x, y))


class Softmax(Operation):
    """torch.softmax(x, dim); inv_head multiplies x first."""

    KIND = "Softmax"

    def forward(self, x: torch.Tensor, dim: int = -1, inv_head: typing.Optional[float] = None) -> torch.Tensor:
        return typing.cast(torch.Tensor, self.node.softmax(x if inv_head is None else x * inv_head, dim))


class ModuleFusedSDPA(Operation):
    """scaled_dot_product_attention. query: [.., heads, L, E]; key, value: [.., key heads, S, E]."""

    KIND = "ModuleFusedSDPA"

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: typing.Optional[torch.Tensor] = None,
                dropout_p: float = 0.0, is_causal: bool = False, scale: typing.Optional[float] = None, enable_gqa: bool = False) -> torch.Tensor:
        return typing.cast(torch.Tensor, self.node.attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa))


class KVCache(Operation):
    """Keys or values of one layer, [batch, heads, length, size]: codes after convert()."""

    KIND = "KVCache"

    def __init__(self) -> None:
        super().__init__()
        self.cache: typing.Optional[torch.Tensor] = None
        self.inp_seq_len: int = -1

    def forward(self, current: torch.Tensor) -> torch.Tensor:
        """What a reader sees of `current` once it is stored."""
        return self.fetch(self.store(current), current)

    def store(self, current: torch.Tensor) -> torch.Tensor:
        return typing.cast(torch.Tensor, self.node.store(current))

    def fetch(self, stored: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Values in the dtype of `like`."""
        return typing.cast(torch.Tensor, self.node.fetch(stored, like))

    def allocate(self, inp_seq_len: int, dtype: torch.dtype, device: typing.Union[str, torch.device], shape: typing.Sequence[int]) -> None:
        """Room for `shape`, zeros. inp_seq_len: tokens of the prompt."""
        self.inp_seq_len = inp_seq_len
        self.cache = self.node.room(list(shape), torch.empty(0, dtype=dtype, device=device))

    def get_shape(self) -> typing.Optional[torch.Size]:
        return None if self.cache is None else self.cache.shape

    def update(self, current: torch.Tensor, dim: int, position: int) -> torch.Tensor:
        """Puts `current` at [position, position + n) of `dim`; returns all up to there, as values. Raises ValueError where
        allocate() has not been called, or left less room."""
        return typing.cast(torch.Tensor, self.node.update(self.cache, current, dim, position))


class VLLMKVCache(Operation):
    """Paged keys or values: the cache [blocks, block size, heads, size] is the caller's."""

    KIND = "VLLMKVCache"

    def forward(self, input: typing.Optional[torch.Tensor], cache: torch.Tensor, slot_mapping: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Writes input [tokens, heads, size] to the slots; None writes nothing. Returns the cache. Raises ValueError for another dtype."""
        return cache if input is None else typing.cast(torch.Tensor, self.node.write(input, cache, slot_mapping))

    def fetch_from_cache(self, cache: torch.Tensor, blocks: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """The blocks as values of `dtype`."""
        return typing.cast(torch.Tensor, self.node.read(cache, blocks, dtype))


class MoeMatmul(torch.nn.Module):
    """One expert's weight, [outputs, inputs]; measured and converted as a linear layer."""

    def __init__(self, inputs: int, outputs: int, dtype: typing.Optional[torch.dtype] = None, device: typing.Any = None) -> None:
        super().__init__()
        self.set_weight(torch.empty(outputs, inputs, dtype=dtype, device=device))

    def set_weight(self, w: torch.Tensor) -> None:
        self.weight: torch.nn.Parameter = torch.nn.Parameter(w, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight)


class FusedMoE(Operation):
    """A mixture of experts in the call form of vLLM's VllmMixtureOfExpertsOp: w13_list.E, gate above up, and w2_list.E, down, of
    the experts experts_min + E that are held here; the others add nothing. A measurement has one node for it, whose outputs are
    the result and the largest magnitude within each expert.

        >>> import torch, fp8
        >>> moe = fp8.nn.FusedMoE(4, hidden_size=8, intermediate_size=16, device="hpu")
        >>> for expert in (*moe.w13_list, *moe.w2_list):
        ...     expert.set_weight(torch.ones_like(expert.weight) / 8)
        >>> table, shares = torch.tensor([[0, 3]]).to("hpu"), torch.tensor([[0.5, 0.5]]).to("hpu")
        >>> moe(torch.ones(1, 8).to("hpu"), table, shares).shape
        torch.Size([1, 8])
    """

    KIND = "VllmMixtureOfExpertsOp"

    def __init__(self, num_experts: int, hidden_size: int, intermediate_size: int, experts_min: int = 0, experts_max: typing.Optional[int] = None,
                 dtype: typing.Optional[torch.dtype] = None, device: typing.Any = None) -> None:
        super().__init__()
        self.experts_min: int = experts_min
        self.experts_max: int = num_experts - 1 if experts_max is None else experts_max
        if not 0 <= experts_min <= self.experts_max < num_experts:
            raise ValueError(f"FusedMoE: experts_min, experts_max: found [{experts_min}, {self.experts_max}], allowed: within [0, {num_experts - 1}]")
        held = range(experts_min, self.experts_max + 1)
        self.w13_list: torch.nn.ModuleList = torch.nn.ModuleList(MoeMatmul(hidden_size, 2 * intermediate_size, dtype, device) for _ in held)
        self.w2_list: torch.nn.ModuleList = torch.nn.ModuleList(MoeMatmul(intermediate_size, hidden_size, dtype, device) for _ in held)

    def forward(self, hidden_states: torch.Tensor, expert_routing_table: torch.Tensor, router_weights: torch.Tensor, permuted_weights: bool = True,
                activation: str = "silu") -> torch.Tensor:
        """hidden_states: [tokens, H]; expert_routing_table, router_weights: [tokens, k], of experts of all ranks."""
        w13, w2 = ([expert.weight for expert in experts] for experts in (self.w13_list, self.w2_list))
        return typing.cast(torch.Tensor, self.node.mix(hidden_states, expert_routing_table, router_weights, w13, w2, permuted_weights,
                                                       activation, self.experts_min, self.experts_max))


def nodes(model: torch.nn.Module) -> tuple[list[typing.Any], list[str]]:
    """Nodes and their names, in the order of model.named_modules()."""
    found = [(module.node, name) for name, module in model.named_modules() if isinstance(module, Operation)]
    return [node for node, _ in found], [name for _, name in found]
