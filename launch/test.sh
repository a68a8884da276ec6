#!/usr/bin/env bash
# Makes or reuses .venv with what tests need, checks style, rooms and types, and runs the whole suite: two files at a
# time, for a run of ranks seldom uses more than one core, then one by one what measures or kills.
# Everything after the script's name goes to pytest: bash launch/test.sh tests/unit -k sampling
set -euo pipefail
. "$(dirname -- "${BASH_SOURCE[0]}")/_env.sh"
ensure_env "test,dev"
cd -- "$ROOT"

step() {
    say "$*"
    "$VENV_PY" -m "$@"
}
step ruff check --output-format=concise .
step ruff format --check .
say "lint-imports"
"$VENV_PY" -c 'from importlinter.cli import lint_imports_command as main; main()'
step pyright --pythonpath "$VENV_PY"
if [ $# -gt 0 ]; then
    step pytest "$@"
else
    if ! step pytest --numprocesses 2 --dist loadfile -m "not alone"; then
        # Beside another file a deadline may be missed on a slow machine; what fails by itself has failed.
        say "what has failed, once more and by itself"
        step pytest --last-failed --last-failed-no-failures none -m "not alone"
    fi
    step pytest -m alone
fi
