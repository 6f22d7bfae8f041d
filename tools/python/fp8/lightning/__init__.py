# SPDX-License-Identifier: Apache-2.0
"""Lightning on hpu, with the names of lightning-habana: `lightning_habana` -> `fp8.lightning` is the whole change of a script.

Lightning itself knows accelerator="hpu" as soon as it is imported beside this package (teach). The classes here are
made on those of `lightning`, of `pytorch_lightning` or of `lightning_fabric`: of the one that is imported, else the first that is
installed."""

import functools
import importlib.util
import pkgutil
import sys
from typing import Any, Callable, NoReturn, cast

import torch

from fp8 import _trainers

HALVES = {"pytorch": ("lightning.pytorch", "pytorch_lightning"), "fabric": ("lightning.fabric", "lightning_fabric")}
_NAMES = _trainers.NAMES["lightning"]
# Name: what does the work on hpu, and Lightning's class that it stands before. Both halves have those of one process, fabric as far as it
# has the base.
_CLASSES: dict[str, tuple[str, str]] = {**_NAMES["one process"], **_NAMES["several processes"]}
__all__ = list(_CLASSES)


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"{name}: found a request for several processes, allowed with Fabric on hpu: one device, with "
                                  "SingleHPUStrategy (strategy='hpu_single' or 'auto'); lightning.pytorch has several")
    refuse.__name__ = refuse.__qualname__ = name
    return refuse


@functools.cache
def made(package: str, name: str, called: str = "") -> Any:
    """The class of that name for "lightning.pytorch", "lightning.fabric", "pytorch_lightning" or "lightning_fabric". Where Fabric has
    none: what raises an error when it is called, by the name that was asked for."""
    half = next(half for half, packages in HALVES.items() if package in packages)
    if half == "fabric" and name in _NAMES["several processes"]:
        return _refused(called or name)
    work, base = _CLASSES[name]
    does, on = pkgutil.resolve_name(f"fp8.lightning.{work}"), pkgutil.resolve_name(f"{package}.{base}")
    return type(name, (does, on), {"__doc__": does.__doc__, "__module__": f"fp8.lightning.{half}", "package": package})


def misconfiguration(package: str) -> type[Exception]:
    """Lightning's error for arguments that do not go together."""
    return cast(type[Exception], pkgutil.resolve_name(f"{package}.utilities.exceptions:MisconfigurationException"))


def _home(half: str) -> str:
    """The package that is imported, else the first that is installed. Raises ImportError where there is none."""
    roots = {package: package.partition(".")[0] for package in HALVES[half]}
    imported = [package for package, root in roots.items() if root in sys.modules]
    found = imported or [package for package, root in roots.items() if importlib.util.find_spec(root) is not None]
    if not found:
        raise ImportError(f"fp8.lightning: found none of {', '.join(roots.values())}: pip install lightning")
    return found[0]


def __getattr__(name: str, half: str = "pytorch") -> Any:
    name = {"HPUPrecision": "HPUPrecisionPlugin"}.get(name, name)
    if name in _CLASSES:
        return made(_home(half), name)
    raise AttributeError(f"fp8.lightning has no '{name}', allowed: {', '.join(_CLASSES)}")


def aliases(root: str) -> None:
    """The modules of lightning_habana below `root`."""
    for half, modules in _NAMES["modules"].items():
        for module in modules:
            _trainers.alias(f"{root}.{half}{module}", functools.partial(__getattr__, half=half),
                            f"lightning_habana's names for Lightning's half `{half}`, on the emulated hpu")


def teach(module: Any) -> None:
    """module: trainer.connectors.accelerator_connector of lightning.pytorch or pytorch_lightning, connector of lightning.fabric or
    lightning_fabric. Three methods of it choose strategy, "auto" and precision by names that know no hpu; with it they come here, and go on
    as they were with any other accelerator."""
    from fp8.lightning import _classes
    package = module.__name__.partition(".trainer.")[0].removesuffix(".connector")
    of_fabric = package in HALVES["fabric"]
    connector = module._Connector if of_fabric else module._AcceleratorConnector
    choose_accelerator, choose_strategy = connector._choose_auto_accelerator, connector._choose_strategy
    init_precision, unify = connector._check_and_init_precision, module._convert_precision_to_unified_args
    wrong = misconfiguration(package)

    def auto_accelerator() -> str:
        chosen = choose_accelerator()
        return "hpu" if chosen == "cpu" and torch.hpu.is_available() else str(chosen)

    def strategy(self: Any) -> Any:
        if not isinstance(self.accelerator, _classes.Accelerator):
            return choose_strategy(self)
        count = len(self._parallel_devices) * self._num_nodes_flag
        if count > 1 and of_fabric:
            raise wrong(f"accelerator='hpu': found {count} devices, allowed: 1 (devices=1, num_nodes=1); lightning.pytorch has several")
        return made(package, "HPUParallelStrategy" if count > 1 else "SingleHPUStrategy")()

    def precision(self: Any) -> Any:
        given, flag = (self._precision_instance, self._precision_input) if of_fabric else (self._precision_plugin_flag, self._precision_flag)
        here = isinstance(self.accelerator, _classes.Accelerator)
        _check(self, given, flag, here)
        if here and given is None and not (flag.endswith("-true") and flag != "32-true"):
            return made(package, getattr(self.strategy, "precision_name", "HPUPrecisionPlugin"))(flag)
        return init_precision(self)

    def _check(self: Any, given: Any, flag: str, here: bool) -> None:
        """Nothing that is asked for is of another device, which would compute in f32 or on the CPU without a word."""
        found, device = type(self.strategy).__name__, getattr(self.strategy, "_root_device", None)
        on_hpu = isinstance(self.strategy, _classes.OnHpu) or (device is not None and device.type == "hpu")
        if here and not on_hpu:
            allowed = ", ".join(map(repr, ("auto", *_NAMES["strategies"])))
            raise wrong(f"strategy: found {found}, allowed with accelerator='hpu': {allowed} and their classes; accelerator='cpu' computes "
                        "on the CPU")
        if not here and on_hpu:
            raise AssertionError(f"{found} requires HPUAccelerator. Found {type(self.accelerator).__name__}.")
        if not here and (isinstance(given, _classes.Precision) or flag == "fp8"):
            raise wrong(f"precision: found {given or flag!r} with {type(self.accelerator).__name__}, allowed: accelerator='hpu'")
        if not here or given is None:
            return
        if isinstance(given, _classes.Precision) and given.package != package:
            raise wrong(f"plugins: found a {type(given).__name__} of {given.package}, allowed: one of {package}")
        if str(getattr(given, "device", "hpu")).partition(":")[0] != "hpu":
            raise wrong(f"plugins: found {type(given).__name__} for {given.device}, allowed with accelerator='hpu': precision='...' or "
                        "HPUPrecisionPlugin(precision='...')")

    accelerators, strategies = ((module.ACCELERATOR_REGISTRY, module.STRATEGY_REGISTRY) if of_fabric else
                                (module.AcceleratorRegistry, module.StrategyRegistry))
    accelerators.register("hpu", made(package, "HPUAccelerator"), description="HPUAccelerator")
    for name, (kind, arguments) in _NAMES["strategies"].items():
        strategies.register(name, made(package, kind, name), description=kind, **arguments)
    connector._choose_auto_accelerator = staticmethod(auto_accelerator)
    connector._choose_strategy, connector._check_and_init_precision = strategy, precision
    module._convert_precision_to_unified_args = lambda given: "fp8" if given == "fp8" else unify(given)


aliases(__name__)
