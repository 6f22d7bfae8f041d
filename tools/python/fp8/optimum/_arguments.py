# SPDX-License-Identifier: Apache-2.0
"""GaudiTrainingArguments: transformers' arguments, Optimum's beside them, and what of these the emulated device refuses; gaudi_config.json."""

import builtins
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import warnings
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Union
from unittest import mock

import torch
import transformers
from accelerate import state
from transformers import training_args
from transformers.utils import hub

from fp8 import _config, _trainers
from fp8._trainers import expect

# Optimum's arguments with their types and defaults, and its defaults of transformers' arguments; those that change no result, which are
# accepted; arguments with what is allowed; those that ask for hpu.
_OWN, _ACCEPTED, _ONLY, _HABANAS = (_trainers.NAMES["optimum"][key] for key in ("own", "accepted", "only", "of hpu"))

if TYPE_CHECKING:
    class _More:
        def __getattr__(self, name: str) -> Any: ...
else:  # the fields of these tables
    _theirs = transformers.TrainingArguments.__dataclass_fields__
    _others = {**_ACCEPTED, **{name: values[0] for name, values in _ONLY.items() if name not in _theirs}}
    _fields = {name: (bool if value is None else type(value), value) for name, value in _others.items()}
    _fields |= {name: (getattr(builtins, kind), value) for kind, values in _OWN.items() for name, value in values.items()}
    _More = dataclasses.make_dataclass("_More", [(name, _theirs[name].type if name in _theirs else kind | None, value)
                                                 for name, (kind, value) in _fields.items()])


@functools.cache  # once
def _tell(names: str) -> None:
    warnings.warn(f"{names}: accepted, and changes nothing: GaudiTrainer does not turn lazy mode on (PT_HPU_LAZY_MODE=1 does), and a last batch is "
                  "not filled up", stacklevel=4)


@contextlib.contextmanager
def _hpu_is_there() -> Iterator[None]:
    """transformers and accelerate look for Habana's package by name. Inside they take hpu without it."""
    with contextlib.ExitStack() as stack:
        for module, name in ((state, "is_hpu_available"), (training_args, "is_torch_hpu_available"), (training_args, "is_torch_bf16_gpu_available")):
            stack.enter_context(mock.patch.object(module, name, lambda *_, **__: True))
        yield


@dataclasses.dataclass
class GaudiTrainingArguments(_More, transformers.TrainingArguments):
    """transformers.TrainingArguments and Optimum's own. use_habana: on hpu, else on the CPU; fp8: linear layers train in fp8, the rest as
    with bf16; gaudi_config_name: where GaudiConfig.from_pretrained() finds the trainer's config; use_hpu_graphs_for_training and
    _for_inference: through torch.hpu.ModuleCacher, with at most max_hpu_graphs; throughput_warmup_steps: the first steps, which do not
    count for the throughput; adjust_throughput: nor does the time of logging, evaluation and saving; profiling_*: of utils.HabanaProfile;
    non_blocking_data_copy: batches go to hpu from pinned memory by copies that wait with the other calls in lazy mode.

    Raises ValueError naming the argument for what can't be done. What can't change a result is accepted, and a warning says so once."""

    def _allow(self) -> Iterator[tuple[str, bool, str]]:
        """Arguments, whether they are right, and what is allowed."""
        on_hpu, graphs = bool(self.use_habana), self.use_hpu_graphs or self.use_hpu_graphs_for_inference or self.use_hpu_graphs_for_training
        for name, values in _ONLY.items():
            yield name, getattr(self, name) in values, ", ".join(map(repr, values))
        for name in _HABANAS:
            yield name, on_hpu or not getattr(self, name), "with use_habana=True"
        for name in ("disable_tensor_cache_hpu_graphs", "max_hpu_graphs"):
            yield name, bool(graphs) or not getattr(self, name), "with use_hpu_graphs_for_training or use_hpu_graphs_for_inference"
        compiled = self.torch_compile or self.torch_compile_backend
        yield "use_lazy_mode", bool(self.use_lazy_mode or compiled or not graphs), "True with graphs, or torch_compile_backend"
        yield "use_cpu", not (on_hpu and self.use_cpu), "False with use_habana"
        yield "half_precision_backend", self.half_precision_backend == ("hpu_amp" if on_hpu else "cpu_amp") or not self.bf16, (
            "'hpu_amp' with use_habana, 'cpu_amp' with bf16 on the CPU")
        yield "minimize_memory", not self.minimize_memory or bool(self.fp8), "with fp8=True"
        yield "fp8", not self.fp8 or torch.hpu.get_device_name() != "GAUDI", "False on GAUDI: Gaudi2 or higher required"
        yield "throughput_warmup_steps", self.throughput_warmup_steps >= 0, "0 or more"

    def __post_init__(self) -> None:
        for name, right, allowed in self._allow():
            expect(right, type(self).__name__, name, repr(getattr(self, name)), allowed)
        # accelerate finds the backend of the device; warmup_steps is what transformers calls warmup_ratio too
        self.__dict__.update(ddp_backend=None, warmup_steps=self.warmup_steps or self.warmup_ratio, use_cpu=not self.use_habana)
        with _hpu_is_there() if self.use_habana else contextlib.nullcontext():
            super().__post_init__()
        if self.non_blocking_data_copy:
            self.accelerator_config.non_blocking = True
        self.use_hpu_graphs_for_inference = self.use_hpu_graphs_for_inference or self.use_hpu_graphs  # its older name
        names = [name for name, nothing in {"use_lazy_mode": False, **_ACCEPTED}.items() if getattr(self, name) != nothing]
        if names:
            _tell(", ".join(names))


@dataclasses.dataclass
class GaudiSeq2SeqTrainingArguments(GaudiTrainingArguments, transformers.Seq2SeqTrainingArguments):
    """GaudiTrainingArguments with those of transformers.Seq2SeqTrainingArguments."""


Path = Union[str, "os.PathLike[str]"]
_FILE = "gaudi_config.json"


def _check(keys: Mapping[str, Any], source: str) -> None:
    for problem in torch.ops.fp8.gaudi_config_problems(json.dumps(keys, default=repr), source):
        raise ValueError(problem)


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
    autocast_bf16_ops: list[str] | None = None
    autocast_fp32_ops: list[str] | None = None
    use_dynamic_shapes: bool = False
    use_fused_adam: bool = False
    use_fused_clip_norm: bool = False

    def __post_init__(self) -> None: _check({key: value for key, value in self.to_dict().items() if value is not None}, "GaudiConfig")

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], source: str = "GaudiConfig") -> "GaudiConfig":
        """Raises ValueError for an unknown key (the nearest is named). source: in messages."""
        _check(config_dict, source)
        return cls(**{field.name: config_dict[field.name] for field in dataclasses.fields(cls) if field.name in config_dict})

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Path, **kwargs: Any) -> "GaudiConfig":
        """The gaudi_config.json of a folder, a file, or what transformers' cached_file(**kwargs) finds on the Hub."""
        file: Any = os.fspath(pretrained_model_name_or_path)
        if not os.path.isfile(file):
            file = hub.cached_file(file, _FILE, **kwargs)
        return cls.from_dict(_config.read_object(file), file)

    def save_pretrained(self, save_directory: Path) -> None:
        os.makedirs(save_directory, exist_ok=True)
        pathlib.Path(save_directory, _FILE).write_text(json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def to_dict(self) -> dict[str, Any]: return dataclasses.asdict(self)

    def write_bf16_fp32_ops_to_text_files(self, path_to_bf16_file: Path, path_to_fp32_file: Path) -> None:
        """As LOWER_LIST and FP32_LIST name them: a name on a line."""
        for path, names in ((path_to_bf16_file, self.autocast_bf16_ops), (path_to_fp32_file, self.autocast_fp32_ops)):
            pathlib.Path(path).write_text("".join(name + "\n" for name in names or ()), encoding="utf-8")

    def declare_autocast_bf16_fp32_ops(self) -> None:
        """Puts the config's lists in force for the process, but where the environment names a list. Warns of names that no operator has."""
        if self.autocast_bf16_ops is not None and not (os.environ.get("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST") or os.environ.get("LOWER_LIST")):
            for unknown in torch.ops.fp8.set_autocast_lists(self.autocast_bf16_ops, self.autocast_fp32_ops):
                warnings.warn(f"GaudiConfig: {unknown}", stacklevel=2)
