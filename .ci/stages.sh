# What .ci/run is made of. Sourced, with $work a temporary folder.
set -euo pipefail

# Runs a command under a name, and says how long it took.
stage() {
    local name=$1 start=$SECONDS code=0
    shift
    printf '\n== %s\n' "$name"
    "$@" || code=$?
    if ((code != 0)); then
        printf '== %s: FAILED with exit code %d after %d s\n' "$name" "$code" "$((SECONDS - start))"
        exit "$code"
    fi
    printf '== %s: %d s\n' "$name" "$((SECONDS - start))"
}

# A private environment, since the pip of many systems may not install anything.
ensure_uv() {
    if ! command -v uv >/dev/null; then
        python3 -m venv "$work/uv" || return
        "$work/uv/bin/python" -m pip install --quiet uv || return
        PATH="$work/uv/bin:$PATH"
    fi
    uv --version
}

# Runs the one line of the README that begins like this, exactly as it stands there.
readme_command() {
    local found
    found=$(grep -E "^$1( |\$)" README.md) || { echo "README.md has no line '$1 ...'"; return 1; }
    if (($(wc -l <<<"$found") != 1)); then
        printf 'README.md has several such lines:\n%s\n' "$found"
        return 1
    fi
    printf '%s\n' "$found"
    counted bash -c "$found"
}

# Runs a command and keeps what it prints, for the closing line.
counted() {
    local code=0
    "$@" 2>&1 | tee "$work/last" || code=$?
    cat "$work/last" >>"$work/log"
    return "$code"
}

nothing_left_behind() {
    local changes
    changes=$(git status --porcelain) || return
    [[ -z $changes ]] || { printf '%s\n' "$changes"; return 1; }
}

# Sums pytest's own closing lines; a run that failed never comes this far.
closing_line() {
    local passed
    passed=$(grep -oE '[0-9]+ passed' "$work/log" | awk '{ n += $1 } END { print n + 0 }')
    printf '\n%d s in all\n%d passed, 0 failed\n' "$SECONDS" "$passed"
}
