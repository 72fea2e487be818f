# Sourced by the launch scripts that start the processes of one run. `start COMMAND...` starts one
# of them, `finish` waits for all and exits with the worst of their codes; `quote WORD...` prints
# words so that any host's shell reads them as they are.
#
# TERM and INT, and HUP as TERM, go to every process through `forward SIGNAL`, which a script may
# define anew. The worst code is the one that says most about what went wrong: the smallest that is
# neither 0 nor 75, since a process that has lost another one ends with 75; else 75; else 0.

pids=()

# In a process group of its own: a terminal's Ctrl-C would otherwise reach it twice, from the
# terminal and from us, and the second signal ends a process at once, unsaved.
start() {
  set -m
  "$@" </dev/null &
  pids+=("$!")
  set +m
}

forward() {
  kill -s "$1" "${pids[@]}" 2>/dev/null || true
}

quote() {
  local word
  for word in "$@"; do
    printf "'%s' " "${word//\'/\'\\\'\'}"
  done
}

finish() {
  local pid code worst=0
  for pid in "${pids[@]}"; do
    while true; do
      signalled=
      code=0
      wait "$pid" || code=$?
      if [[ -z $signalled ]]; then
        break
      fi # a signal of ours may have ended the waiting: only another one tells
    done
    if ((worst == 0 || (code != 0 && code != 75 && (worst == 75 || code < worst)))); then
      worst=$code
    fi
  done
  exit "$worst"
}

trap 'signalled=yes; forward TERM' TERM HUP
trap 'signalled=yes; forward INT' INT
