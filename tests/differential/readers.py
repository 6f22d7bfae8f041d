# SPDX-License-Identifier: Apache-2.0
"""Of each reader: what makes inputs, and what the reference makes of one: the value as differential_answers writes it, or None."""

import files
import texts
from common import refusing

READERS = {
    "json": (texts.json_cases, refusing(texts.python_json)),
    "yaml": (texts.yaml_cases, refusing(texts.pyyaml)),
    "pickle": (files.pickle_cases, refusing(files.python_pickle)),
    "npz": (files.npz_cases, refusing(files.numpy_load)),
    "zip": (files.zip_cases, refusing(files.python_zip)),
    "zip64": (files.zip64_cases, refusing(files.python_zip_all)),
    "safetensors": (files.safetensors_cases, refusing(files.safetensors_reference)),
    "torch": (files.torch_cases, refusing(files.torch_reference)),
    "floats": (texts.float_cases, refusing(texts.float_reference)),
    "casts": (texts.cast_cases, refusing(texts.ml_dtypes_casts)),
    "chat": (texts.chat_cases, refusing(texts.jinja)),
}
NEEDS = {
    "yaml": ("yaml",),
    "pickle": ("numpy",),
    "npz": ("numpy",),
    "safetensors": ("safetensors",),
    "torch": ("torch",),
    "floats": ("numpy",),
    "casts": ("ml_dtypes",),
    "chat": ("jinja2",),
}
