# SPDX-License-Identifier: Apache-2.0
"""What Lightning's accelerator, precision, strategy, checkpoints and profiler do on hpu, and the image folders of lightning-habana.
Each class stands before one of Lightning's own (__init__.py), whose package is `package`."""

import contextlib
import os
from typing import Any, ContextManager, Iterator, Union

import torch

from fp8 import _config, lightning

Path = Union[str, "os.PathLike[str]"]
_PRECISIONS = {"32": "32-true", "32-true": "32-true", "bf16": "bf16-mixed", "bf16-mixed": "bf16-mixed", "16-mixed": "16-mixed", "fp8": "fp8"}
_DTYPES = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16, "fp8": torch.bfloat16}


class Accelerator:
    """Accelerator for hpu, emulated in the host's memory."""
    package: str

    def setup_device(self, device: torch.device) -> None:
        if device.type != "hpu":
            raise lightning.misconfiguration(self.package)(f"Device should be HPU, got {device} instead.")
        torch.hpu.set_device(device)

    def teardown(self) -> None: """Nothing is kept."""
    def get_device_stats(self, device: Any) -> dict[str, int]: return torch.hpu.memory_stats(device)  # its ten rows

    @classmethod
    def parse_devices(cls, devices: int | str | None) -> int:
        """A count. -1 and None: all."""
        wrong = lightning.misconfiguration(cls.package)
        if not isinstance(devices, (int, str, type(None))) or isinstance(devices, bool):
            raise wrong(f"`devices` for `HPUAccelerator` must be int, string or None. Found {devices!r}.")
        there = torch.hpu.device_count()
        count = there if devices in (None, -1, "-1") else int(devices) if str(devices).isdecimal() else 0
        if not 0 < count <= there:
            raise wrong(f"`devices` for `HPUAccelerator`: found {devices!r}, allowed: a count from 1 to {there} (FP8_HPU_DEVICES emulates more)")
        return count

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]: return [torch.device("hpu")] * devices
    @staticmethod
    def auto_device_count() -> int: return torch.hpu.device_count()
    @staticmethod
    def is_available() -> bool: return torch.hpu.is_available()
    @staticmethod
    def get_device_name(device: Any = None) -> str: return torch.hpu.get_device_name(device)
    @staticmethod
    def is_lazy() -> bool: return bool(torch.classes.fp8_graphs.Metrics.is_lazy())
    @staticmethod
    def name() -> str: return "hpu"


class Precision:
    """Precision of a training on hpu. precision: "32-true", "bf16-mixed", "16-mixed", or "fp8", which computes the products of linear
    layers in fp8 and the rest as "bf16-mixed" does. A model without modules in fp8 is converted when its training is set up."""
    package: str
    allowed: tuple[str, ...] = tuple(_DTYPES)

    def __init__(self, precision: int | str = "32-true", device: str = "hpu") -> None:
        name = _PRECISIONS.get(str(precision))
        if name is None:
            raise ValueError(f"`Trainer(accelerator='hpu', precision={precision!r})` is not supported. `precision` must be one of: "
                             f"{tuple(_PRECISIONS)}.")
        if torch.device(device).type != "hpu":
            raise ValueError(f"HPUPrecisionPlugin: device: found {device!r}, allowed: 'hpu'")
        if name not in self.allowed:
            raise ValueError(f"{type(self).__name__}: precision: found {precision!r}, allowed: {', '.join(self.allowed)}")
        if name in ("16-mixed", "fp8") and torch.hpu.get_device_name() == "GAUDI":
            raise NotImplementedError(f"{'fp16' if name == '16-mixed' else 'fp8'} not supported: found GAUDI, Gaudi2 or higher required.")
        self.precision, self.device = name, device
        self.scaler = torch.amp.GradScaler(device) if name == "16-mixed" else None
        self.recipe: Any = None
        self._desired_input_dtype = _DTYPES[name]  # Fabric's converts inputs to it
        self._inference = False

    def convert_modules(self, module: torch.nn.Module, inference: bool = False, replace_layers: bool = False, recipe: Any = None,
                        quant: Any = True, fp8_data_path: Path | None = None) -> torch.nn.Module:
        """Moves the model to hpu and prepares its training in fp8, with `recipe`, or its inference. Returns the model.

        replace_layers=False: the model has modules of fp8.te itself; quant: False measures, True quantizes, with the keys of QUANT_CONFIG
        where it is set, else with scale_method maxabs_hw and the measurement below `fp8_data_path`, else $HABANA_LOGS; or a QUANT_CONFIG, a
        file or a dict, whose mode says which. Raises TypeError for another quant, FileNotFoundError for a file or a measurement."""
        assert self.precision == "fp8", "HPUPrecisionPlugin.convert_modules() should only be used with precision=`fp8`."
        module.to(self.device)
        if inference:
            self._inference = True
            return _for_inference(module, quant, fp8_data_path)
        from fp8 import te
        self._inference, self.recipe = False, recipe
        if replace_layers:
            te.convert_modules(module, replace_layers=True, recipe=recipe)
        return module

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """What Lightning calls before it makes the optimizers."""
        from fp8.te import _attached
        if self.precision != "fp8" or self._inference or _attached.within(module):
            return module
        return self.convert_modules(module, replace_layers=True, recipe=self.recipe)

    @contextlib.contextmanager
    def forward_context(self) -> Iterator[None]:
        """Around each step. Regions of torch.autocast(enabled=False) inside of it are in the precision of their inputs."""
        if self.precision == "32-true":
            yield
            return
        in_fp8 = self.precision == "fp8" and not self._inference
        with torch.autocast("hpu", dtype=_DTYPES[self.precision], cache_enabled=False), self._region() if in_fp8 else contextlib.nullcontext():
            yield

    def _region(self) -> ContextManager[Any]:
        from fp8 import te
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        return te.fp8_autocast(enabled=True, fp8_recipe=self.recipe, fp8_group=torch.distributed.group.WORLD if several else None)

    def autocast_context_manager(self) -> ContextManager[None]: return self.forward_context()


def _for_inference(model: torch.nn.Module, quant: Any, folder: Path | None) -> torch.nn.Module:
    """A measurement that ends with the run, or a model that runs in fp8."""
    from fp8 import quant as fp8_quant
    if not isinstance(quant, (bool, str, os.PathLike, dict)):
        raise TypeError(f"`quant` must be either a bool, file path or a dictionary. Got {type(quant)}")
    given = (os.environ.get("QUANT_CONFIG") or None) if isinstance(quant, bool) else quant
    folder = folder or (os.environ.get("HABANA_LOGS") if given is None else None)
    assert given is not None or folder, ("convert_modules: `fp8_data_path`: found None and no HABANA_LOGS in the environment, expected a folder "
                                         "for the measurement")
    keys = {"scale_method": "maxabs_hw"} if given is None else dict(_config.config_of(given, "convert_modules").to_dict())
    if isinstance(quant, bool):
        keys["mode"] = "QUANTIZE" if quant else "MEASURE"
    if folder:
        keys["dump_stats_path"] = os.path.join(os.fspath(folder), "inc_output", "measure")
    return fp8_quant._by_mode(model, fp8_quant.FP8Config.from_dict(keys))


class OnHpu:
    """What strategies for hpu share."""
    package: str

    @property
    def checkpoint_io(self) -> Any:
        if self._checkpoint_io is None:
            self._checkpoint_io = lightning.made(self.package, "HPUCheckpointIO")()
        return super().checkpoint_io  # type: ignore[misc]

    @checkpoint_io.setter
    def checkpoint_io(self, io: Any) -> None:
        self._checkpoint_io = io

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """The scales of a checkpoint go to modules that are converted when they are set up."""
        return bool(self.precision_plugin.precision == "fp8" or super().restore_checkpoint_after_setup)  # type: ignore[attr-defined, misc]

    def teardown(self) -> None:
        """Lightning moves the model to the host: its scales wait there for the next run, and for checkpoints."""
        from fp8.te import _attached
        module = getattr(self, "lightning_module", None)
        for part, attached in _attached.within(module) if module is not None else ():
            if attached.live and attached.weight(part).owned.device.type == "hpu":
                attached.forget(attached.saved())
        super().teardown()  # type: ignore[misc]

    def _measured(self) -> None:
        from fp8 import quant
        quant._end_measurement(self.lightning_module)  # type: ignore[attr-defined]

    on_validation_end = on_test_end = on_predict_end = _measured


class Single(OnHpu):
    """Strategy for one hpu in one process."""
    strategy_name = "hpu_single"

    def __init__(self, device: Any = "hpu", *args: Any, **kwargs: Any) -> None:
        if torch.device(device).type != "hpu":
            raise ValueError(f"SingleHPUStrategy: device: found {device}, allowed: hpu")
        super().__init__(device, *args, **kwargs)  # type: ignore[call-arg]


class CheckpointIO:
    """Checkpoints whose tensors are on the host, so that any machine loads them. A file is whole or is not there."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Path, storage_options: Any = None) -> None:
        copies: dict[int, torch.Tensor] = {}  # tied weights stay one

        def to_host(found: Any) -> Any:
            return copies.setdefault(id(found), found.cpu()) if isinstance(found, torch.Tensor) else found
        checkpoint = torch.utils._pytree.tree_map(to_host, checkpoint)
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)  # type: ignore[misc]  # refuses the options
            return
        path = os.path.abspath(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        part = f"{path}.{os.getpid()}.part"
        try:
            with open(part, "wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
            raise


class Profiler:
    """Lightning's PyTorchProfiler: operators of hpu compute on the host's cores, and stand in its traces and tables as the CPU's do.

    Arguments are PyTorchProfiler's; those after `record_module_names` are torch.profiler's. sort_by_key: "hpu_time_total" is "cpu_time_total"."""

    def __init__(self, dirpath: Any = None, filename: str | None = None, group_by_input_shapes: bool = False, export_to_chrome: bool = True,
                 row_limit: int = 20, sort_by_key: str | None = None, record_module_names: bool = False, **kwargs: Any) -> None:
        sort_by_key = (sort_by_key or "cpu_time_total").replace("hpu", "cpu")
        super().__init__(dirpath, filename, group_by_input_shapes, export_to_chrome=export_to_chrome, row_limit=row_limit,  # type: ignore[call-arg]
                         record_module_names=record_module_names, sort_by_key=sort_by_key, **kwargs)


class DataModule:
    """Images in folders by class (torchvision's ImageFolder), for training and validation."""

    def __init__(self, train_dir: str = "/tmp/data", val_dir: str = "/tmp/data", num_workers: int = 8, normalize: bool = False, seed: int = 42,
                 batch_size: int = 32, train_transforms: Any = None, val_transforms: Any = None, pin_memory: bool = True,
                 shuffle: bool = False, drop_last: bool = True) -> None:
        super().__init__()
        self.folders, self.transforms = {"train": train_dir, "val": val_dir}, {"train": train_transforms, "val": val_transforms}
        self.normalize, self.seed = normalize, seed
        self.loading = {"batch_size": batch_size, "num_workers": num_workers, "drop_last": drop_last}
        self.shuffle = shuffle
        del pin_memory  # the host's memory is the device's

    def _loader(self, part: str, shuffle: bool) -> Any:
        from torchvision import datasets, transforms
        steps = self.transforms[part] or [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
        if self.normalize:
            steps = [*steps, transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
        images = datasets.ImageFolder(self.folders[part], transforms.Compose(steps))
        order = torch.Generator().manual_seed(self.seed)
        return torch.utils.data.DataLoader(images, shuffle=shuffle, generator=order, **self.loading)

    def train_dataloader(self) -> Any: return self._loader("train", self.shuffle)
    def val_dataloader(self) -> Any: return self._loader("val", False)
    test_dataloader = val_dataloader
