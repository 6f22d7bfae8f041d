# SPDX-License-Identifier: Apache-2.0
"""The region in which products run in fp8, and recomputation of a part of it in backward."""

import contextlib
import contextvars
import functools
import threading
from typing import Any, Callable, ContextManager, Iterator, TypeVar, cast

import torch
from torch.utils import checkpoint as _torch_checkpoint

from fp8._trainers import expect
from fp8.te import recipe as _recipe

_groups = threading.local()  # those of this thread's regions
outermost = 0  # how many regions there were that are in no other
_NO_REGION = contextlib.nullcontext()
Function = TypeVar("Function", bound=Callable[..., Any])
_callback = torch._C._dynamo.eval_frame.get_eval_frame_callback  # what torch.compile has around the calls of this thread, if it has


def unseen(function: Function) -> Function:
    """torch.compile calls it, and does not look into it: that would run operators as it traces."""
    hidden = torch._compile._disable_dynamo(function)  # its first call imports torch._dynamo, which takes a second

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return (hidden if torch.compiler.is_compiling() or _callback() is not None else function)(*args)
    return cast(Function, call)


class fp8_autocast(contextlib.ContextDecorator):  # noqa: N801: the name of the field
    """Products of converted modules run in fp8 inside, those of backward too. A context manager, or a decorator of a function.

    force_measurement: whether amaxes are measured, whatever the recipe's interval says; fp8_recipe: default the outer region's, else
    DelayedScaling(); fp8_group: whose ranks share amaxes; calibrating: with enabled=False, amaxes are recorded; is_first_microbatch:
    True casts weights and keeps them, False uses the kept ones; seed: of stochastic rounding. The innermost region decides. After an
    exception no scale moves. Raises ValueError for what it can't take, RuntimeError naming modules that did not run in fp8."""

    def __init__(self, enabled: bool = False, force_measurement: bool | None = None, fp8_recipe: _recipe.Argument = None, fp8_group: Any = None,
                 calibrating: bool = False, *, is_first_microbatch: bool | None = None, seed: int = 0) -> None:
        group = "" if fp8_group is None else getattr(fp8_group, "group_name", None)
        expect(isinstance(group, str), "fp8_autocast", "fp8_group", type(fp8_group).__name__, "a group of torch.distributed")
        self._arguments = (_recipe.text_of(fp8_recipe), bool(enabled), bool(calibrating), is_first_microbatch, seed, group, force_measurement)
        self._open: dict[int, list[int]] = {}

    @unseen
    def __enter__(self) -> "fp8_autocast":
        global outermost
        outermost += torch.ops.fp8.region_kind() == 0
        _groups.__dict__.setdefault("names", []).append(self._arguments[5])
        self._open.setdefault(threading.get_ident(), []).append(torch.ops.fp8.enter_autocast(*self._arguments))
        return self

    @unseen
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _groups.names.pop()
        torch.ops.fp8.exit_autocast(self._open[threading.get_ident()].pop(), kind is not None)


def group() -> str:
    """Name of the group whose ranks share amaxes in the innermost region of this thread; "": none."""
    return (_groups.__dict__.get("names") or [""])[-1]


def inside() -> bool:
    """Whether this thread is in any region, enabled or not."""
    return torch.ops.fp8.region_kind() > 0


def is_fp8_enabled() -> bool:
    """Whether the innermost fp8_autocast of this thread is enabled."""
    return torch.ops.fp8.region_kind() > 1


def microbatch(first: bool | None) -> ContextManager[Any]:
    """The region of this thread, where it is enabled, as is_first_microbatch of a module's forward changes it."""
    return fp8_autocast(True, is_first_microbatch=first) if first is not None and is_fp8_enabled() else _NO_REGION


_asked: contextvars.ContextVar[tuple[str, bool] | None] = contextvars.ContextVar("quantized_model_init", default=None)


@contextlib.contextmanager
def quantized_model_init(enabled: bool = True, recipe: _recipe.Argument = None, preserve_high_precision_init_val: bool = False) -> Iterator[None]:
    """Modules of fp8.te that are made inside, on hpu, hold their weights in fp8 alone: codes with one scale. Optimizers of fp8.optim train
    them, in f32 of which a step rounds stochastically to codes; torch's own raise an error.

    recipe: format and kind of the scale, default E4M3 and a power of two; with preserve_high_precision_init_val each weight has its initial
    values, on the host, as get_high_precision_init_val() until clear_high_precision_init_val(). Raises ValueError for block scales."""
    token = _asked.set((_recipe.text_of(recipe), preserve_high_precision_init_val) if enabled else None)
    try:
        yield
    finally:
        _asked.reset(token)


def hold(weight: torch.nn.Parameter, name: str) -> bool:
    """Whether it is made in quantized_model_init: then it holds codes from now on."""
    asked = _asked.get()
    if asked is None:
        return False
    initial = [weight.detach().cpu()] if asked[1] else []
    torch.ops.fp8.hold_in_fp8(weight, name, asked[0])
    if initial:
        weight.get_high_precision_init_val = lambda: initial[0] if initial else None  # type: ignore[attr-defined]
        weight.clear_high_precision_init_val = initial.clear  # type: ignore[attr-defined]
    return True


class _Runs:
    """The first run of a checkpointed part, then its others: with the regions and scales of the first."""
    run: int | None = None

    def __enter__(self) -> None:
        if self.run is None:
            self.run = torch.ops.fp8.checkpoint_begin()
        else:
            torch.ops.fp8.checkpoint_again(self.run)

    def __exit__(self, *_: object) -> None:
        torch.ops.fp8.checkpoint_end(self.run)

    def __del__(self) -> None:
        if self.run is not None:
            torch.ops.fp8.checkpoint_free(self.run)


def checkpoint_contexts() -> tuple[ContextManager[None], ContextManager[None]]:
    """The context_fn that torch.utils.checkpoint(use_reentrant=False) needs around modules that train in fp8."""
    runs = cast(ContextManager[None], _Runs())
    return runs, runs


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = True, preserve_rng_state: bool = True,
               distribute_saved_activations: bool = False, get_rng_state_tracker: Any = None, tp_group: Any = None, **kwargs: Any) -> Any:
    """function(*args, **kwargs), which backward runs once more with the scales of the first run: gradients keep their bits."""
    asked = {"distribute_saved_activations": distribute_saved_activations, "get_rng_state_tracker": get_rng_state_tracker, "tp_group": tp_group}
    for name, found in asked.items():
        expect(not found, "checkpoint", name, repr(found), "None or False (one process computes the whole of function)")
    contexts = {} if use_reentrant else {"context_fn": checkpoint_contexts}
    function = functools.partial(function, **kwargs) if kwargs else function
    return _torch_checkpoint.checkpoint(function, *args, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state, **contexts)


def give_contexts(model: torch.nn.Module, _: Any) -> None:
    """gradient_checkpointing_enable() of transformers leaves torch's function in the layers: it gets the context_fn."""
    for module in model.modules():
        found = module.__dict__.get("_gradient_checkpointing_func")
        if isinstance(found, functools.partial) and found.func is _torch_checkpoint.checkpoint:
            if not found.keywords.get("use_reentrant", True) and "context_fn" not in found.keywords:
                module._gradient_checkpointing_func = functools.partial(found, context_fn=checkpoint_contexts)  # type: ignore[assignment]
