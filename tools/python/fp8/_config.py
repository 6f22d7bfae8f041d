# SPDX-License-Identifier: Apache-2.0
"""A QUANT_CONFIG as a Python object: INC's keys, checked by the library that reads the file's."""

import json
import os
import pathlib
import typing

import torch


class FP8Config:
    """A QUANT_CONFIG. Keys and values are those of its JSON (tools/pages/quant_config.md); `mode` is "AUTO" unless it is
    given: prepare() measures, convert() quantizes.

        >>> import fp8
        >>> fp8.quant.FP8Config(scale_method="maxabs_pow2", blocklist={"names": ["lm_head"]}).to_dict()["mode"]
        'AUTO'

    Raises ValueError for an unknown key (the nearest is named) or value."""

    def __init__(self, **keys: typing.Any) -> None:
        self._set({"mode": "AUTO", "dump_stats_path": "./hqt_output/measure", **keys}, "FP8Config")

    def _set(self, keys: dict[str, typing.Any], source: str) -> None:
        from fp8 import _library
        _library.require()
        self._keys = keys
        if problems := torch.ops.fp8.config_problems(json.dumps(keys, default=_plain), source):
            raise ValueError("; ".join(problems))

    @classmethod
    def from_dict(cls, config_dict: typing.Mapping[str, typing.Any]) -> "FP8Config":
        return cls(**config_dict)

    @classmethod
    def from_json_file(cls, filename: typing.Union[str, "os.PathLike[str]"]) -> "FP8Config":
        """Raises FileNotFoundError, and ValueError naming the file."""
        config = cls.__new__(cls)
        config._set({"mode": "AUTO", **read_object(filename)}, str(filename))
        return config

    def to_dict(self) -> dict[str, typing.Any]:
        return json.loads(json.dumps(self._keys, default=_plain))

    def to_json_string(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def to_json_file(self, filename: typing.Union[str, "os.PathLike[str]"]) -> None:
        pathlib.Path(filename).write_text(self.to_json_string() + "\n", encoding="utf-8")

    @property
    def mode(self) -> str:
        return str(self._keys["mode"]).upper()

    def __getattr__(self, name: str) -> typing.Any:
        keys = self.__dict__.get("_keys", {})
        if name in keys:
            return keys[name]
        raise AttributeError(f"FP8Config has no key '{name}'")

    def __repr__(self) -> str:
        return f"FP8Config({', '.join(f'{key}={value!r}' for key, value in self._keys.items())})"


def read_object(filename: typing.Union[str, "os.PathLike[str]"]) -> dict[str, typing.Any]:
    """The JSON object of a file. Raises FileNotFoundError, and ValueError naming the file."""
    text = pathlib.Path(filename).read_text(encoding="utf-8")
    try:
        keys = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{filename}: {error}") from None
    if not isinstance(keys, dict):
        raise ValueError(f"{filename}: found {type(keys).__name__}, expected a JSON object")
    return keys


Config = typing.Union[FP8Config, typing.Mapping[str, typing.Any], str, "os.PathLike[str]", None]


def _plain(value: typing.Any) -> typing.Any:
    """Tuples and sets of names, dtypes and enums as JSON has them."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, torch.dtype):
        return {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}.get(value, str(value))
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return getattr(value, "name", str(value))


def config_of(given: Config, function: str) -> FP8Config:
    """What prepare() and convert() take: an FP8Config, a mapping, a file, or None for the file of QUANT_CONFIG."""
    if isinstance(given, FP8Config):
        return given
    if isinstance(given, typing.Mapping):
        return FP8Config.from_dict(given)
    if given is None and not (given := os.environ.get("QUANT_CONFIG")):
        raise ValueError(f"{function}: config: found None and no QUANT_CONFIG in the environment, expected an FP8Config, a dict or a file")
    return FP8Config.from_json_file(given)
