# shellcheck shell=bash disable=SC2034,SC2153 # What one file of these sets, another reads.
# What the server's processes could do against the rules. Capabilities belong to threads.

verify_processes() {
    local status pid known=0
    verify_first_process
    for status in /proc/[0-9]*/status; do
        pid=${status#/proc/}
        pid=${pid%/status}
        [[ $pid != 1 ]] || continue
        runs_as_user "$pid" || continue
        lives_elsewhere "$pid" && continue
        known=$((known + 1))
        verify_process "$pid"
    done
    ((known)) || check process "of uid $USER_ID" powerless 'none runs but PID 1, if that' true
}

# With the whole host's network PID 1 is the host's; and while the entrypoint runs us, it is that.
verify_first_process() {
    [[ $SCOPE == container ]] || return 0
    if is_ancestor 1; then
        check process 'PID 1' powerless 'not judged: it started this verify' true
    elif lives_elsewhere 1; then
        check process 'PID 1' powerless 'not judged: it is in another network' true
    else
        verify_process 1
    fi
}

# read_status FILE: one thread's status, by key, in STATUS; fails when it has gone.
declare -A STATUS=()
read_status() {
    local line
    STATUS=()
    read_lines "$1" || return 1
    for line in "${TEXT_LINES[@]}"; do
        STATUS[${line%%:*}]=${line#*:$'\t'}
    done
    [[ -n ${STATUS[Uid]:-} ]]
}

# runs_as_user PID: looks at no more of the many than it must.
runs_as_user() {
    local line
    local -a threads
    read_lines "/proc/$1/status" || return 1
    for line in "${TEXT_LINES[@]}"; do
        case $line in
            # The dead have no power, and none to take: unless it was the first thread only.
            State:*Z*)
                threads=("/proc/$1/task/"*)
                ((${#threads[@]} > 1)) || return 1
                ;;
            Uid:*)
                [[ $line$'\t' == *$'\t'"$USER_ID"$'\t'* ]]
                return
                ;;
        esac
    done
    return 1
}

is_ancestor() {
    local pid=$$
    while ((pid > 1)); do
        read_status "/proc/$pid/status" || return 1
        pid=${STATUS[PPid]}
        [[ $pid == "$1" ]] && return
    done
    return 1
}

# lives_elsewhere PID: whether no thread of it is in this network. Without the right to look, one counts
# as here; the dead are nowhere.
lives_elsewhere() {
    local task
    for task in "/proc/$1/task/"*; do
        is_dead "$task/status" && continue
        [[ -e $task/ns/net && ! $task/ns/net -ef /proc/self/ns/net ]] || return 1
    done
}

# is_dead FILE: whether that thread has ended, and nobody has asked how yet.
is_dead() {
    read_status "$1" || return 0
    [[ ${STATUS[State]} == Z* ]]
}

# verify_process PID: capabilities belong to threads, so each is looked at.
verify_process() {
    local status power
    for status in "/proc/$1/task/"*/status; do
        is_dead "$status" && continue
        power_of
        [[ -z $POWER ]] || power=$POWER
    done
    if [[ -n ${power:-} ]]; then
        check process "PID $1 (${STATUS[Name]:-?})" powerless "$power" false
    else
        check process "PID $1 (${STATUS[Name]:-?})" powerless powerless true
    fi
}

# What the thread of STATUS could do against the rules, in POWER; empty when nothing.
power_of() {
    local key
    POWER=
    for key in CapInh CapPrm CapEff CapBnd CapAmb; do
        [[ ${STATUS[$key]:-0} =~ ^0+$ ]] || POWER+="$key ${STATUS[$key]}, "
    done
    [[ " ${STATUS[Uid]//$'\t'/ } " == *' 0 '* ]] && POWER+='uid 0, '
    [[ ${STATUS[NoNewPrivs]:-0} == 1 ]] || POWER+='may gain privileges, '
    POWER=${POWER%, }
}
