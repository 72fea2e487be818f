#!/usr/bin/env bash
# Trains one run with several processes on this machine, making .venv first where it is missing.
# Arguments go to the trainer, relative paths in them start at the project's root:
#
#   PROCESSES=2 bash launch/processes.sh --config configs/mosi.py \
#     --config.data.path=corpus.npz --workdir runs/mosi
#
# PROCESSES      how many (2).
# DEVICES        of a machine with GPUs, how many each process takes (1): the first process the
#                first ones, and so on. Without this script, one process takes all of them.
# PORT           where they meet, on this machine alone (a free one).
# MSAJAX_PYTHON  an interpreter that has all of requirements.txt (that of .venv).
#
# TERM, INT (Ctrl-C) and HUP go to all processes: they save, and the script exits 75. It exits with
# the worst code of its processes: 0 only if all are done, 75 if the same command continues, else
# that of the process that failed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source "$(dirname "${BASH_SOURCE[0]}")/together.sh"

processes=${PROCESSES:-2} devices=${DEVICES:-1}
for number in "$processes" "$devices"; do
  [[ $number =~ ^[1-9][0-9]*$ ]] || fail "error: PROCESSES and DEVICES are whole numbers from 1."
done
if [[ -n ${MSAJAX_PYTHON:-} ]]; then
  python=$MSAJAX_PYTHON
else
  prepare_environment requirements.txt
fi
cd "$root"
port=${PORT:-$("$python" -c "import socket
with socket.socket() as s:
    s.bind(('localhost', 0))
    print(s.getsockname()[1])")}

for ((process = 0; process < processes; process++)); do
  export JAX_LOCAL_DEVICE_IDS=$((process * devices))
  for ((device = 1; device < devices; device++)); do
    JAX_LOCAL_DEVICE_IDS+=,$((process * devices + device))
  done
  start "$python" -m msajax.main --coordinator_address="localhost:$port" \
    --num_processes="$processes" --process_id="$process" "$@"
done
finish
