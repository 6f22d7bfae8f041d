# SPDX-License-Identifier: Apache-2.0
"""Modules that have other modules' names: what programs for another package import."""

import importlib
import importlib.machinery
import sys
import types
from typing import Any, Callable


def alias(name: str, of: Callable[[str], Any], doc: str) -> None:
    """Makes the module `name`, in its place. of(name) finds a name in it when it is asked for."""
    module = types.ModuleType(name, doc)
    module.__dict__.update(__spec__=importlib.machinery.ModuleSpec(name, None, is_package=True), __path__=[], __getattr__=of)
    put(name, module)


def put(name: str, module: types.ModuleType) -> None:
    """`import name` gives that module."""
    sys.modules[name] = module
    if "." in name:
        setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)


def names_of(module: str) -> Callable[[str], Any]:
    """Finds names in that module, which is imported when the first is asked for."""
    def of(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(module), name)
    return of
