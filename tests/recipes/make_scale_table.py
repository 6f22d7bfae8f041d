#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes inc_scale_table.inc: scales made by torch's own bf16, f16 and f32 operations, for inc_scale_test.cpp.

The formulas are those of Intel Neural Compressor's documentation, written here a second time with torch tensors, so that
the C++ code is compared with torch's rounding and log2 and not with itself. Needs torch; the tests only need its output.

    python3 tests/recipes/make_scale_table.py > tests/recipes/inc_scale_table.inc
"""
import re

import torch

TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
AMAX = [0.0099, 0.75, 1.0, 3.14159, 10.53, 57.9, 248.0, 449.0, 13721.0, 60000.0]
# granularity, rounding, backoff
METHODS = [
    ("tensor", "HW_ALIGNED", 0.5), ("tensor", "HW_ALIGNED", 0.25),
    ("tensor", "POW2", 0.5), ("tensor", "POW2", 0.25),
    ("tensor", "IDENTITY", 0.5), ("tensor", "IDENTITY", 0.25),
    ("channel", "POW2", 0.5),
]
HARDWARE = {"gaudi2": (2.0**-8, 16.0, 4), "gaudi3": (2.0**-55, 128.0, 1)}
FULL_SCALE = {("gaudi2", "E4M3"): 240.0, ("gaudi3", "E4M3"): 448.0, ("gaudi2", "E5M2"): 57344.0, ("gaudi3", "E5M2"): 57344.0}


def next_power_of_two(x):
    return torch.exp2(torch.ceil(torch.log2(x)))


def hardware_aligned(x, dialect):
    low, high, step = HARDWARE[dialect]
    aligned = 2.0 ** (torch.ceil(torch.log2(next_power_of_two(x)) / step) * step)
    aligned = torch.maximum(aligned, torch.tensor(low, dtype=x.dtype))
    return torch.minimum(aligned, torch.tensor(high, dtype=x.dtype))


def scale(amax, method, dialect, fp8, dtype):
    granularity, rounding, backoff = method
    amax = torch.tensor([amax], dtype=dtype)  # Shape [1]: a 0-dim tensor would be promoted to f32 below
    raw = amax / (FULL_SCALE[dialect, fp8] * backoff)
    if granularity == "channel":
        raw = torch.max(raw, torch.tensor(torch.finfo(torch.bfloat16).tiny))
    if rounding == "IDENTITY":
        return raw
    return next_power_of_two(raw) if rounding == "POW2" else hardware_aligned(raw, dialect)


def literal(x):
    x = float(x)
    return "INFINITY" if x == float("inf") else re.sub(r"\.?0*p", "p", x.hex()) + "f"


def largest_per_power(dtype):
    """(largest x that becomes 2^k, k) for every k, found by trying every positive value (f32: the 129 around each 2^k)."""
    if dtype == torch.float32:
        ones = (torch.arange(1, 255, dtype=torch.int32) << 23).reshape(-1, 1)
        bits = (ones + torch.arange(-64, 65, dtype=torch.int32)).flatten()
        x = bits[bits >= 0x00800000].view(torch.float32)
    else:
        end = 0x7F80 if dtype == torch.bfloat16 else 0x7C00
        x = torch.arange(1, end, dtype=torch.int16).view(dtype)
    y = next_power_of_two(x)
    last = torch.nonzero(y[1:] != y[:-1]).flatten()
    for i in last.tolist():
        if torch.isfinite(y[i]):
            yield float(x[i]), int(torch.log2(y[i].double()).item())


def main():
    print("// SPDX-License-Identifier: Apache-2.0")
    print(f"// Written by make_scale_table.py with torch {torch.__version__}. Do not edit.")
    print("// Per power of two the largest raw value that rounding up to a power of two takes to it.")
    print("constexpr LargestRaw kLargestRaw[] = {")
    for name, dtype in TYPES.items():
        cells = [f"{{FloatType::{name}, {literal(x)}, {k}}}" for x, k in largest_per_power(dtype)]
        for i in range(0, len(cells), 3):
            print("    " + ", ".join(cells[i:i + 3]) + ",")
    print("};\n\nconstexpr float kAmax[] = {" + ", ".join(f"{a}f" for a in AMAX) + "};\n")
    print("// scale_inv, then its reciprocal, for each of kAmax.\nconst Golden kGolden[] = {")
    for method in METHODS:
        for (dialect, fp8) in FULL_SCALE:
            for name, dtype in TYPES.items():
                inverse = [scale(a, method, dialect, fp8, dtype) for a in AMAX]
                assert all(s.dtype == dtype for s in inverse)
                print(f"    {{{{Granularity::{method[0]}, ScaleValue::MAXABS, Rounding::{method[1]}, {method[2]}f}},"
                      f" {{Dialect::{dialect}, Format::{fp8}, FloatType::{name}}},")
                print("     {" + ", ".join(literal(s) for s in inverse) + "},")
                print("     {" + ", ".join(literal(1 / s) for s in inverse) + "}},")
    print("};")


main()
