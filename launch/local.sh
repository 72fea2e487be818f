#!/usr/bin/env bash
# Trains configs/synthetic.py into runs/synthetic, making .venv first where it is missing.
# Arguments go to the trainer, relative paths in them start at the project's root:
#   bash launch/local.sh --config.train.epochs=3 --workdir=runs/short
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

prepare_environment requirements.txt
cd "$root"
exec "$python" -m msajax.main --config configs/synthetic.py --workdir runs/synthetic "$@"
