# SPDX-License-Identifier: Apache-2.0
"""Intel Neural Compressor's own tests over this package: inc_tests.py, where FP8_TEST_INC names a checkout of INC."""

import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent / "inc_tests.py"


def run(source):
    return subprocess.run([sys.executable, str(SCRIPT), "--source", str(source)], capture_output=True, text=True, check=False)


def test_they_pass_or_have_a_reason():
    source = os.environ.get("FP8_TEST_INC")
    if not source:
        pytest.skip("FP8_TEST_INC names no checkout of neural-compressor")
    done = run(source)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_a_folder_that_is_none(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "expected a checkout of neural-compressor" in done.stderr
