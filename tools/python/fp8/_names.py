# SPDX-License-Identifier: Apache-2.0
"""Names of modules, by which the device's work is counted and refused."""

import contextlib
import threading
import typing

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

_named = threading.local()


@contextlib.contextmanager
def named(root: typing.Optional[torch.nn.Module] = None) -> typing.Iterator[None]:
    """Within, work of this thread has the name of the innermost module that runs, as in named_modules() of root; without one, of the
    outermost module that runs, whose own work has the name of its class. Contexts within this one change nothing."""
    if getattr(_named, "on", False):
        yield
        return
    scopes, thread = torch.classes.fp8_graphs.Metrics, threading.get_ident()
    names: dict[torch.nn.Module, str] = {} if root is None else {module: name for name, module in root.named_modules()}
    running: list[torch.nn.Module] = []

    def enter(module: torch.nn.Module, _: object) -> None:
        if threading.get_ident() != thread:
            return
        if root is None and not running:
            names.clear()
            names.update((part, name) for name, part in module.named_modules())
        running.append(module)
        scopes.enter_module(names.get(module) or type(module).__name__)

    def leave(*_: object) -> None:
        if threading.get_ident() == thread:
            running.pop()
            scopes.leave_module()

    handles = register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)
    _named.on = True
    try:
        yield
    finally:
        _named.on = False
        for handle in handles:
            handle.remove()
