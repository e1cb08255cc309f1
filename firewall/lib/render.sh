# shellcheck shell=bash disable=SC2034,SC2153 # What one file of these sets, another reads.
# A plan's steps as text that iptables reads and writes, and the step that decides about a flow.

# By family: the words in which iptables and ip6tables differ.
declare -A PROHIBITED=([4]=icmp-admin-prohibited [6]=icmp6-adm-prohibited)

# What a function here found is in the variable that its comment names.
STEP='' RULE='' QUOTED='' TARGET='' TRANSACTION=''

# Where the script runs beside others' rules, an accept leaves them their say.
accept_target() {
    TARGET=ACCEPT
    [[ $SCOPE == uid ]] && TARGET=RETURN
    return 0
}

# render_steps FAMILY: the steps as rules, in the spelling of iptables-save.
render_steps() {
    local index
    accept_target
    for index in "${!STEP_CHAINS[@]}"; do
        deciding_rule "$index" tcp "$1"
        PLAN_RULES+=("$RULE")
        [[ ${STEP_VERDICTS[index]} == reject ]] || continue
        deciding_rule "$index" '' "$1"
        PLAN_RULES+=("$RULE")
    done
}

# deciding_rule INDEX PROTOCOL FAMILY: the step's rule for a protocol, in RULE. A reject is two: TCP
# gets a reset, because a client must fail at once, and an ICMP error takes up to a second.
deciding_rule() {
    case ${STEP_VERDICTS[$1]} in
        accept) render "$1" "${STEP_PROTOCOLS[$1]}" "$TARGET" ;;
        drop) render "$1" "${STEP_PROTOCOLS[$1]}" DROP ;;
        mark) render "$1" "${STEP_PROTOCOLS[$1]}" "CONNMARK --set-xmark $LET_IN" ;;
        reject)
            if [[ $2 == tcp ]]; then
                render "$1" tcp 'REJECT --reject-with tcp-reset'
            else
                render "$1" '' "REJECT --reject-with ${PROHIBITED[$3]}"
            fi
            ;;
    esac
}

# render INDEX PROTOCOL TARGET: in RULE.
render() {
    RULE="-A ${STEP_CHAINS[$1]}"
    RULE+=${STEP_ADDRESSES[$1]:+ ${STEP_ADDRESSES[$1]}}
    RULE+=${2:+ -p $2}
    RULE+=${STEP_MATCHES[$1]:+ ${STEP_MATCHES[$1]}}
    quote "${STEP_NAMES[$1]}"
    RULE+=" -m comment --comment $QUOTED -j $3"
}

# quote TEXT: as iptables-save does, in QUOTED. No text of ours has a quote or a backslash in it.
quote() {
    QUOTED=$1
    [[ $1 =~ ^[A-Za-z0-9_-]+$ ]] || QUOTED="\"$1\""
}

# first_step PREFIX PROTOCOL PORT: the index of the step of BULWARK-OUT that decides about a new flow
# there, in STEP. Steps that match by more than address and port are not for such a flow.
first_step() {
    local index address protocol
    for index in "${!STEP_CHAINS[@]}"; do
        [[ ${STEP_CHAINS[index]} == BULWARK-OUT ]] || continue
        address=${STEP_ADDRESSES[index]#-d } protocol=${STEP_PROTOCOLS[index]}
        case $address in
            -o*) is_own "$1" || continue ;;
            '')
                case ${STEP_MATCHES[index]} in
                    '') ;;
                    *'--dst-type LOCAL') is_own "$1" || continue ;;
                    *) continue ;;
                esac
                ;;
            *) contains "$address" "$1" || continue ;;
        esac
        [[ -z $protocol || "$protocol ${STEP_MATCHES[index]##*--dport }" == "$2 $3" ]] || continue
        STEP=$index
        return
    done
    return 1
}

# transaction RULE…: what makes one family's table, whose rules now are those given, that of the
# plan, as input of -restore, in TRANSACTION. Everything of ours goes and comes in the same instant.
transaction() {
    local line chain jump hook target matches
    local -A existing=()
    TRANSACTION='*filter'$'\n'
    for chain in "${PLAN_CHAINS[@]}"; do
        TRANSACTION+=":$chain - [0:0]"$'\n'
    done
    for line in "$@"; do
        [[ $line == :BULWARK-* ]] && line=${line#:} && existing[${line%% *}]=true
        [[ $line == '-A '* && $line == *' -j BULWARK-'* ]] && TRANSACTION+="-D ${line#-A }"$'\n'
    done
    for chain in "${!existing[@]}"; do
        [[ " ${PLAN_CHAINS[*]} " == *" $chain "* ]] || TRANSACTION+="-F $chain"$'\n'"-X $chain"$'\n'
    done
    for jump in "${PLAN_JUMPS[@]}"; do
        read -r hook target matches <<<"$jump"
        TRANSACTION+="-I $hook 1 ${matches:+$matches }-m comment --comment bulwark -j $target"$'\n'
    done
    for line in "${PLAN_RULES[@]}"; do
        TRANSACTION+=$line$'\n'
    done
    TRANSACTION+=COMMIT$'\n'
}
