#!/usr/bin/env bash
# Runs all tests, making .venv first where it is missing. Arguments go to pytest:
#   bash launch/test.sh -k metrics
#   bash launch/test.sh -n 0 --pdb
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

prepare_environment requirements.txt requirements-test.txt
cd "$root"
workers=0
if (($(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1) >= 2)); then
  workers=3 # on two processors, too: some tests wait for processes of their own
fi
exec "$python" -m pytest -n "$workers" --dist loadfile --no-loadscope-reorder "$@"
