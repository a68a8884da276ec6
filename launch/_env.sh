# Makes or reuses the environment. Sourced by quickstart.sh and test.sh, not run by itself.
#
#   ensure_env EXTRAS     EXTRAS: "" or "test,dev". Afterwards $VENV_PY is a Python in which the project is installed.
#
# Settings from outside: PYTHON (the Python to start from), PEARL_PP_VENV (the environment's folder, default .venv;
# one that exists is used, and a torch in it is kept), and every setting of pip's own (PIP_INDEX_URL, ...).

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${PEARL_PP_VENV:-$ROOT/.venv}
VENV_PY=$VENV/bin/python

say() { printf 'pearl_pp: %s\n' "$*"; }
fail() {
    printf 'pearl_pp: %s\n' "$*" >&2
    exit 1
}

_is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# The interpreter below any active virtual environment: what --system-site-packages would show is its packages.
_find_python() {
    local candidate candidates=(python3 python3.13 python3.12 python3.11)
    [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        if _is_new_enough "$candidate"; then
            "$candidate" -c 'import sys; print(getattr(sys, "_base_executable", "") or sys.executable)'
            return
        fi
    done
    fail "Python 3.11 or newer is needed; ${candidates[0]} is" \
        "$("${candidates[0]}" --version 2>/dev/null || echo "not there"). Name another with PYTHON=/path/to/python3.11"
}

# Version of the torch that Python $1 can really import, if it is one this project runs with; else nothing.
_usable_torch() {
    "$1" -c 'import torch; v = torch.__version__; assert tuple(map(int, v.split(".")[:2])) >= (2, 6); print(v)' \
        2>/dev/null || true
}

_has_nvidia_gpu() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }

_make_venv() {
    local python torch flags=()
    python=$(_find_python) || exit 1
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python has no venv module (on Debian and Ubuntu: apt install python3-venv)"
    torch=$(_usable_torch "$python")
    if [ -n "$torch" ]; then
        say "keeping this machine's own torch $torch ($python)"
        flags=(--system-site-packages)
    fi
    say "making $VENV with $("$python" --version)"
    "$python" -m venv ${flags[@]+"${flags[@]}"} "$VENV" || fail "could not make $VENV"
}

# Prints the constraints to install with. A torch that is there already is kept, and so is the numpy it came with;
# with an NVIDIA GPU the newest torch in pyproject's range is taken; else the tested one.
_constraints() {
    local kept
    kept=$("$VENV_PY" - "${PEARL_PP_VENV:+chosen}" <<'PY' 2>/dev/null || true
import sys
import torch
inside = torch.__file__.startswith(sys.prefix)
if not inside or sys.argv[1:] == ["chosen"]:
    print(torch.__version__)
PY
    )
    if [ -n "$kept" ]; then
        sed -e '/^torch==/d' -e '/^numpy==/d' "$ROOT/constraints.txt"
        printf 'torch==%s\n' "$kept"
    elif _has_nvidia_gpu; then
        sed -e '/^torch==/d' "$ROOT/constraints.txt"
    else
        cat "$ROOT/constraints.txt"
    fi
}

_install() {
    local extras=$1 log=$VENV/install.log constraints=$VENV/constraints.txt
    local pip=("$VENV_PY" -m pip install --disable-pip-version-check --no-input -c "$constraints"
        -e "$ROOT${extras:+[$extras]}")
    _constraints >"$constraints"
    say "installing with $(grep '^torch==' "$constraints" || echo "a CUDA build of torch"); about 2 minutes, log in $log"
    if ! "${pip[@]}" >"$log" 2>&1; then
        tail -n 25 "$log" >&2
        fail "the installation failed; see $log"
    fi
}

# What the environment was made from, the folder included: an editable install points at it.
_fingerprint() {
    "$VENV_PY" - "$ROOT" <<'PY'
import hashlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
digest = hashlib.sha256(f"{root} {sys.prefix} {sys.version}".encode())
for name in ("pyproject.toml", "constraints.txt", "launch/_env.sh"):
    digest.update((root / name).read_bytes())
print(digest.hexdigest())
PY
}

ensure_env() {
    local extras=$1 fingerprint
    "$VENV_PY" -c '' 2>/dev/null || _make_venv
    fingerprint=$(_fingerprint) || fail "$VENV is broken; remove it and start again"
    if [ "$(cat "$VENV/.installed-$extras" 2>/dev/null)" = "$fingerprint" ]; then
        return
    fi
    _install "$extras"
    printf '%s\n' "$fingerprint" >"$VENV/.installed-$extras"
    printf '%s\n' "$fingerprint" >"$VENV/.installed-" # whatever has the extras has the rest too
}
