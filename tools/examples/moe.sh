#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A mixture of experts in fp8, by evidence: what it costs with everything in fp8, and, where that is over the budget,
# with the modules in high precision that cost most.
#   tools/examples/moe.sh MODEL TEXT OUT                         MODEL: Qwen3-MoE, Mixtral, DeepSeek, ...
set -euo pipefail
model=$1 text=$2 out=$3
mkdir -p "$out"

fp8 inspect "$model" --plan > "$out/plan.txt"                    # experts, routers, heads: what becomes of them, and why
fp8 measure "$model" -d "$text" -o "$out/stats"
fp8 quantize "$model" --measurements "$out/stats" --budget kl=0.01 -d "$text" -o "$out/fp8" --check
fp8 evaluate "$out/fp8" -r "$model" -d "$text" --json > "$out/evaluate.json"
