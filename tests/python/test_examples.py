# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings run, and give what stands below them."""

import doctest
import importlib
import pathlib

import fp8


def test_docstrings():
    tried = 0
    folder = pathlib.Path(fp8.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        name = ".".join(("fp8", *file.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
        try:
            found = doctest.testmod(importlib.import_module(name))
        except ImportError as error:  # another test has imported deepspeed before
            assert name == "fp8.deepspeed" and "before `import deepspeed`" in str(error)
            continue
        assert not found.failed, name
        tried += found.attempted
    assert tried > 10
