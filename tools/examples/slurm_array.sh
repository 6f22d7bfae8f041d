#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Calibration and quantization by a Slurm array: tasks that start when there is room, in any number and order, and may
# be preempted or die. Each takes shares of the work until there are none, and the last one joins them.
#   sbatch tools/examples/slurm_array.sh MODEL TEXT OUT          on a disk that all nodes see
#SBATCH --job-name=fp8-calibrate
#SBATCH --array=0-15
#SBATCH --cpus-per-task=8
#SBATCH --requeue
set -euo pipefail
model=$1 text=$2 out=$3
place=(--rank "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" --threads "${SLURM_CPUS_PER_TASK:-1}")

fp8 measure "$model" -d "$text" --samples 1024 --batch 4 -o "$out/stats" \
  --shares 64:120 --join wait "${place[@]}"
fp8 quantize "$model" --measurements "$out/stats" -o "$out/fp8" \
  --shares 64:120 --join wait "${place[@]}"
