# SPDX-License-Identifier: Apache-2.0
"""What Lightning's Trainer and Fabric choose for hpu. Three methods of their connectors choose strategy, "auto" and precision by
names that know no hpu; with it they come here, and go on as they were with any other accelerator."""

from typing import Any

import torch

from fp8 import lightning
from fp8.lightning import _classes, _stack, _strategies

def teach_trainer(module: Any) -> None:
    """module: trainer.connectors.accelerator_connector of lightning.pytorch or pytorch_lightning."""
    _teach(module, module._AcceleratorConnector, module.__name__.rpartition(".trainer.")[0], module.AcceleratorRegistry, module.StrategyRegistry)


def teach_fabric(module: Any) -> None:
    """module: connector of lightning.fabric or lightning_fabric."""
    _teach(module, module._Connector, module.__name__.rpartition(".")[0], module.ACCELERATOR_REGISTRY, module.STRATEGY_REGISTRY)


def _teach(module: Any, connector: Any, package: str, accelerators: Any, strategies: Any) -> None:
    choose_accelerator, choose_strategy = connector._choose_auto_accelerator, connector._choose_strategy
    init_precision, unify = connector._check_and_init_precision, module._convert_precision_to_unified_args
    wrong = _stack.misconfiguration(package)

    def auto_accelerator() -> str:
        chosen = choose_accelerator()
        return "hpu" if chosen == "cpu" and torch.hpu.is_available() else str(chosen)

    def strategy(self: Any) -> Any:
        if not isinstance(self.accelerator, _classes.Accelerator):
            return choose_strategy(self)
        count = len(self._parallel_devices) * self._num_nodes_flag
        if count > 1 and not _stack.has(package, "HPUParallelStrategy"):
            raise wrong(f"accelerator='hpu': found {count} devices, allowed: 1 (devices=1, num_nodes=1); lightning.pytorch has several")
        return _stack.made(package, "HPUParallelStrategy" if count > 1 else "SingleHPUStrategy")()

    def precision(self: Any) -> Any:
        given = self._precision_plugin_flag if hasattr(self, "_precision_plugin_flag") else self._precision_instance
        flag = self._precision_flag if hasattr(self, "_precision_flag") else self._precision_input
        here = isinstance(self.accelerator, _classes.Accelerator)
        _check(self, given, flag, here)
        if here and given is None and not (flag.endswith("-true") and flag != "32-true"):
            return _stack.made(package, getattr(self.strategy, "precision_name", "HPUPrecisionPlugin"))(flag)
        return init_precision(self)

    def _check(self: Any, given: Any, flag: str, here: bool) -> None:
        """Nothing that is asked for is of another device, which would compute in f32 or on the CPU without a word."""
        found, device = type(self.strategy).__name__, getattr(self.strategy, "_root_device", None)
        on_hpu = isinstance(self.strategy, _classes.OnHpu) or (device is not None and device.type == "hpu")
        if here and not on_hpu:
            raise wrong(f"strategy: found {found}, allowed with accelerator='hpu': 'auto', {', '.join(map(repr, _strategies.NAMES))} and their classes"
                        "; accelerator='cpu' computes on the CPU")
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

    accelerators.register("hpu", _stack.made(package, "HPUAccelerator"), description="HPUAccelerator")
    _strategies.register(package, strategies, lightning.refused)
    connector._choose_auto_accelerator = staticmethod(auto_accelerator)
    connector._choose_strategy, connector._check_and_init_precision = strategy, precision
    module._convert_precision_to_unified_args = lambda given: "fp8" if given == "fp8" else unify(given)
