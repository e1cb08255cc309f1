# shellcheck shell=bash disable=SC2034,SC2153 # What one file of these sets, another reads.
# The probes of verify: one packet or connection to each place that matters, judged by what the
# sender is told and by the counter of the rule that must decide.

# Discard (RFC 863): nobody listens there, and nothing happens where somebody does.
readonly PROBE_PORT=9

# A rejected probe ends at once, or on a machine under load a little later. One that is let out may
# never be answered; that its packet left shows at once, too, and is asked again where it did not.
readonly REJECTED_SECONDS=5
readonly LET_OUT_SECONDS=(0.3 3)

# Addresses that are nobody's (RFC 5737, RFC 3849), for what becomes of everything else.
readonly NOBODY=(192.0.2.1/32 2001:db8::1/128)

# By family: where a packet stays at home.
declare -rA OWN_LOOPBACK=([4]=127.0.0.1/32 [6]=::1/128)

# Where clouds hand out a machine's credentials.
readonly METADATA=(169.254.169.254/32 100.100.100.200/32 fd00:ec2::254/128)

# What only this kernel answers: it had no such packet to send.
readonly NO_SUCH_PACKET='^(Address family not supported by protocol|Invalid argument|Cannot assign requested address)$'

# That there was no way. This kernel says so before it asks a rule; but a router may have said it, or
# nobody was there to take a packet that did leave.
readonly NO_WAY='^(Network is unreachable|No route to host|Permission denied)$'

# The probes of one family, as arrays: where to, how, and the rule that must decide.
PROBE_TARGETS=() PROBE_PROTOCOLS=() PROBE_PORTS=() PROBE_STEPS=() PROBE_RULES=()

verify_probes() {
    local family=$1
    if [[ $family == 6 ]] && ! ipv6_present; then
        check probe IPv6 closed 'no IPv6 here' true
        return
    fi
    plan "$family"
    list_probes "$family"
    local seconds
    local -A before=() after=() due=()
    local -a answers=()
    read_counters "$family" before
    send_probes reject "$REJECTED_SECONDS"
    for seconds in "${LET_OUT_SECONDS[@]}"; do
        send_probes accept "$seconds"
        read_counters "$family" after
        count_due
        all_counted && break
    done
    judge_probes
}

# verify_in_force FAMILY: rules that are in place may be asleep (a table of nftables can be). One packet
# over loopback, which leaves nowhere, must be counted.
verify_in_force() {
    local -A before=() after=() due=()
    local -a answers=()
    [[ $1 == 4 ]] || ipv6_present || return 0
    plan "$1"
    PROBE_TARGETS=() PROBE_PROTOCOLS=() PROBE_PORTS=() PROBE_STEPS=() PROBE_RULES=()
    add_probe "$1" "${OWN_LOOPBACK[$1]}" udp "$PROBE_PORT"
    read_counters "$1" before
    send_probes "${STEP_VERDICTS[PROBE_STEPS[0]]}" "$REJECTED_SECONDS"
    read_counters "$1" after
    count_due
    if all_counted; then
        check rules "IPv$1 packets" counted counted true
    else
        check rules "IPv$1 packets" counted 'not counted: the rules are not in force' false
    fi
}

# list_probes FAMILY
list_probes() {
    local prefix index
    PROBE_TARGETS=() PROBE_PROTOCOLS=() PROBE_PORTS=() PROBE_STEPS=() PROBE_RULES=()
    for prefix in "${RANGES[@]}" "${METADATA[@]}" "${ONLINK[@]}" "${GATEWAYS[@]}"; do
        add_probe "$1" "$prefix" tcp "$PROBE_PORT"
        add_probe "$1" "$prefix" udp "$PROBE_PORT"
    done
    for prefix in "${NOBODY[@]}"; do
        add_probe "$1" "$prefix" udp "$PROBE_PORT"
    done
    [[ $1 == 6 ]] || add_mapped_probe
    for index in "${!STEP_CHAINS[@]}"; do
        [[ ${STEP_CHAINS[index]} == BULWARK-OUT && ${STEP_ADDRESSES[index]} == '-d '* ]] || continue
        prefix=${STEP_ADDRESSES[index]#-d }
        case ${STEP_NAMES[index]} in
            allow* | resolver*)
                add_probe "$1" "$prefix" "${STEP_PROTOCOLS[index]}" "${STEP_MATCHES[index]##*--dport }"
                ;;
            deny* | 'no resolver')
                add_probe "$1" "$prefix" tcp "$PROBE_PORT"
                add_probe "$1" "$prefix" udp "$PROBE_PORT"
                ;;
        esac
    done
}

# add_probe FAMILY PREFIX PROTOCOL PORT
add_probe() {
    family_of "$2"
    [[ $FAMILY == "$1" ]] || return 0
    parse_prefix "$2" || return 0
    # The kernel hands these to IPv4.
    kind_of "$PREFIX"
    [[ $KIND != mapped ]] || return 0
    representative "$PREFIX"
    first_step "$PREFIX" "$3" "$4" || return 0
    local index
    for index in "${!PROBE_TARGETS[@]}"; do
        [[ "${PROBE_TARGETS[index]} ${PROBE_PROTOCOLS[index]} ${PROBE_PORTS[index]}" == "${PREFIX%/*} $3 $4" ]] && return
    done
    deciding_rule "$STEP" "$3" "$1"
    PROBE_TARGETS+=("${PREFIX%/*}") PROBE_PROTOCOLS+=("$3") PROBE_PORTS+=("$4")
    PROBE_STEPS+=("$STEP") PROBE_RULES+=("$RULE")
}

# An IPv6 socket reaches IPv4 by such an address, and there it must meet the rules of IPv4.
add_mapped_probe() {
    parse_prefix 10.0.0.1
    first_step "$PREFIX" tcp "$PROBE_PORT" || return 0
    deciding_rule "$STEP" tcp 4
    PROBE_TARGETS+=("::ffff:${PREFIX%/*}") PROBE_PROTOCOLS+=(tcp) PROBE_PORTS+=("$PROBE_PORT")
    PROBE_STEPS+=("$STEP") PROBE_RULES+=("$RULE")
}

# representative PREFIX: an address in it that is not this namespace's own, if it has one; in PREFIX.
representative() {
    local prefix=$1 digits=${HEX[$1]} last
    PREFIX=$prefix
    ((${#digits} * 4 > ${BITS[$prefix]})) || return 0
    for last in 1 2 3; do
        remember_prefix "${digits:0:-1}$last" $((${#digits} * 4))
        contains "$prefix" "$PREFIX" && ! is_own "$PREFIX" && return
    done
    return 0
}

# read_counters FAMILY ARRAY: packets by rule.
read_counters() {
    local -n packets=$2
    local line
    read_rules "$1" "$BACKEND" || fail "$SURPRISE" "$OFFENCE"
    for line in "${COUNTED[@]}"; do
        packets[${line#*] }]=${line%%:*}
        packets[${line#*] }]=${packets[${line#*] }]#\[}
    done
}

# Runs in a bash of its own, as the user whom the rules are about: `PROTOCOL ADDRESS PORT` for each
# probe, told by its index. Errors are told by the bash that has them, under the name that it takes.
# One process a probe, none of which outlives the time that `timeout` gives them: a server that is
# PID 1 collects no children of others.
# shellcheck disable=SC2016 # Expanded by the other bash.
readonly PROBE_PROGRAM='
exec 2>&1
trap : TERM
index=0
while (($#)); do
    {
        BASH_ARGV0=$index
        exec 3<>"/dev/$1/$2/$3" || exit
        [[ $1 == tcp ]] || printf . >&3 || exit
        echo "$index: sent"
    } &
    index=$((index + 1))
    shift 3
done
wait || wait'

# send_probes VERDICT SECONDS: those that should meet it; fills answers, by the probe's index.
send_probes() {
    local index line
    local -a arguments=() sent=() runner=(timeout -k 1 "$2")
    for index in "${!PROBE_TARGETS[@]}"; do
        [[ ${STEP_VERDICTS[PROBE_STEPS[index]]} == "$1" ]] || continue
        sent+=("$index")
        arguments+=("${PROBE_PROTOCOLS[index]}" "${PROBE_TARGETS[index]}" "${PROBE_PORTS[index]}")
    done
    [[ $SCOPE == uid ]] && runner+=(chroot --userspec="$USER_ID:$USER_ID" --skip-chdir /)
    while IFS= read -r line; do
        [[ $line =~ ^([0-9]+): ]] || continue
        index=${sent[BASH_REMATCH[1]]}
        answers[index]=${line##*: }
    done < <("${runner[@]}" bash -p -c "$PROBE_PROGRAM" probe "${arguments[@]}" || :)
}

# never_left INDEX: whether the probe's answer shows that no packet was sent. UDP is told of what its
# first packet met elsewhere when it sends a second, which no probe does; so such an answer counts
# where UDP to the same place had it, too. TCP to a group there is not.
never_left() {
    local answer=${answers[$1]-} place=${PROBE_TARGETS[$1]} other
    [[ $answer =~ $NO_SUCH_PACKET ]] && return
    [[ $answer =~ $NO_WAY ]] || return
    [[ $place == ::ffff:*.* ]] && place=${place##*:}
    parse_prefix "$place" && kind_of "$PREFIX"
    [[ $KIND != multicast ]] || return 0
    for other in "${!PROBE_TARGETS[@]}"; do
        [[ ${PROBE_TARGETS[other]} == "$place" && ${PROBE_PROTOCOLS[other]} == udp ]] || continue
        [[ ${answers[other]-} =~ $NO_WAY ]] && return
    done
    return 1
}

# A rule that decides about several probes must have counted each.
count_due() {
    local index rule
    due=()
    for index in "${!PROBE_TARGETS[@]}"; do
        never_left "$index" && continue
        rule=${PROBE_RULES[index]}
        due[$rule]=$((${due[$rule]:-0} + 1))
    done
}

# counted RULE: whether its packets since before are as many as the probes that it decides about.
counted() {
    ((${after[$1]:-0} - ${before[$1]:-0} >= ${due[$1]:-0}))
}

all_counted() {
    local rule
    for rule in "${!due[@]}"; do
        counted "$rule" || return
    done
}

judge_probes() {
    local index
    for index in "${!PROBE_TARGETS[@]}"; do
        judge_probe "$index" "${answers[index]-no answer}"
    done
}

# judge_probe INDEX ANSWER
judge_probe() {
    local rule=${PROBE_RULES[$1]} step=${PROBE_STEPS[$1]} answer=$2 expected=rejected ok=false
    local name="${PROBE_TARGETS[$1]} ${PROBE_PROTOCOLS[$1]}/${PROBE_PORTS[$1]}"
    local by=${STEP_NAMES[step]}
    [[ ${STEP_VERDICTS[step]} == accept ]] && expected='let out'
    if [[ $expected == rejected ]] && never_left "$1"; then
        check probe "$name" "$expected" "no route ($answer)" true
        return
    fi
    if ! counted "$rule"; then
        check probe "$name" "$expected" "$answer, but not by the rule \"$by\"" false
        return
    fi
    # An upstream need not be up yet: that the packet was let out is the proof.
    case $expected:$answer in
        'let out':* | *:'Connection refused' | *:'Operation not permitted') ok=true ;;
    esac
    check probe "$name" "$expected" "$answer: $by" "$ok"
}
