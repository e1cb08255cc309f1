# shellcheck shell=bash disable=SC2034,SC2153 # What one file of these sets, another reads.
# What is said to the operator, and how the script ends. Results go to stdout, faults to stderr.

readonly DONE=0 SURPRISE=1 REFUSED=2

PROBLEMS=()
CHECKS=()
CHECKS_OK=true

say() {
    printf 'egress: %s\n' "$*"
}

# Ends the script with a status and one line on stderr.
fail() {
    local status=$1
    shift
    printf 'egress: %s\n' "$*" >&2
    exit "$status"
}

# Notes a problem of the input; stop_on_problems then tells all of them at once.
problem() {
    PROBLEMS+=("${*//[[:cntrl:]]/?}")
}

stop_on_problems() {
    ((${#PROBLEMS[@]} == 0)) && return
    printf 'egress: %s\n' "${PROBLEMS[@]}" >&2
    exit "$REFUSED"
}

# check KIND NAME EXPECTED RESULT OK: one row of what verify found; OK is true or false. A process names
# itself as it likes: what is no plain character reaches neither the row's tabs nor a terminal.
check() {
    local -a row=("${@//[^[:print:]]/?}")
    CHECKS+=("${row[0]}"$'\t'"${row[1]}"$'\t'"${row[2]}"$'\t'"${row[3]}"$'\t'"${row[4]}")
    [[ $5 == true ]] || CHECKS_OK=false
}

# Prints the rows, as a table or as one JSON object, and ends the script by their verdict.
report_checks() {
    if [[ $AS_JSON == true ]]; then
        print_json
    else
        print_table
    fi
    [[ $CHECKS_OK == true ]] && exit "$DONE"
    exit "$SURPRISE"
}

print_table() {
    local row kind name expected result ok verdict surprises=0
    printf '%-44s  %-9s  %-44s  %s\n' PROBE EXPECTED RESULT VERDICT
    for row in "${CHECKS[@]}"; do
        IFS=$'\t' read -r kind name expected result ok <<<"$row"
        verdict=ok
        [[ $ok == true ]] || verdict='SURPRISE'
        [[ $ok == true ]] || surprises=$((surprises + 1))
        printf '%-44s  %-9s  %-44s  %s\n' "$kind $name" "$expected" "$result" "$verdict"
    done
    if ((surprises == 0)); then
        say "verified: ${#CHECKS[@]} checks, each as expected"
    else
        say "NOT verified: $surprises of ${#CHECKS[@]} checks were a surprise"
    fi
}

print_json() {
    local row kind name expected result ok comma=
    printf '{"ok":%s,"checks":[' "$CHECKS_OK"
    for row in "${CHECKS[@]}"; do
        IFS=$'\t' read -r kind name expected result ok <<<"$row"
        printf '%s{"kind":%s,"name":%s,"expected":%s,"result":%s,"ok":%s}' "$comma" \
            "$(json_string "$kind")" "$(json_string "$name")" \
            "$(json_string "$expected")" "$(json_string "$result")" "$ok"
        comma=,
    done
    printf ']}\n'
}

json_string() {
    local text=${1//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}"
}
