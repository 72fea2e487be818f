#!/usr/bin/env bash
# Trains one run on all hosts of a Cloud TPU VM, single or a pod slice. Arguments go to the trainer:
#
#   TPU=my-slice ZONE=us-east5-b bash launch/tpu_pod.sh --config configs/mosi.py \
#     --config.data.path=/mnt/data/corpus.npz --workdir /mnt/data/runs/mosi
#
# Once before, the project goes to every host:
#
#   gcloud compute tpus tpu-vm scp --recurse . my-slice:msajax --zone=us-east5-b --worker=all
#   gcloud compute tpus tpu-vm ssh my-slice --zone=us-east5-b --worker=all --command='cd msajax &&
#     python3 -m venv .venv && .venv/bin/pip install -r requirements.txt "jax[tpu]"'
#
# TPU            the TPU VM's name, as [USER@]NAME.
# ZONE           its zone (that of gcloud's settings).
# PROJECT        its project (that of gcloud's settings).
# MSAJAX_FOLDER  the project on every host, from the home folder (msajax). Relative paths in the
#                arguments start there.
# MSAJAX_PYTHON  an interpreter there that has requirements.txt and jax[tpu] (.venv/bin/python).
#
# The corpus must be readable on every host, the workdir writable on the first one; a file store
# mounted on all of them does both, and --workdir=gs://BUCKET/RUN needs none (with gcsfs installed
# there too). TERM, INT (Ctrl-C) and HUP go to all processes, by a second
# connection: they save, and the script exits 75. The exit code is what gcloud gives back: 0 if all
# are done, else that of the first host whose process did not end with 0.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source "$(dirname "${BASH_SOURCE[0]}")/together.sh"

[[ -n ${TPU:-} ]] || fail 'error: TPU names no TPU VM, as in TPU=my-slice.'
place=(${ZONE:+"--zone=$ZONE"} ${PROJECT:+"--project=$PROJECT"})
note=.msajax-$(date +%s)-$$.pid # in the home folder of every host, while its process runs

# shellcheck disable=SC2016 # the hosts expand it
on_host='note=$HOME/$1
cd "$2" || exit 2
python=$3
shift 3
set -m
"$python" -m msajax.main --distributed "$@" </dev/null &
set +m
echo "$!" >"$note"
wait "$!"
code=$?
rm -f "$note"
exit "$code"'
# shellcheck disable=SC2016
signal='note=$HOME/$1; if [[ -e $note ]]; then kill -s "$2" "$(<"$note")"; fi'

# on_all_hosts SCRIPT NAME ARGUMENT...
# shellcheck disable=SC2329 # `start` calls it
on_all_hosts() {
  gcloud compute tpus tpu-vm ssh "$TPU" ${place[@]+"${place[@]}"} --worker=all \
    --command="$(quote bash -c "$@")"
}

# shellcheck disable=SC2329 # a signal calls it
forward() {
  on_all_hosts "$signal" bash "$note" "$1" || true
}

start on_all_hosts "$on_host" bash "$note" "${MSAJAX_FOLDER:-msajax}" \
  "${MSAJAX_PYTHON:-.venv/bin/python}" "$@"
finish
