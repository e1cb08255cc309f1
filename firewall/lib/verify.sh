# shellcheck shell=bash disable=SC2034,SC2153 # What one file of these sets, another reads.
# Proof from inside: the rules that are installed are those that would be generated, packets meet
# the rule that they should, and the server's processes cannot change that. Sends nothing unless the
# rules are in place: a probe must not be the leak.

run_verify() {
    local family
    require_tools flock timeout getent cut sort chroot
    read_settings
    stop_on_problems
    read_ranges
    read_network
    require_privilege
    lock
    lend_lock_file
    choose_backend
    learn_names
    for family in $FAMILIES; do
        verify_rules "$family"
    done
    for family in $FAMILIES; do
        [[ $CHECKS_OK == false ]] || verify_in_force "$family"
    done
    [[ $CHECKS_OK == true && $RULES_ONLY == false ]] || report_checks
    verify_names
    # Before the probes, which run as the same user.
    verify_processes
    for family in $FAMILIES; do
        verify_probes "$family"
    done
    report_checks
}

# Names were resolved at apply, and what they were then is in the rules. An address under a name's
# comment counts only if it is a single one.
learn_names() {
    local family line name known=' ' entry
    local rule='^-A BULWARK-OUT -d ([^ ]+/(32|128)) .*--comment "(allow|deny) ([^":]+)(:[0-9]+/[a-z]+)?" -j'
    for entry in "${NAMES[@]}"; do
        known+="${entry#* } "
    done
    for family in 4 6; do
        read_rules "$family" "$BACKEND" || continue
        for line in "${RULES[@]}"; do
            [[ $line =~ $rule ]] || continue
            name=${BASH_REMATCH[4]} line=${BASH_REMATCH[1]}
            [[ $known == *" $name "* && " ${RESOLVED[$name]:-}" != *" $line "* ]] || continue
            parse_prefix "$line" && RESOLVED["$name"]+="$PREFIX "
        done
    done
    for entry in "${NAMES[@]}"; do
        name=${entry#* }
        [[ -n ${RESOLVED[$name]:-} ]] || check name "$name" 'in rules' 'no rule names it: apply again' false
    done
}

verify_rules() {
    local family=$1 chain jump
    if ! read_rules "$family" "$BACKEND" || ! holds_ours; then
        if [[ $family == 6 ]] && ! ipv6_present; then
            check rules IPv6 'in place' 'not needed: this namespace has no IPv6' true
            return
        fi
    fi
    plan "$family"
    for jump in "${PLAN_JUMPS[@]}"; do
        verify_jump "$family" "$jump"
    done
    for chain in "${PLAN_CHAINS[@]}"; do
        verify_chain "$family" "$chain"
    done
}

holds_ours() {
    local line
    for line in "${RULES[@]}"; do
        [[ $line == :BULWARK-OUT\ * ]] && return
    done
    return 1
}

# verify_jump FAMILY JUMP: it must be the hook's first rule, or what stands before it decides.
verify_jump() {
    local hook chain matches line first='' count=0
    read -r hook chain matches <<<"$2"
    local wanted="-A $hook ${matches:+$matches }-m comment --comment bulwark -j $chain"
    for line in "${RULES[@]}"; do
        [[ $line == *incompatible* ]] && first=$line
        [[ $line == "-A $hook "* ]] || continue
        first=${first:-$line}
        [[ $line == "$wanted" ]] && count=$((count + 1))
    done
    local name="IPv$1 $hook to $chain"
    if ((count == 0)); then
        check rules "$name" first 'the jump is missing: apply again' false
    elif [[ $first != "$wanted" ]]; then
        check rules "$name" first "before it: $first" false
    else
        check rules "$name" first first true
    fi
}

# verify_chain FAMILY CHAIN: rule for rule.
verify_chain() {
    local line index
    local -a wanted=() found=()
    for line in "${PLAN_RULES[@]}"; do
        [[ $line == "-A $2 "* ]] && wanted+=("$line")
    done
    for line in "${RULES[@]}"; do
        [[ $line == "-A $2 "* ]] && found+=("$line")
    done
    for index in "${!wanted[@]}"; do
        [[ ${found[index]-} == "${wanted[index]}" ]] && continue
        check rules "IPv$1 $2" "${#wanted[@]} rules" \
            "rule $((index + 1)) is \"${found[index]-missing}\", not \"${wanted[index]}\"" false
        return
    done
    index=${#wanted[@]}
    if ((${#found[@]} > index)); then
        check rules "IPv$1 $2" "$index rules" "one too many: \"${found[index]}\"" false
        return
    fi
    check rules "IPv$1 $2" "$index rules" "the same $index rules" true
}

# A name that has moved leaves an exception for whoever has the address now; and who puts a rule under
# a name's comment has made one for an address that the name never had.
verify_names() {
    local entry name address strangers
    for entry in "${NAMES[@]}"; do
        name=${entry#* }
        if ! resolve "$name"; then
            check name "$name" "${RESOLVED[$name]% }" 'does not resolve now' true
            continue
        fi
        strangers=
        for address in ${RESOLVED[$name]}; do
            [[ " $ADDRESSES" == *" $address "* ]] || strangers+="$address "
        done
        if [[ -n $strangers ]]; then
            check name "$name" "${RESOLVED[$name]% }" "not ${strangers% } now, but ${ADDRESSES% }: apply again" false
        else
            check name "$name" "${RESOLVED[$name]% }" "${ADDRESSES% }" true
        fi
    done
}
