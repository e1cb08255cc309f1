# Sourced by the installers: where the cache is, how they speak, and one at a time.
# shellcheck shell=bash

# shellcheck disable=SC2034 # who sources this uses it
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ENGINES=${BULWARK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/bulwark}/engines
STARTED=$SECONDS

say() {
    printf '%s [%3d s] %s\n' "${0##*/}:" $((SECONDS - STARTED)) "$*"
}

give_up() {
    printf "${0##*/}: %s\n" "$@" >&2
    exit 1
}

# Not a fault: a step that was interrupted has nothing to say.
trap 'echo "${0##*/}: interrupted; run it again" >&2; exit 130' INT TERM

# Runs a step with its output in a file: shown only where the step fails.
step() {
    local log=$ENGINES/${0##*/}.log what=$1
    shift
    say "$what …"
    if ! "$@" >"$log" 2>&1; then
        tail -n 40 "$log" >&2
        give_up "that failed ($what); the whole output is in $log" \
            "run it again once that is mended"
    fi
}

# What an installation was made from, as one word: the stamp of one that is complete.
fingerprint() {
    cat -- "$@" | cksum | tr -d ' \n'
}

# The megabytes that are free where the cache is.
free_megabytes() {
    df -Pm "$ENGINES" | awk 'NR == 2 { print $4 }'
}

need_disk() {
    local free
    free=$(free_megabytes)
    ((free >= $1)) || give_up "needs $1 MB in $ENGINES, where $free MB are free" \
        "BULWARK_CACHE=/some/where/else moves the cache"
}

# A second installer waits for the first and then finds its work done.
one_at_a_time() {
    mkdir -p "$ENGINES"
    command -v flock >/dev/null || return 0
    exec 9>"$ENGINES/.${0##*/}.lock"
    flock -n 9 && return
    say "another one is running; waiting for it …"
    flock 9
}
