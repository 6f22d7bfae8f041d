# SPDX-License-Identifier: Apache-2.0
"""Runs Intel Neural Compressor's own tests of fp8_quant over this package.

    inc_tests.py --source NEURAL_COMPRESSOR [-k WORDS] [--verbose]

NEURAL_COMPRESSOR is a checkout of github.com/intel/neural-compressor, default the folder of FP8_TEST_INC, else it is cloned.
Nothing of INC is imported but its tests: what they import of INC and of Habana are stand-ins over fp8.quant, fp8.nn and
torch.hpu (inc_stand_ins.py). Prints a table: file, passed, failed, skipped, and the reason of what fails. The exit status is 1
where a test fails that EXPECTED has no reason for."""

import argparse
import atexit
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TAG = "v3.9"
URL = "https://github.com/intel/neural-compressor"
FOLDERS = ("test/torch/algorithms/fp8_quant", "test/torch/quantization/fp8_quant")

# Tests, what they say (both searched), and why that is no fault of this package.
EXPECTED = (
    ("", "^ModuleNotFoundError: No module named '(torchvision|datasets)'", "needs a package that this environment has not"),
    ("", "^NotImplementedError: no stand-in for|has no attribute 'quant_input",
     "looks at INC's internals (attributes of patched modules), QuaRot, DeepSpeed"),
    (r"test_linear_accuracy\[.*-bf16\]", r"reference_output=tensor\(\[\[ 1\.1719,  0\.0645",
     "its weights nearly cancel in one output, which their rounding to E4M3 alone changes by 23 %; 17.5 % are allowed"),
    (r"test_predefined_config\[QuantMode.SHAPE-", "DID NOT RAISE", "asks for a fault of INC (UnboundLocalError in mode SHAPE)"),
    (r"test_no_assert\[True-", "^AssertionError$", "ours is a ValueError where INC asserts: RUNTIME_SCALE_PATCHING with PCS"),
    (r"test_no_assert\[", "^ValueError: .* without dynamic_quantization", "ours refuses the config where it is made, INC where convert() reads it"),
    ("test_default_save_load", "found a cast to torch.float32", "casts a converted weight, which is refused: dequantize() gives its values"),
)


def checkout(given):
    """The folder; SystemExit with one line where there is none."""
    source = given or os.environ.get("FP8_TEST_INC")
    if not source:
        source = tempfile.mkdtemp(prefix="fp8_inc_")
        done = subprocess.run(["git", "clone", "-q", "--depth", "1", "--branch", TAG, URL, source], capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise SystemExit(f"inc_tests: {URL}: {said[-1] if said else 'git clone failed'}; --source DIR names a checkout")
    if not (pathlib.Path(source) / FOLDERS[0]).is_dir():
        raise SystemExit(f"inc_tests: {source}: found no {FOLDERS[0]}, expected a checkout of neural-compressor, as of {TAG}")
    return pathlib.Path(source)


class Collected:
    """Of pytest: {file: {outcome: count}}, and what failed, with its message. What a test puts into the environment ends with it."""

    def __init__(self):
        self.counts, self.failed, self.environment = collections.defaultdict(collections.Counter), {}, {}

    def pytest_runtest_setup(self):
        self.environment = dict(os.environ)

    def pytest_runtest_teardown(self):
        for name in set(os.environ) - set(self.environment) - {"PYTEST_CURRENT_TEST"}:
            del os.environ[name]
        os.environ.update(self.environment)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.nodeid.split("::")[0]][report.outcome] += 1
            if report.failed:
                self.failed[report.nodeid] = self.last_line(report)

    def pytest_collectreport(self, report):
        if report.failed:
            self.counts[report.nodeid]["failed"] += 1
            self.failed[report.nodeid] = self.last_line(report)

    @staticmethod
    def last_line(report):
        lines = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
        return " ".join(lines)[:400] if lines else report.longreprtext.strip().splitlines()[-1]


def reason_of(test, message):
    return next((reason for tests, words, reason in EXPECTED if re.search(tests, test) and re.search(words, message)), None)


def show(collected, verbose):
    """The table; how many failures have no reason."""
    groups = collections.defaultdict(collections.Counter)
    for test, message in collected.failed.items():
        groups[test.split("::")[0]][reason_of(test, message) or f"NOT EXPECTED: {message[:160]}"] += 1
    print("| file | passed | failed | skipped | why |\n|---|---|---|---|---|")
    for file, counts in sorted(collected.counts.items()):
        why = "; ".join(f"{count}: {reason}" for reason, count in groups[file].items())
        print(f"| {file} | {counts['passed']} | {counts['failed']} | {counts['skipped']} | {why} |")
    total = sum(collected.counts.values(), collections.Counter())
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    unexpected = {test: message for test, message in collected.failed.items() if reason_of(test, message) is None}
    for test, message in unexpected.items() if verbose else ():
        print(f"NOT EXPECTED {test}: {message}")
    return len(unexpected)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", help="checkout of neural-compressor")
    parser.add_argument("-k", help="only tests that these words of pytest select")
    parser.add_argument("--verbose", action="store_true", help="the message of each failure without a reason")
    options = parser.parse_args()
    source = checkout(options.source)
    os.environ.update(HF_HUB_OFFLINE="1", FP8_HPU_MOVE_HOST_OPERANDS="1", PYTHONDONTWRITEBYTECODE="1")
    folder = tempfile.mkdtemp(prefix="fp8_inc_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # after the calibrations that tests leave open have written
    import pytest

    import inc_stand_ins
    inc_stand_ins.install(source)
    for part in FOLDERS:
        shutil.copytree(source / part, pathlib.Path(folder, *pathlib.Path(part).parts[-3:]))
    os.chdir(folder)
    collected = Collected()
    words = ["--no-header", "--no-summary", "--continue-on-collection-errors", "--tb=short", "-p", "no:cacheprovider", "-W", "ignore"]
    pytest.main(["-q", "-q", *words, "--rootdir", folder, folder, *(["-k", options.k] if options.k else [])], plugins=[collected])
    sys.exit(1 if show(collected, options.verbose) else 0)


if __name__ == "__main__":
    main()
