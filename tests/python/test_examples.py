# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings run, and give what stands below them."""

import doctest
import importlib
import pathlib

import fp8


def test_docstrings():
    tried = 0
    for file in sorted(pathlib.Path(fp8.__file__).parent.glob("*.py")):
        name = "fp8" if file.stem == "__init__" else f"fp8.{file.stem}"
        found = doctest.testmod(importlib.import_module(name))
        assert not found.failed, name
        tried += found.attempted
    assert tried > 10
