# SPDX-License-Identifier: Apache-2.0
"""Graphs of hpu, with the names of Habana's module: work is captured once and replayed without the Python that made it.

    >>> import torch, fp8
    >>> layer = torch.nn.Linear(8, 4).to("hpu")
    >>> graphed = torch.hpu.wrap_in_hpu_graph(torch.nn.Sequential(layer))
    >>> x = torch.randn(2, 8).to("hpu")
    >>> torch.equal(graphed(x), layer(x)), torch.equal(graphed(x + 1), layer(x + 1))    # captured, replayed
    (True, True)

What a graph keeps, and what can't be captured: tools/pages/graphs.md. Options that choose how Habana's device runs a graph
(asynchronous, dry_run, disable_tensor_cache, ...) are accepted and change nothing: results are tensors of their own."""

import copy
import operator
import sys
import typing

import torch
from torch.utils import _pytree

from fp8._names import named

Function = typing.Callable[..., typing.Any]
M = typing.TypeVar("M", bound=torch.nn.Module)
_CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.Size)
__all__ = ["HPUGraph", "ModuleCacher", "graph", "is_current_stream_capturing", "make_graphed_callables", "wrap_in_hpu_graph",
           "wrap_in_hpu_graph_func"]


class HPUGraph:
    """A capture. Tensors that are held when it ends keep their memory, and replay() gives them new values. Raises RuntimeError
    with the operation and its module for what can't be captured."""

    def __init__(self) -> None:
        self._graph = torch.classes.fp8_graphs.HPUGraph()

    def capture_begin(self, dry_run: bool = False) -> None:
        self._graph.capture_begin(dry_run)

    def capture_end(self) -> None:
        self._graph.capture_end()

    def replay(self, asynchronous: bool = False) -> None:
        self._graph.replay(asynchronous)

    def replayV2(self, inputs: typing.Sequence[torch.Tensor], asynchronous: bool = False) -> None:  # noqa: N802: Habana's name
        """With other tensors in place of the marked inputs."""
        self._graph.replay_with(list(inputs), asynchronous)

    replayV3 = replayV2  # noqa: N815

    def mark_user_inputs(self, inputs: typing.Sequence[torch.Tensor]) -> None:
        self._graph.mark_user_inputs(list(inputs))

    def mark_user_outputs(self, outputs: typing.Sequence[torch.Tensor]) -> None:
        self._graph.mark_user_outputs(list(outputs))

    def clear_inputs(self) -> None:
        self._graph.clear_inputs()

    def reset(self) -> None:
        self._graph.reset()


class graph:  # noqa: N801: Habana's name
    """capture_begin() to capture_end(). An exception ends the capture without a graph."""

    def __init__(self, hpu_graph: HPUGraph, stream: typing.Optional[torch.Stream] = None, dry_run: bool = False) -> None:
        del stream
        self._graph, self._dry_run, self._names = hpu_graph, dry_run, named()

    def __enter__(self) -> None:
        self._graph.capture_begin(self._dry_run)
        self._names.__enter__()

    def __exit__(self, kind: object, *_: object) -> None:
        self._names.__exit__(None, None, None)
        try:
            self._graph.capture_end()
        except RuntimeError:
            if kind is None:
                raise
        if kind is not None:
            self._graph.reset()


def is_current_stream_capturing() -> bool:
    return bool(torch.classes.fp8_graphs.HPUGraph.is_capturing())


class _Graphed:
    """A function, or a module's forward, with its graphs."""

    def __init__(self, function: Function, module: typing.Optional[torch.nn.Module], max_graphs: typing.Optional[int]) -> None:
        self.function, self.module, self.cache = function, module, torch.classes.fp8_graphs.GraphCache(10**9 if max_graphs is None else max_graphs)
        self.results: dict[int, tuple[list[typing.Any], typing.Any]] = {}
        self.parts: list[typing.Any] = []  # modules and parameters, at the last call
        self.version = 0  # another each time that they are others

    def __call__(self, *args: typing.Any, bypass_hpu_graphs: bool = False, warmup_mode: bool = False, cache_tensors_list: typing.Any = None,
                 **kwargs: typing.Any) -> typing.Any:
        del warmup_mode, cache_tensors_list
        leaves, spec = _pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        constants = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        if bypass_hpu_graphs or not all(isinstance(value, _CONSTANTS) for value in constants):
            return self.function(*args, **kwargs)
        modules = list(self.module.modules()) if self.module is not None else []
        if not _replays_all(modules):
            return self.function(*args, **kwargs)
        parts = [part for m in modules for part in (m, *m._parameters.values())]
        if len(parts) != len(self.parts) or not all(map(operator.is_, parts, self.parts)):
            self.parts, self.version = parts, self.version + 1
        way = self.cache.decide(tensors, repr((constants, spec, [m.training for m in modules])), self.version)
        number = self.cache.number()
        if way == 0:
            return _with_tensors(*self.results[number], self.cache.replay(tensors))
        if way == 2:
            return self.function(*args, **kwargs)
        try:
            inputs = _with_tensors(leaves, spec, self.cache.begin(tensors))
            with named(self.module):
                results, form = _pytree.tree_flatten(self.function(*inputs[0], **inputs[1]))
        except BaseException:
            self.cache.abandon()
            raise
        found = [leaf for leaf in results if isinstance(leaf, torch.Tensor)]
        unknown = next((leaf for leaf in results if not isinstance(leaf, (torch.Tensor, *_CONSTANTS))), None)
        reason = "" if unknown is None else f"a result of type {type(unknown).__name__}"
        found = self.cache.end(tensors, found, reason)
        self.results[number] = [leaf if not isinstance(leaf, torch.Tensor) else torch.empty(0) for leaf in results], form
        return _with_tensors(results, form, found)

    def clear(self) -> None:
        self.cache.clear()
        self.results.clear()


def _replays_all(modules: list[torch.nn.Module]) -> bool:
    """Whether a replay does all that a call does: there are no hooks but those of training in fp8, which follow train() and eval() and are
    called here."""
    te = sys.modules.get("fp8.te")
    own = (te._attached.follow, te._region.give_contexts) if te is not None else ()
    for module in modules if te is not None else ():
        te._attached.follow(module, ())
    for module in modules[1:]:
        before = list(module._forward_pre_hooks.values())
        if module._forward_hooks or module._backward_hooks or module._backward_pre_hooks or any(hook not in own for hook in before):
            return False
        for hook in before:
            hook(module, ())
    return True


def _with_tensors(leaves: list[typing.Any], spec: typing.Any, tensors: list[torch.Tensor]) -> typing.Any:
    """The tree, with these in place of its tensors."""
    following = iter(tensors)
    return _pytree.tree_unflatten([next(following) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec)


def wrap_in_hpu_graph_func(func: Function, asynchronous: bool = False, disable_tensor_cache: bool = False, dry_run: bool = False,
                           max_graphs: typing.Optional[int] = None) -> Function:
    """A function that runs func in graphs, one for each kind of call."""
    del asynchronous, disable_tensor_cache, dry_run
    return _Graphed(func, None, max_graphs)


def wrap_in_hpu_graph(module: M, asynchronous: bool = False, disable_tensor_cache: bool = False, dry_run: bool = False,
                      max_graphs: typing.Optional[int] = None) -> M:
    """The module itself, whose forward runs in graphs from now on; it gets clear_cache() and clear_inputs()."""
    del asynchronous, disable_tensor_cache, dry_run
    graphed = _Graphed(module.forward, module, max_graphs)
    module.forward = graphed
    module.clear_cache = graphed.clear
    module.clear_inputs = lambda: None  # inputs are not kept
    return module


class ModuleCacher:
    """ModuleCacher(max_graphs)(model): the model, or a copy, whose forward runs in graphs while it trains and while it does not."""

    def __init__(self, max_graphs: int = 10) -> None:
        self.max_graphs = max_graphs

    def __call__(self, model: M, use_lfu: bool = False, inplace: bool = True, allow_unused_input: bool = False, asynchronous: bool = False,
                 have_grad_accumulation: bool = False, log_frequency: int = 100, verbose: bool = False, disable_tensor_cache: bool = False,
                 dry_run: bool = False) -> M:
        del use_lfu, allow_unused_input, have_grad_accumulation, log_frequency, verbose
        return wrap_in_hpu_graph(model if inplace else copy.deepcopy(model), asynchronous, disable_tensor_cache, dry_run, self.max_graphs)


def make_graphed_callables(callables: typing.Any, sample_args: typing.Any, warmups: int = 0, allow_unused_input: bool = False,
                           asynchronous: bool = False, disable_tensor_cache: bool = False, dry_run: bool = False) -> typing.Any:
    """Callables that run in a graph, captured at their first call with gradients as they are then. sample_args: for each a tuple of
    tensors. Raises TypeError for others."""
    del warmups, allow_unused_input
    alone = not isinstance(callables, (tuple, list))
    each, samples = ((callables,), (sample_args,)) if alone else (tuple(callables), tuple(sample_args))
    if len(each) != len(samples) or not all(isinstance(x, torch.Tensor) for sample in samples for x in sample):
        raise TypeError(f"make_graphed_callables: sample_args: expected a tuple of tensors for each of {len(each)} callables")
    wrap = [wrap_in_hpu_graph if isinstance(f, torch.nn.Module) else wrap_in_hpu_graph_func for f in each]
    made = tuple(w(f, asynchronous, disable_tensor_cache, dry_run) for w, f in zip(wrap, each))
    return made[0] if alone else made
