# shellcheck shell=bash disable=SC2034,SC2153 # What one file of these sets, another reads.
# iptables itself: which of its two backends, what a table holds now, and changing it atomically.

declare -A TOOLS=([4]=iptables [6]=ip6tables)
declare -ri CAP_NET_ADMIN=12 CAP_NET_RAW=13

BACKEND=
# The rules of one family's filter table as iptables-save prints them, with and without counters.
RULES=() COUNTED=()

# tool FAMILY BACKEND [restore|save]: the command's name in TOOL; fails when there is none.
tool() {
    local plain=${TOOLS[$1]}
    TOOL=$plain-$2${3:+-$3}
    command -v "$TOOL" >/dev/null && return
    # Some distributions have one backend only, under the plain name.
    TOOL=$plain${3:+-$3}
    local -A signs=([nft]=nf_tables [legacy]=legacy)
    command -v "$TOOL" >/dev/null && [[ $("$plain" --version 2>/dev/null) == *"${signs[$2]}"* ]]
}

# read_rules FAMILY BACKEND: RULES and COUNTED; fails with the tool's own words in OFFENCE.
read_rules() {
    local output line
    RULES=() COUNTED=()
    if ! tool "$1" "$2" save; then
        OFFENCE="$TOOL is missing"
        return 1
    fi
    # Apart from what it warns of, which would land in the middle of a line.
    if ! output=$("$TOOL" -c -t filter 2>/dev/null); then
        output=$("$TOOL" -c -t filter 2>&1 >/dev/null) || :
        OFFENCE="$TOOL failed: $(first_line "$output")"
        return 1
    fi
    while IFS= read -r line; do
        case $line in
            :*) RULES+=("$line") ;;
            '['*) COUNTED+=("$line") RULES+=("${line#*] }") ;;
            # Rules of nft's own that iptables cannot show: nothing here can be vouched for.
            *incompatible*) RULES+=("$line") ;;
        esac
    done <<<"$output"
}

first_line() {
    local line
    while IFS= read -r line; do
        [[ -z $line || $line == '#'* ]] && continue
        printf '%s' "$line"
        return
    done <<<"$1"
}

# The legacy backend makes its tables by being looked at; ask the kernel first.
legacy_in_use() {
    local family=$1 list=/proc/net/ip_tables_names
    [[ $family == 6 ]] && list=/proc/net/ip6_tables_names
    read_lines "$list" && [[ " ${TEXT_LINES[*]} " == *' filter '* ]]
}

# holds_engine_chains BACKEND: whether Docker's or Kubernetes' filter chains are there.
holds_engine_chains() {
    [[ $1 != legacy ]] || legacy_in_use 4 || return 1
    read_rules 4 "$1" || return 1
    local line
    for line in "${RULES[@]}"; do
        [[ $line == :DOCKER* || $line == :KUBE-* ]] && return
    done
    return 1
}

# A backend can read tables on a kernel that lacks what it needs to fill them.
readonly TRIAL='*filter
:BULWARK-TRY - [0:0]
-A BULWARK-TRY -m conntrack --ctstate ESTABLISHED -m comment --comment try -j REJECT
COMMIT
'

# backend_works BACKEND: leaves the rules of IPv4 in RULES; fails with a reason in OFFENCE.
backend_works() {
    if [[ $1 == legacy ]] && ! has_capability "$CAP_NET_RAW"; then
        OFFENCE='the legacy backend needs the capability NET_RAW, too'
        return 1
    fi
    restore 4 "$1" "$TRIAL" --test && read_rules 4 "$1"
}

choose_backend() {
    local candidate offences=
    BACKEND=$BACKEND_WANTED
    if [[ $BACKEND != auto ]]; then
        backend_works "$BACKEND" || fail "$REFUSED" "EGRESS_BACKEND=$BACKEND: $OFFENCE"
        return
    fi
    if [[ $SCOPE == uid ]] && ! holds_engine_chains nft && holds_engine_chains legacy; then
        BACKEND=legacy
        return
    fi
    for BACKEND in nft legacy; do
        backend_works "$BACKEND" && return
        offences+="; $OFFENCE"
    done
    fail "$REFUSED" "no backend of iptables works here: ${offences#; }"
}

require_privilege() {
    has_capability "$CAP_NET_ADMIN" \
        || fail "$REFUSED" 'the capability NET_ADMIN is missing (cap_add: [NET_ADMIN], and start as root)'
}

# has_capability NUMBER
has_capability() {
    local line capabilities=0
    read_lines /proc/self/status
    for line in "${TEXT_LINES[@]}"; do
        [[ $line == CapEff:* ]] && capabilities=${line##*[[:space:]]}
    done
    (((16#$capabilities >> $1) & 1))
}

# The legacy backend locks a file in /run, which a read-only container has not got. Any file that is
# there already will do for a lock, but not the one that this script holds.
lend_lock_file() {
    [[ -n ${XTABLES_LOCKFILE:-} || -w /run ]] || export XTABLES_LOCKFILE=$LIST_OF_RANGES
}

# restore FAMILY BACKEND TEXT [--test]: fails with the tool's words in OFFENCE.
restore() {
    local output
    if ! tool "$1" "$2" restore; then
        OFFENCE="$TOOL is missing"
        return 1
    fi
    if ! output=$("$TOOL" --noflush --wait 5 ${4:+"$4"} <<<"$3" 2>&1); then
        OFFENCE="$TOOL refused the rules: $(first_line "$output")"
        return 1
    fi
}

# plan_from_rules RULE…: a plan that is what those rules have of ours.
plan_from_rules() {
    local line
    PLAN_CHAINS=() PLAN_JUMPS=() PLAN_RULES=()
    for line in "$@"; do
        case $line in
            :BULWARK-*) line=${line#:} && PLAN_CHAINS+=("${line%% *}") ;;
            '-A BULWARK-'*) PLAN_RULES+=("$line") ;;
            '-A '*' -j BULWARK-'*)
                jump_of "$line" || continue
                PLAN_JUMPS+=("$JUMP")
                ;;
        esac
    done
}

# jump_of RULE: as PLAN_JUMPS has it, in JUMP.
jump_of() {
    [[ $1 =~ ^-A\ ([^\ ]+)\ (.*)-m\ comment\ --comment\ bulwark\ -j\ ([^\ ]+)$ ]] || return 1
    JUMP="${BASH_REMATCH[1]} ${BASH_REMATCH[3]} ${BASH_REMATCH[2]% }"
}

# put_back FAMILY BACKEND RULE…: makes ours in that table what it was when those were its rules.
put_back() {
    local family=$1 backend=$2
    shift 2
    read_rules "$family" "$backend" || return 1
    plan_from_rules "$@"
    transaction "${RULES[@]}"
    restore "$family" "$backend" "$TRANSACTION"
}

# take_out FAMILY BACKEND: removes what is ours, if anything is; in REMOVED how many rules were.
take_out() {
    local line ours=0
    REMOVED=0
    [[ $2 != legacy ]] || legacy_in_use "$1" || return 0
    if [[ $2 == legacy ]] && ! has_capability "$CAP_NET_RAW"; then
        # Nor could an earlier run of ours put any there.
        say "notice: the legacy rules of IPv$1 were not looked at: that needs the capability NET_RAW"
        return
    fi
    if ! read_rules "$1" "$2"; then
        # A kernel without nf_tables has no rules there.
        [[ $2 == nft && $OFFENCE == *'not supported'* ]]
        return
    fi
    for line in "${RULES[@]}"; do
        [[ $line == :BULWARK-* ]] && ours=1
        [[ $line == '-A BULWARK-'* ]] && REMOVED=$((REMOVED + 1))
    done
    ((ours)) || return 0
    plan_from_rules
    transaction "${RULES[@]}"
    restore "$1" "$2" "$TRANSACTION"
}
