# Sets up the environment for scripts/quickstart and scripts/test; sourced by both, not run.
# Finds Python 3.11 or newer, makes .venv, installs the CPU build of torch where there is no NVIDIA GPU, then plansmith
# with the extras given. A second run with the same pyproject.toml and Python installs nothing.

TORCH_PIN=2.13.0 # a range would take the newest release, whose usual build brings several GB of CUDA libraries

say() { printf '== %s\n' "$*" >&2; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3.14 python3 python; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    say "found no Python 3.11 or newer (with venv). Install one, or name it: PYTHON=/path/to/python $0"
    return 2
}

has_gpu() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; }

# set_up EXTRA...  -> $venv/bin has everything
set_up() {
    local python extras stamp key log begun
    venv="$root/.venv"
    extras=$(IFS=,; printf '%s' "$*")
    python=$(find_python) || return 2
    stamp="$venv/.plansmith-$(printf '%s' "$extras" | tr ',' '-')"
    key=$("$python" -c 'import hashlib, sys; print(sys.version, hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' \
        "$root/pyproject.toml")
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ] && "$venv/bin/python" -c 'import plansmith' 2>/dev/null; then
        say "environment: .venv is up to date"
        return 0
    fi
    begun=$SECONDS
    log="$venv/install.log"
    say "environment: making .venv with $("$python" --version), extras $extras (1 to 3 minutes, 2.5 GB)"
    if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        "$python" -m venv --clear "$venv" || return 2
    fi
    : >"$log"
    if ! has_gpu; then
        say "environment: no NVIDIA GPU, so torch $TORCH_PIN"
        pip_install "$log" "torch==$TORCH_PIN" || return 2
    fi
    pip_install "$log" --editable "$root[$extras]" || return 2
    printf '%s\n' "$key" >"$stamp"
    say "environment: ready after $((SECONDS - begun)) s"
}

pip_install() {
    local log=$1
    shift
    # --no-compile: Python compiles what is imported when it is imported, which is far less than what is installed
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-compile "$@" >>"$log" 2>&1; then
        tail -n 15 "$log" >&2
        say "pip could not install $*; the whole output is in $log. Run the same command again when the cause is gone."
        return 2
    fi
}
