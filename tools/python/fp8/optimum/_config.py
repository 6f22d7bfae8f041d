# SPDX-License-Identifier: Apache-2.0
"""gaudi_config.json."""

import dataclasses
import difflib
import json
import os
import pathlib
import typing
import warnings

import torch

from fp8 import _config

Path = typing.Union[str, "os.PathLike[str]"]
_FILE = "gaudi_config.json"
# Of files: keys that say nothing here, and are not written again.
_PASSED_OVER = ("hmp_bf16_ops", "hmp_fp32_ops", "hmp_is_verbose", "hmp_opt_level", "optimum_version", "transformers_version")


@dataclasses.dataclass
class GaudiConfig:
    """How GaudiTrainer trains. use_torch_autocast: autocast in bfloat16, as with `bf16` of the arguments; autocast_*_ops: its lists (see
    declare_autocast_bf16_fp32_ops); use_fused_adam, use_fused_clip_norm: fp8.optim.FusedAdamW and FusedClipNorm; use_dynamic_shapes
    changes nothing. Raises ValueError for a value.

        >>> from fp8.optimum import GaudiConfig
        >>> GaudiConfig(use_fused_adam=True).to_dict()["use_fused_clip_norm"]
        False
    """
    use_torch_autocast: bool = False
    autocast_bf16_ops: typing.Optional[list[str]] = None
    autocast_fp32_ops: typing.Optional[list[str]] = None
    use_dynamic_shapes: bool = False
    use_fused_adam: bool = False
    use_fused_clip_norm: bool = False

    def __post_init__(self) -> None:
        for key, value in self.to_dict().items():
            ops = key.startswith("autocast")
            names = value is None or isinstance(value, list) and all(isinstance(name, str) for name in value)
            if not (names if ops else isinstance(value, bool)):
                raise ValueError(f"GaudiConfig: {key}: found {value!r}, allowed: {'a list of names, None' if ops else 'True, False'}")
        if (self.autocast_bf16_ops is None) != (self.autocast_fp32_ops is None):
            raise ValueError("GaudiConfig: found one of autocast_bf16_ops and autocast_fp32_ops, allowed: both or none")

    @classmethod
    def from_dict(cls, config_dict: typing.Mapping[str, typing.Any]) -> "GaudiConfig":
        """Raises ValueError for an unknown key (the nearest is named)."""
        keys = {key: value for key, value in config_dict.items() if key not in _PASSED_OVER}
        if keys.pop("use_habana_mixed_precision", False):
            raise ValueError("GaudiConfig: use_habana_mixed_precision: found True, allowed: False; use_torch_autocast has replaced it")
        known = [field.name for field in dataclasses.fields(cls)]
        for key in (key for key in keys if key not in known):
            near = difflib.get_close_matches(key, known, 1)
            raise ValueError(f"GaudiConfig: unknown key '{key}'" + (f", did you mean '{near[0]}'?" if near else f", allowed: {', '.join(known)}"))
        return cls(**keys)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Path, **kwargs: typing.Any) -> "GaudiConfig":
        """The gaudi_config.json of a folder, a file, or what transformers' cached_file(**kwargs) finds on the Hub."""
        file: typing.Any = os.fspath(pretrained_model_name_or_path)
        if not os.path.isfile(file):
            from transformers.utils import hub
            file = hub.cached_file(file, _FILE, **kwargs)
        keys = _config.read_object(file)
        try:
            return cls.from_dict(keys)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None

    def save_pretrained(self, save_directory: Path) -> None:
        os.makedirs(save_directory, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=2, sort_keys=True)
        pathlib.Path(save_directory, _FILE).write_text(text + "\n", encoding="utf-8")

    def to_dict(self) -> dict[str, typing.Any]: return dataclasses.asdict(self)

    def write_bf16_fp32_ops_to_text_files(self, path_to_bf16_file: Path, path_to_fp32_file: Path) -> None:
        """As LOWER_LIST and FP32_LIST name them: a name on a line."""
        for path, names in ((path_to_bf16_file, self.autocast_bf16_ops), (path_to_fp32_file, self.autocast_fp32_ops)):
            pathlib.Path(path).write_text("".join(name + "\n" for name in names or ()), encoding="utf-8")

    def declare_autocast_bf16_fp32_ops(self) -> None:
        """Puts the config's lists in force for the process, but where the environment names a list. Warns of names that no operator has."""
        if self.autocast_bf16_ops is not None and not (os.environ.get("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST") or os.environ.get("LOWER_LIST")):
            for unknown in torch.ops.fp8.set_autocast_lists(self.autocast_bf16_ops, self.autocast_fp32_ops):
                warnings.warn(f"GaudiConfig: {unknown}", stacklevel=2)
