# SPDX-License-Identifier: Apache-2.0
"""Writes the table of tools/pages/families.md: what the tests of families found, and what the benchmark timed.

    make_table.py [BUILD] [TIMES.jsonl]

BUILD (default: build) has bin/models_families_test and bin/models_families_in_fp8_test, which are run. TIMES.jsonl
(default: tools/benchmarks/results/families.jsonl) is what ./tools/bench families printed.
"""

import collections
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = ROOT / "tools/pages/families.md"
FIXTURES = ROOT / "tests/tools/models/fixtures"
BEGIN, END = "<!-- table: make_table.py -->\n", "<!-- end of table -->\n"
FOUND = ("logit_difference", "kl_static", "kl_dynamic", "kl_cache")

# Why a family takes more time for a multiply-add than Llama by a tenth.
WHY = {
    "deepseek_v2": "attention over latent vectors is computed in steps",
    "deepseek_v3": "attention over latent vectors is computed in steps",
    "gpt_oss": "its experts run one by one in high precision",
}
MOE = "experts of a few rows each"


def found_by(program):
    """{fixture: properties} of a test program's run."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.json"
        subprocess.run([program, "--gtest_brief=1", f"--gtest_output=json:{out}"], check=True, stdout=subprocess.DEVNULL)
        suites = json.loads(out.read_text())["testsuites"]
    found = collections.defaultdict(dict)
    for suite in suites:
        for test in suite["testsuite"]:
            fixture = json.loads(test.get("value_param", "null"))
            if (FIXTURES / f"{fixture}.json").exists() and test["result"] != "SUPPRESSED":
                found[fixture] |= test
    return found


def times_of(path):
    """{"decode llama": time for a multiply-add over llama's}."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    return {line["case"]: line["per_flop"] for line in lines if line.get("kernel") == "families"}


def rows(build, times):
    found = found_by(build / "bin/models_families_test")
    for fixture, properties in found_by(build / "bin/models_families_in_fp8_test").items():
        found[fixture] |= properties
    families = collections.defaultdict(list)
    for fixture, properties in found.items():
        config = json.loads((FIXTURES / f"{fixture}.json").read_text())["config"]
        families[config["model_type"]].append(properties)
    for family, fixtures in sorted(families.items()):
        worst = [max((f[key] for f in fixtures if key in f), key=float, default="") for key in FOUND]
        speed = [times.get(f"{phase} {family}") for phase in ("decode", "prefill")]
        slow = any(value is not None and round(value, 2) >= 1.1 for value in speed)
        why = WHY.get(family, MOE if any(mark in family for mark in ("moe", "mixtral", "minimax", "llama4")) else "")
        shown = ["" if value is None else f"{value:.2f}" for value in speed]
        yield [family, str(len(fixtures)), *worst, fixtures[0]["modules"], *shown, why if slow else ""]


def main():
    build = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build"
    path = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "tools/benchmarks/results/families.jsonl"
    header = ["model_type", "fixtures", "logits", "KL static", "KL dynamic", "KL with cache", "modules", "decode", "prefill", ""]
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows(build, times_of(path))]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after)


if __name__ == "__main__":
    main()
