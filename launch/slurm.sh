#!/usr/bin/env bash
# Trains one run on a Slurm cluster, a process in each task, and goes back into the queue when the
# time is up. Submit it from the project's folder; options before its name are sbatch's, arguments
# behind it go to the trainer:
#
#   sbatch --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --time=04:00:00 launch/slurm.sh \
#     --config configs/mosi.py --config.data.path=/data/corpus.npz --workdir /data/runs/mosi
#
# sbatch's       --nodes, --ntasks-per-node, --time, --partition, --account … as on the cluster.
#                With GPUs a task takes one: as many tasks as GPUs on a node, by --gpus-per-node and
#                not --gpus-per-task, for a task chooses its own among those that it sees. Options
#                given there win over the #SBATCH lines below.
# MSAJAX_FOLDER  the project, on every node (the folder of submission). Relative paths start there.
# MSAJAX_PYTHON  an interpreter there that has all of requirements.txt (.venv/bin/python).
# MAX_REQUEUES   how often the job may go back into the queue (100).
# JAX_COORDINATOR_PORT  where the tasks meet on the first node (one that follows from the job's id).
#
# Two minutes before its time is up Slurm sends TERM to the tasks. They save and exit 75, and the
# job, still alive, puts itself back into the queue, where the same command continues. Any other
# code ends the job: 0 done, 1 a bug, 2 a mistake, 3 numbers that are not finite. The log
# msajax-JOB.log is of all starts. `scancel JOB` ends this shell first, which therefore must not trap
# TERM: a cancelled job stays cancelled, and what it has saved is kept.
#SBATCH --job-name=msajax
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@120
set -euo pipefail

cd "${MSAJAX_FOLDER:-${SLURM_SUBMIT_DIR:?is set by sbatch, which must start this file}}"
if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then
  export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # srun no longer takes it from sbatch
fi

said=$(mktemp)
trap 'rm -f "$said"' EXIT
set +e
{
  # A cluster may be set to kill all tasks when one has ended, while another one is still saving.
  srun --kill-on-bad-exit=0 --wait=0 "${MSAJAX_PYTHON:-.venv/bin/python}" -m msajax.main \
    --distributed --join_seconds=300 "$@" 2>&1 >&3 3>&- | tee "$said" >&2
  code=${PIPESTATUS[0]}
} 3>&1
set -e

# srun gives back its tasks' highest code. A task that has lost another one ends with 75, which
# hides a smaller code of that other one: srun's own messages tell it.
pattern='^srun: error: .*: tasks? .*: Exited with exit code ([0-9]+)$'
while ((code == 75)) && read -r line; do
  if [[ $line =~ $pattern ]]; then
    code=${BASH_REMATCH[1]}
  fi
done <"$said"

if ((code == 75)); then
  if ((${SLURM_RESTART_COUNT:-0} < ${MAX_REQUEUES:-100})); then
    echo "The run has stopped after saving: job $SLURM_JOB_ID goes back into the queue." >&2
    scontrol requeue "$SLURM_JOB_ID" ||
      echo "It could not be put back: submit the same command again." >&2
  else
    echo "The run has stopped after saving, but not for the first time: MAX_REQUEUES." >&2
  fi
fi
exit "$code"
