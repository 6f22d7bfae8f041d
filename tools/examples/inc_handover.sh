#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Calibrates on this machine for a Gaudi 2: OUT gets the measurements and the QUANT_CONFIG that Intel Neural Compressor
# takes there, what the device will make of them on this text, and INC's own checkpoint.
#   tools/examples/inc_handover.sh MODEL TEXT OUT
#   on the device: cd OUT && QUANT_CONFIG=quant.json python3 run_generation.py ...
set -euo pipefail
model=$(realpath "$1") text=$(realpath "$2") out=$3
mkdir -p "$out"
cd "$out"

fp8 measure "$model" -d "$text" -o stats
cat > quant.json <<'JSON'
{
  "mode": "QUANTIZE",
  "observer": "maxabs",
  "scale_method": "maxabs_hw",
  "dump_stats_path": "stats/inc_output",
  "blocklist": {"names": ["lm_head"]},
  "ignore_modules_wo_measures": true
}
JSON
fp8 config check quant.json
FP8_HPU_DEVICE=gaudi2 QUANT_CONFIG=quant.json \
  fp8 evaluate "$model" -r "$model" -d "$text"
fp8 quantize "$model" --measurements stats --dialect gaudi2 --format inc -o checkpoint
