#!/bin/bash -p
# Keeps a container out of its owner's network: private, shared and special addresses are rejected,
# the named exceptions are not. README.md says against whom, in which order, and what it cannot stop.
#
# It must never leave half of the rules behind, nor guess what a setting means.
#
# With -p bash does not do what SHELLOPTS, BASHOPTS, BASH_ENV and exported functions would have it do.
# (Against SHELLOPTS=noexec only the caller can help: `bash -p egress.sh`.)
[[ $- == *p* ]] || exec "$BASH" -p "$0" "$@"
unset BASH_ENV ENV
IFS=$' \t\n'
set -Eeuo pipefail +f
shopt -s inherit_errexit
trap 'echo "egress: stopped by a fault of its own, in ${FUNCNAME[0]:-the script} (line $LINENO)" >&2' ERR
export LC_ALL=C
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

SELF=$(readlink -f "${BASH_SOURCE[0]}")
readonly SELF HERE=${SELF%/*}

if ((BASH_VERSINFO[0] < 5)); then
    echo "egress: bash 5 is needed, this is $BASH_VERSION" >&2
    exit 2
fi

# shellcheck source-path=SCRIPTDIR source=lib/report.sh
. "$HERE/lib/report.sh"
# shellcheck source-path=SCRIPTDIR source=lib/addresses.sh
. "$HERE/lib/addresses.sh"
# shellcheck source-path=SCRIPTDIR source=lib/input.sh
. "$HERE/lib/input.sh"
# shellcheck source-path=SCRIPTDIR source=lib/network.sh
. "$HERE/lib/network.sh"
# shellcheck source-path=SCRIPTDIR source=lib/rules.sh
. "$HERE/lib/rules.sh"
# shellcheck source-path=SCRIPTDIR source=lib/render.sh
. "$HERE/lib/render.sh"
# shellcheck source-path=SCRIPTDIR source=lib/backend.sh
. "$HERE/lib/backend.sh"
# shellcheck source-path=SCRIPTDIR source=lib/verify.sh
. "$HERE/lib/verify.sh"
# shellcheck source-path=SCRIPTDIR source=lib/probes.sh
. "$HERE/lib/probes.sh"
# shellcheck source-path=SCRIPTDIR source=lib/processes.sh
. "$HERE/lib/processes.sh"

COMMAND='' AS_JSON=false RULES_ONLY=false FAMILIES='4 6'

usage() {
    cat <<'USAGE'
usage: bash -p egress.sh apply | verify | print | remove

  apply                            put the rules in, both families, or change nothing
  verify [--json] [--rules-only]   prove from inside that they hold; exit 1 on any surprise
  print [--family 4|6]             show the rules that apply would put in; needs no privilege
  remove                           take out what apply put in

Settings are environment variables, EGRESS_*: see README.md beside this script.
Exit: 0 done, or as expected; 1 a surprise, or the kernel refused the rules; 2 bad input, or a tool
or a privilege is missing, and nothing was changed.
USAGE
}

# Options belong to commands: an option that would do nothing is refused.
declare -A OPTIONS=([apply]='' [verify]='--json --rules-only --family' [print]='--family' [remove]='')

read_arguments() {
    local word
    while (($#)); do
        word=$1
        shift
        case $word in
            -h | --help)
                usage
                exit "$DONE"
                ;;
            apply | verify | print | remove)
                [[ -z $COMMAND ]] || fail "$REFUSED" "two commands: $COMMAND and $word"
                COMMAND=$word
                ;;
            --json) AS_JSON=true ;;
            --rules-only) RULES_ONLY=true ;;
            --family | --family=*)
                if [[ $word == --family=* ]]; then
                    FAMILIES=${word#*=}
                else
                    FAMILIES=${1-}
                    shift || :
                fi
                [[ $FAMILIES == [46] ]] || fail "$REFUSED" "--family: \"$FAMILIES\" is neither 4 nor 6"
                ;;
            *) fail "$REFUSED" "\"$word\" is neither a command nor an option; --help tells them" ;;
        esac
    done
    [[ -n $COMMAND ]] || fail "$REFUSED" 'which command: apply, verify, print or remove?'
    require_options
}

require_options() {
    local allowed=" ${OPTIONS[$COMMAND]} "
    [[ $AS_JSON == false || $allowed == *' --json '* ]] || fail "$REFUSED" "$COMMAND has no --json"
    [[ $RULES_ONLY == false || $allowed == *' --rules-only '* ]] || fail "$REFUSED" "$COMMAND has no --rules-only"
    [[ $FAMILIES == '4 6' || $allowed == *' --family '* ]] \
        || fail "$REFUSED" "$COMMAND has no --family: a family that is left out is a way out"
}

require_tools() {
    local name
    for name in "$@"; do
        command -v "$name" >/dev/null || problem "$name is missing"
    done
    stop_on_problems
}

# One at a time: between reading a table and changing it nobody else of us may.
lock() {
    local handle
    exec {handle}<"$SELF"
    flock --wait 30 "$handle" || fail "$REFUSED" "another egress.sh has been at work for 30 seconds"
}

# Everything that is decided before anything is touched.
prepare() {
    read_settings
    resolve_names
    stop_on_problems
    read_ranges
    read_network
}

refuse_host_namespace() {
    [[ $SCOPE == container ]] || return 0
    local other=legacy
    local -a table=("${RULES[@]}")
    [[ $BACKEND == legacy ]] && other=nft
    if [[ $other == nft ]] || legacy_in_use 4; then
        read_rules 4 "$other" && table+=("${RULES[@]}")
    fi
    if host_sign "${table[@]}"; then
        fail "$REFUSED" "this is the host's own network ($HOST_SIGN): EGRESS_SCOPE=uid limits one user only"
    fi
}

# By family: the transaction that apply will make, and the table's rules before.
declare -A TEXT=() BEFORE=()

run_apply() {
    local family
    require_tools flock timeout getent cut sort
    prepare
    require_privilege
    lock
    lend_lock_file
    choose_backend
    refuse_host_namespace
    for family in 4 6; do
        rehearse "$family" && continue
        may_be_left_out "$family" || fail "$SURPRISE" "$OFFENCE"
        unset "TEXT[$family]"
    done
    uninterrupted
    restore 4 "$BACKEND" "${TEXT[4]}" || fail "$SURPRISE" "$OFFENCE"
    if [[ -n ${TEXT[6]:-} ]] && ! restore 6 "$BACKEND" "${TEXT[6]}"; then
        may_be_left_out 6 || undo_first_family
        unset 'TEXT[6]'
    fi
    leave_other_backend
    trap - INT TERM HUP
    say_names
    say_denied
    say_notices
    say_applied
}

# From here on both families are changed, or neither. The tools, too, no longer hear a ctrl-C.
uninterrupted() {
    trap '' INT TERM HUP
}

# rehearse FAMILY: makes the transaction, and lets the tool read it without doing it.
rehearse() {
    tool "$1" "$BACKEND" save || may_be_left_out "$1" || fail "$REFUSED" "$TOOL is missing"
    read_rules "$1" "$BACKEND" || return 1
    printf -v "BEFORE[$1]" '%s\n' "${RULES[@]}"
    plan "$1"
    transaction "${RULES[@]}"
    TEXT[$1]=$TRANSACTION
    restore "$1" "$BACKEND" "$TRANSACTION" --test
}

# An IPv6 that is not there needs no rules yet; it gets them where it can, because a network with
# IPv6 may be plugged in later.
may_be_left_out() {
    [[ $1 == 6 ]] && ! ipv6_present
}

# The second family failed after the first went in.
undo_first_family() {
    local offence=$OFFENCE
    local -a rules
    mapfile -t rules <<<"${BEFORE[4]}"
    put_back 4 "$BACKEND" "${rules[@]}" || offence+="; and IPv4 could not be put back: $OFFENCE"
    fail "$SURPRISE" "$offence"
}

# Rules of ours that an earlier run put into the other backend would still reject.
leave_other_backend() {
    local other=legacy family
    [[ $BACKEND == legacy ]] && other=nft
    for family in 4 6; do
        tool "$family" "$other" save || continue
        take_out "$family" "$other" || say "notice: rules of an earlier run stay in the $other backend: $OFFENCE"
    done
}

say_names() {
    local entry name
    for entry in "${NAMES[@]}"; do
        name=${entry#* }
        say "$name is ${RESOLVED[$name]% }"
    done
}

say_denied() {
    local entry
    for entry in "${DENY[@]}"; do
        say "denied besides: ${entry#* }"
    done
}

# What the operator would otherwise find out by a timeout.
say_notices() {
    local family resolver exception link
    [[ $SCOPE == uid ]] || upstream_links
    for link in "${UPSTREAM_LINKS[@]}"; do
        say "notice: nobody on the network of $link may open connections to the proxy:" \
            'an exception is there, and no way out'
    done
    for family in 4 6; do
        plan "$family"
        for resolver in "${RESOLVERS[@]}"; do
            family_of "$resolver"
            [[ $FAMILY == "$family" ]] || continue
            first_step "$resolver" udp 53 || continue
            [[ ${STEP_VERDICTS[STEP]} == accept || ${DNS[*]} == none ]] || say \
                "notice: the resolver ${resolver%/*} of /etc/resolv.conf is rejected (${STEP_NAMES[STEP]});" \
                "name it in EGRESS_DNS if names must be resolved"
        done
        for exception in "${!STEP_CHAINS[@]}"; do
            say_wide_exception "$exception"
        done
    done
}

# say_wide_exception INDEX: an exception as wide as a network here shuts its hosts out, too.
say_wide_exception() {
    local prefix
    [[ ${STEP_CHAINS[$1]} == BULWARK-OUT && ${STEP_NAMES[$1]} == 'allow '* ]] || return 0
    for prefix in "${ONLINK[@]}"; do
        contains "${STEP_ADDRESSES[$1]#-d }" "$prefix" || continue
        [[ $SCOPE == uid ]] || say "notice: ${STEP_NAMES[$1]} covers the network $prefix:" \
            'no host there may open connections to the proxy, except a gateway to its public port'
    done
}

say_applied() {
    local open='everything public is open' families='IPv4 and IPv6'
    [[ -n ${TEXT[6]:-} ]] || families='IPv4 (this namespace has no IPv6)'
    [[ $MODE == upstream-only ]] && open='nothing else is open'
    [[ $MODE == internet && $IPV6 == off ]] && open='everything public is open over IPv4'
    say "applied to $families (iptables-$BACKEND, scope $SCOPE): besides the exceptions, $open"
}

run_print() {
    local family line
    prepare
    for line in "${NAMES[@]}"; do
        line=${line#* }
        echo "# $line is ${RESOLVED[$line]% }"
    done
    for family in $FAMILIES; do
        echo "# IPv$family: ${TOOLS[$family]}-restore --noflush"
        plan "$family"
        transaction
        printf '%s' "$TRANSACTION"
    done
}

run_remove() {
    local family backend total=0 reached=false
    require_tools flock
    require_privilege
    lock
    lend_lock_file
    uninterrupted
    for family in 4 6; do
        for backend in nft legacy; do
            tool "$family" "$backend" save || continue
            reached=true
            take_out "$family" "$backend" || fail "$SURPRISE" "$OFFENCE"
            total=$((total + REMOVED))
        done
    done
    [[ $reached == true ]] || fail "$REFUSED" 'iptables is missing'
    say "removed: $total rules; this firewall keeps nobody from anything now"
}

read_arguments "$@"
"run_$COMMAND"
