#!/usr/bin/env bash
# Checks the GPUs of this machine in under 5 minutes: versions, every link, staging, a stage against the CPU, a whole
# run. Prints one table; exit code 1 where a row failed, 2 where there is no GPU.
set -euo pipefail
. "$(dirname -- "${BASH_SOURCE[0]}")/_env.sh"
if ! _has_nvidia_gpu && [ "${1:-}" != "--rehearse-on-cpu" ]; then
    say "no NVIDIA GPU here (nvidia-smi lists none); nothing was checked"
    exit 2
fi
ensure_env "test"
cd -- "$ROOT"
export OMP_NUM_THREADS=1
exec "$VENV_PY" -m tests.gpu.check_gpus "$@"
