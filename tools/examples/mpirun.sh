#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Calibration, quantization and evaluation by Open MPI on the hosts of a file ("n1 slots=8", one on a line).
#   tools/examples/mpirun.sh HOSTS MODEL TEXT OUT                OUT on a disk that all hosts see
set -euo pipefail
hosts=$1 model=$2 text=$3 out=$4
first=$(awk 'NF && $1 !~ /^#/ { print $1; exit }' "$hosts")

# These two meet in files: who dies is made up for by the others, or by the same line again.
mpirun --hostfile "$hosts" -x OMP_NUM_THREADS=4 \
  fp8 measure "$model" -d "$text" --samples 1024 --batch 4 -o "$out/stats" --shares 64 --join wait
mpirun --hostfile "$hosts" -x OMP_NUM_THREADS=4 \
  fp8 quantize "$model" --measurements "$out/stats" -o "$out/fp8" --shares 64 --join wait
# This one sends messages.
mpirun --hostfile "$hosts" -x OMP_NUM_THREADS=4 -x MASTER_ADDR="$first" -x MASTER_PORT=29500 \
  fp8 evaluate "$out/fp8" -r "$model" -d "$text" --samples 256
