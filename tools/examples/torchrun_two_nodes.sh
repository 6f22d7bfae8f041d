#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Training on two machines without a scheduler: the same line on both, n1 being the first's name. A process that dies is
# started again with all the others, up to three times, from the newest checkpoint.
#   tools/examples/torchrun_two_nodes.sh n1 MODEL TEXT OUT       OUT on a disk that both see
set -euo pipefail
first=$1 model=$2 text=$3 out=$4
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"

torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint "$first:29500" --rdzv-id fp8 \
  --max-restarts 3 --no-python \
  fp8 train "$model" -d "$text" -o "$out" --steps 2000 --batch 4 --seq-len 512 \
  --precision fp8 --strategy hpu_ddp --save-every 200 --resume
