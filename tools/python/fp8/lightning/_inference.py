# SPDX-License-Identifier: Apache-2.0
"""convert_modules(inference=True) of the precision plugin: a measurement that ends with the run, and models that run with it."""

import json
import os
import pathlib
from typing import Any, Union

import torch

from fp8 import quant as fp8_quant


def convert(model: torch.nn.Module, quant: Any, folder: Union[str, "os.PathLike[str]", None]) -> torch.nn.Module:
    """quant: False measures, True quantizes: with the keys of QUANT_CONFIG where it is set, else with scale_method maxabs_hw, and the
    measurement below `folder`, else $HABANA_LOGS. A file or a dict is a QUANT_CONFIG, and its mode says which.

    Raises TypeError for another quant, FileNotFoundError for a file or a measurement."""
    if isinstance(quant, bool):
        keys = _default(folder)
        keys["mode"] = "QUANTIZE" if quant else "MEASURE"
    elif isinstance(quant, (str, os.PathLike)):
        keys = json.loads(pathlib.Path(quant).read_text(encoding="utf-8"))
    elif isinstance(quant, dict):
        keys = dict(quant)
    else:
        raise TypeError(f"`quant` must be either a bool, file path or a dictionary. Got {type(quant)}")
    if folder is not None:
        keys["dump_stats_path"] = _below(folder)
    config = fp8_quant.FP8Config.from_dict(keys)
    return fp8_quant.prepare(model, config) if config.mode in ("MEASURE", "SHAPE") else fp8_quant.convert(model, config)


def _default(folder: Union[str, "os.PathLike[str]", None]) -> dict[str, Any]:
    given = os.environ.get("QUANT_CONFIG")
    if given:
        return dict(fp8_quant.FP8Config.from_json_file(given).to_dict())
    folder = folder or os.environ.get("HABANA_LOGS")
    assert folder, "convert_modules: `fp8_data_path`: found None and no HABANA_LOGS in the environment, expected a folder for the measurement"
    return {"scale_method": "maxabs_hw", "dump_stats_path": _below(folder)}


def _below(folder: Union[str, "os.PathLike[str]"]) -> str: return os.path.join(os.fspath(folder), "inc_output", "measure")


def finish(model: torch.nn.Module) -> None:
    """Writes what was measured, if it was."""
    if model.__dict__.get(fp8_quant._CALIBRATION) is not None:
        fp8_quant.finalize_calibration(model)
