# SPDX-License-Identifier: Apache-2.0
"""Emulation: Habana's quantization toolkit over fp8.quant. The config is the file that QUANT_CONFIG names; its mode says what is done."""

import typing

import habana_frameworks  # noqa: F401: refuses beside the real one
import torch

import fp8
from fp8._config import config_of as _config_of


def prep_model(model: torch.nn.Module, config: typing.Any = None) -> torch.nn.Module:
    """Mode MEASURE: watches the model until finish_measurements(); QUANTIZE: puts it into fp8."""
    return fp8.quant._by_mode(model, _config_of(config, "prep_model"))


def finish_measurements(model: torch.nn.Module) -> None:
    """Writes what was measured. A model in fp8 has nothing to write."""
    fp8.quant._end_measurement(model)
