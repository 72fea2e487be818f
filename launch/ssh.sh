#!/usr/bin/env bash
# Trains one run with a process on each of several hosts, over ssh. Arguments go to the trainer:
#
#   HOSTS="ada bob eve" bash launch/ssh.sh --config configs/mosi.py \
#     --config.data.path=/data/corpus.npz --workdir /data/runs/mosi
#
# HOSTS          names as ssh knows them, separated by spaces, commas or lines: HOSTS=$(cat FILE).
#                The first host's process writes the workdir.
# COORDINATOR    the first host's address as the others reach it (its name in HOSTS).
# PORT           a port that is free there and open to the others (45655).
# MSAJAX_FOLDER  the project on every host, from the home folder (the path that it has here).
#                Relative paths in the arguments start there.
# MSAJAX_PYTHON  an interpreter there that has all of requirements.txt (.venv/bin/python); `bash
#                launch/local.sh` on each host makes that one.
# SSH_OPTIONS    more of ssh's options, as in "-p 2222 -i KEY". There must be no password to type.
#
# Every process takes all GPUs of its host. TERM, INT (Ctrl-C) and HUP go to all processes: they
# save, and the script exits 75. So does a process whose connection is lost. The script exits with
# the worst code of its processes: 0 only if all are done, 75 if the same command continues, else
# that of the process that failed; 255 is ssh's own. It needs bash 4.1 here, and any bash there.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source "$(dirname "${BASH_SOURCE[0]}")/together.sh"

names=${HOSTS:-}
read -r -d '' -a hosts <<<"${names//,/ }" || true # it fails when the text ends, which it must
((${#hosts[@]} > 0)) || fail 'error: HOSTS names no host, as in HOSTS="ada bob eve".'
read -r -a options <<<"${SSH_OPTIONS:-}"
coordinator=${COORDINATOR:-${hosts[0]#*@}}:${PORT:-45655}

# What a host runs: lines of its input are signals for the trainer, because ssh forwards none without
# a terminal. The end of its input is a lost connection, which must not leave a run behind that
# nobody can stop.
# shellcheck disable=SC2016 # the host expands it
on_host='cd "$1" || exit 2
python=$2
shift 2
exec 3<&0 </dev/null
set -m
"$python" -m msajax.main "$@" 3<&- &
trainer=$!
set +m
{
  while read -r signal; do kill -s "$signal" "$trainer"; done
  kill -s TERM "$trainer"
} <&3 2>/dev/null &
listener=$!
exec 3<&-
wait "$trainer"
code=$?
kill "$listener" 2>/dev/null
exit "$code"'

# connect PIPE HOST COMMAND: what is written to the pipe is the command's input. No process but this
# script keeps a pipe open for writing, so that with it the input ends.
# shellcheck disable=SC2329 # `start` calls it
connect() {
  local line
  for line in "${lines[@]}"; do
    exec {line}>&-
  done
  exec ssh -o BatchMode=yes -o ServerAliveInterval=15 -o ServerAliveCountMax=4 \
    ${options[@]+"${options[@]}"} "$2" "$3" <"$1"
}

# shellcheck disable=SC2329 # a signal calls it
forward() {
  local line
  for line in "${lines[@]}"; do
    printf '%s\n' "$1" >&"$line"
  done
}

lines=()
pipes=$(mktemp -d)
trap 'rm -rf "$pipes"' EXIT
for process in "${!hosts[@]}"; do
  mkfifo "$pipes/$process"
  exec {line}<>"$pipes/$process" # also for reading: opening it for writing alone would wait
  lines+=("$line")
  start connect "$pipes/$process" "${hosts[process]}" "$(quote bash -c "$on_host" bash \
    "${MSAJAX_FOLDER:-$root}" "${MSAJAX_PYTHON:-.venv/bin/python}" \
    --coordinator_address="$coordinator" --num_processes="${#hosts[@]}" --process_id="$process" \
    "$@")"
done
finish
