#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A model of images and text: its language part in fp8 with scales measured on text, the tower as it is.
#   tools/examples/qwen_vl.sh MODEL TEXT OUT                     MODEL: Qwen2-VL, Qwen2.5-VL, LLaVA, Mistral 3, ...
#   vllm serve OUT/fp8
set -euo pipefail
model=$1 text=$2 out=$3

fp8 measure "$model" -d "$text" -o "$out/stats"
fp8 quantize "$model" --measurements "$out/stats" --towers keep -o "$out/fp8" --check
fp8 evaluate "$out/fp8" -r "$model" -d "$text"
