# SPDX-License-Identifier: Apache-2.0
"""Modules that have other modules' names: what programs for another package import."""

import importlib
import importlib.machinery
import sys
import types
import typing


def alias(name: str, of: typing.Callable[[str], typing.Any], doc: str) -> None:
    """Makes the module `name`, in its place. of(name) finds a name in it when it is asked for."""
    module = types.ModuleType(name, doc)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    module.__dict__["__getattr__"] = of
    put(name, module)


def put(name: str, module: types.ModuleType) -> None:
    """`import name` gives that module."""
    sys.modules[name] = module
    above, _, last = name.rpartition(".")
    if above:
        setattr(sys.modules[above], last, module)


def names_of(module: str) -> typing.Callable[[str], typing.Any]:
    """Finds names in that module, which is imported when the first is asked for."""
    def of(name: str) -> typing.Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(module), name)
    return of
