#!/usr/bin/env bash
# Makes .venv, installs the project and runs the main job on the embedded model pair.
# Everything after the script's name goes to the run: bash launch/quickstart.sh --temperature 0.8 --seed 1
# PEARL_PP_RANKS sets the number of ranks (4).
set -euo pipefail
. "$(dirname -- "${BASH_SOURCE[0]}")/_env.sh"
ensure_env ""

ranks=${PEARL_PP_RANKS:-4}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # torchrun would set it too, with a warning
say "torchrun --standalone --nproc-per-node $ranks -m pearl_pp.run $*"
# torchrun by its module: where torch is the machine's own, .venv/bin has no torchrun.
exec "$VENV_PY" -m torch.distributed.run --standalone --nproc-per-node "$ranks" -m pearl_pp.run "$@"
