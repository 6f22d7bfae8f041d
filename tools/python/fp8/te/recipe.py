# SPDX-License-Identifier: Apache-2.0
"""Recipes: how training makes the scale of each operand. The defaults are Gaudi's; those of NVIDIA are in `nvidia`.

    >>> import fp8
    >>> fp8.te.recipe.DelayedScaling(fp8_format=fp8.te.recipe.Format.HYBRID, interval=16).interval
    16
    >>> fp8.te.recipe.nvidia.DelayedScaling().amax_history_len
    1024

Ranges are the library's: a value out of its range raises ValueError with what was found and what is allowed."""

import dataclasses
import enum
import functools
import json
import os
from typing import Any, ClassVar, Mapping, Union, cast

import torch

from fp8 import _library

_JSON = {"use_power_2_scales": "power_of_two_scale"}  # where a file's name is another


class Format(enum.Enum):
    """Forward and backward; HYBRID: E4M3 forward, E5M2 for gradients."""
    E4M3, E5M2, HYBRID = "E4M3", "E5M2", "HYBRID"


class Recipe:
    """The base of the recipes. Each is a value; to_dict() is its JSON, as files of recipes have it."""
    _name: ClassVar[dict[str, Any]] = {}
    text: str

    def __post_init__(self) -> None:
        for name in ("amax_compute_algo", "scaling_factor_compute_algo"):
            if callable(getattr(self, name, None)):
                raise ValueError(f"{type(self).__name__}: {name}: found a callable, allowed: a name (C++ takes callables)")
        _library.require()
        object.__setattr__(self, "text", json.dumps(self.to_dict()))  # regions of every step ask for it
        _parse(self.text, type(self).__name__)

    def to_dict(self) -> dict[str, Any]:
        fields = {name: value.value if isinstance(value, Format) else value for name, value in dataclasses.asdict(cast(Any, self)).items()}
        if "use_f32_scales" in fields:
            fields["power_of_two_scale"] = not fields.pop("use_f32_scales")
        return {**self._name, **{_JSON.get(name, name): value for name, value in fields.items()}}


Argument = Union[Recipe, Mapping[str, Any], str, "os.PathLike[str]", None]


@dataclasses.dataclass(frozen=True)
class DelayedScaling(Recipe):
    """One scale for each tensor, a power of two, from amaxes of earlier steps."""
    margin: int = 0
    interval: int = 1
    fp8_format: Format = Format.E5M2
    amax_history_len: int = 1
    amax_compute_algo: str = "most_recent"
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)
    scaling_factor_compute_algo: None = None
    reduce_amax: bool = True
    _name: ClassVar[dict[str, Any]] = {"recipe": "delayed", "preset": "habana"}


@dataclasses.dataclass(frozen=True)
class Float8CurrentScaling(Recipe):
    """One scale for each tensor, from itself."""
    fp8_format: Format = Format.HYBRID
    use_power_2_scales: bool = False
    amax_epsilon: float = 0.0
    _name: ClassVar[dict[str, Any]] = {"recipe": "current"}


@dataclasses.dataclass(frozen=True)
class Float8BlockScaling(Recipe):
    """A scale for each 1 x 128 values (dimension 1) or 128 x 128 (2) of x, w and grad."""
    fp8_format: Format = Format.E4M3
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1
    use_f32_scales: bool = False
    _name: ClassVar[dict[str, Any]] = {"recipe": "block"}


@dataclasses.dataclass(frozen=True)
class MXFP8BlockScaling(Recipe):
    """A power of two for each 32 values."""
    fp8_format: Format = Format.E4M3
    _name: ClassVar[dict[str, Any]] = {"recipe": "mxfp8"}


class nvidia:  # noqa: N801: a namespace
    """Recipes with the defaults of NVIDIA's Transformer Engine."""
    Format, Float8CurrentScaling, Float8BlockScaling, MXFP8BlockScaling = Format, Float8CurrentScaling, Float8BlockScaling, MXFP8BlockScaling

    @dataclasses.dataclass(frozen=True)
    class DelayedScaling(Recipe):
        """One scale for each tensor, a real number, from the largest amax of 1024 steps."""
        margin: int = 0
        fp8_format: Format = Format.HYBRID
        amax_history_len: int = 1024
        amax_compute_algo: str = "max"
        scaling_factor_compute_algo: None = None
        reduce_amax: bool = True
        override_linear_precision: tuple[bool, bool, bool] = (False, False, False)
        _name: ClassVar[dict[str, Any]] = {"recipe": "delayed", "preset": "nvidia"}


def text_of(recipe: Argument) -> str:
    """What operators take: JSON, a preset's name or a file; "": none. Raises ValueError for what is no recipe."""
    if isinstance(recipe, Recipe):
        return recipe.text
    _library.require()
    text = recipe if isinstance(recipe, str) else "" if recipe is None else json.dumps(recipe) if isinstance(recipe, Mapping) else os.fspath(recipe)
    if text:
        _parse(text, "recipe")
    return text


@functools.lru_cache  # regions of every step come here
def _parse(text: str, what: str) -> None:
    try:
        torch.ops.fp8.attach_training([], [], [], text)
    except RuntimeError as error:
        raise ValueError(_library.sentence(error).replace("[fp8::attach_training] recipe", what)) from None
