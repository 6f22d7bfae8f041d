#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Training on two nodes: one process for each of four tasks a node, which meet at the job's first host. A requeued job
# goes on from the newest checkpoint.
#   sbatch tools/examples/slurm_ddp.sh MODEL TEXT OUT
#SBATCH --job-name=fp8-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --requeue
set -euo pipefail
model=$1 text=$2 out=$3
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"
# Since Slurm 22.05 srun does not take it over from sbatch.
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"

srun --kill-on-bad-exit=1 fp8 train "$model" -d "$text" -o "$out" --steps 2000 --batch 4 --seq-len 512 \
  --precision fp8 --strategy hpu_ddp --save-every 200 --resume
srun --kill-on-bad-exit=1 fp8 evaluate "$out" -d "$text" --samples 256 --seq-len 512
