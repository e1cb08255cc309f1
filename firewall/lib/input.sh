# shellcheck shell=bash disable=SC2034,SC2153 # What one file of these sets, another reads.
# The environment, read once: every problem of it is told, nothing is guessed. Fails closed.

# Settings that are one word out of a few; the first is the default.
declare -A CHOICES=(
    [EGRESS_MODE]='internet upstream-only'
    [EGRESS_IPV6]='off on'
    [EGRESS_SCOPE]='container uid'
    [EGRESS_BACKEND]='auto nft legacy'
    [EGRESS_FIREWALL]='on off'
)
readonly OTHER_SETTINGS='EGRESS_ALLOW EGRESS_DENY EGRESS_DNS EGRESS_UID'

# Kinds of address that make no sense in a setting, and why.
declare -A REFUSED_KINDS=(
    [EGRESS_ALLOW]='unspecified multicast broadcast mapped loopback'
    [EGRESS_DENY]='mapped loopback'
    [EGRESS_DNS]='unspecified multicast broadcast mapped'
)
declare -A KIND_OFFENCES=(
    [unspecified]='is the unspecified address'
    [multicast]='is a multicast address'
    [broadcast]='is the broadcast address'
    [mapped]='is IPv4 inside IPv6: write the IPv4 address'
    [loopback]='is loopback, which is always open in container scope'
)

# Every item is compared with every other: a thousand would take the health check longer than it has.
readonly MOST_ITEMS=256

# A comment has room for 255 characters; `allow NAME:65535/tcp` is the longest of ours.
readonly LONGEST_NAME=230

MODE='' IPV6='' SCOPE='' BACKEND_WANTED='' USER_ID='' PUBLIC_PORT=''
# Exceptions as `host port protocol text`, what is denied besides, who may be asked for names.
ALLOW=() DENY=() DNS=()
# By name: its addresses as prefixes, with a space after each.
declare -A RESOLVED=()
NAMES=()

read_settings() {
    refuse_unknown_settings
    read_choice EGRESS_MODE MODE
    read_choice EGRESS_IPV6 IPV6
    read_choice EGRESS_SCOPE SCOPE
    read_choice EGRESS_BACKEND BACKEND_WANTED
    read_choice EGRESS_FIREWALL _
    read_number EGRESS_UID 10001 1 4294967294 USER_ID
    read_number PROXY_PORT 8080 1 65535 PUBLIC_PORT
    read_items EGRESS_ALLOW read_exception
    read_items EGRESS_DENY read_denied
    read_dns
}

# A typo must not silently leave the default.
refuse_unknown_settings() {
    local name known=" ${!CHOICES[*]} $OTHER_SETTINGS "
    while read -r name; do
        [[ $known == *" $name "* ]] || problem "$name is not a setting of this firewall"
    done < <(compgen -e -X '!EGRESS_*' || :)
}

# read_choice SETTING VARIABLE
read_choice() {
    local choices=" ${CHOICES[$1]} "
    local value=${!1-${CHOICES[$1]%% *}}
    if [[ -z $value || $value == *' '* || $choices != *" $value "* ]]; then
        problem "$1: \"$value\" is not one of ${CHOICES[$1]// /, }"
    fi
    printf -v "$2" '%s' "$value"
}

# read_number SETTING DEFAULT LEAST MOST VARIABLE
read_number() {
    local value=${!1-$2}
    if ! number_within "$value" "$3" "$4"; then
        problem "$1: \"$value\" is not a whole number from $3 to $4"
    fi
    printf -v "$5" '%s' "$value"
}

# number_within TEXT LEAST MOST: decimal, without sign or leading zeros.
number_within() {
    [[ $1 =~ ^(0|[1-9][0-9]{0,9})$ ]] && (($1 >= $2 && $1 <= $3))
}

# read_items SETTING READER: hands each comma-separated item to `READER SETTING ITEM`.
read_items() {
    local setting=$1 reader=$2 value=${!1-} item
    [[ -z $value ]] && return
    if [[ $value == *[[:space:]]* ]]; then
        problem "$setting: \"$value\" has white space in it"
        return
    fi
    item=${value//[^,]/}
    if ((${#item} >= MOST_ITEMS)); then
        problem "$setting has $((${#item} + 1)) items, and may have $MOST_ITEMS: name networks instead"
        return
    fi
    while IFS= read -r -d , item; do
        if [[ -z $item ]]; then
            problem "$setting: \"$value\" has an empty item"
        else
            "$reader" "$setting" "$item"
        fi
    done <<<"$value,"
}

read_exception() {
    local setting=$1 item=$2 host port protocol
    if [[ $item =~ ^(.*)/(tcp|udp)$ ]]; then
        protocol=${BASH_REMATCH[2]} item=${BASH_REMATCH[1]}
    fi
    if [[ $item =~ ^\[([^][]*)\]:([^:]*)$ ]]; then
        host=${BASH_REMATCH[1]} port=${BASH_REMATCH[2]}
        if [[ $host != *:* ]]; then
            problem "$setting: \"$2\": brackets are for IPv6 addresses"
            return
        fi
    elif [[ $item =~ ^([^]:[]*):([^:]*)$ ]]; then
        host=${BASH_REMATCH[1]} port=${BASH_REMATCH[2]}
    else
        problem "$setting: \"$2\" is not host:port, or [IPv6 address]:port"
        return
    fi
    if [[ $port == */* ]]; then
        problem "$setting: \"$2\": the protocol after the slash is neither tcp nor udp"
    elif ! number_within "$port" 1 65535; then
        problem "$setting: \"$2\": the port is not a whole number from 1 to 65535"
    elif read_host "$setting" "$2" "$host"; then
        ALLOW+=("$HOST $port ${protocol:-tcp} $item/${protocol:-tcp}")
    fi
}

read_denied() {
    read_host "$1" "$2" "$2" && DENY+=("$HOST $2")
    return 0
}

read_dns() {
    [[ -n ${EGRESS_DNS+set} ]] || return 0
    case $EGRESS_DNS in
        '') problem 'EGRESS_DNS is empty: leave it out, or say none' ;;
        none) DNS=(none) ;;
        *) read_items EGRESS_DNS read_resolver ;;
    esac
}

read_resolver() {
    if [[ $2 == */* ]] || ! read_address "$1" "$2" "$2"; then
        [[ $2 == */* ]] && problem "$1: \"$2\" is not one address"
        return 0
    fi
    DNS+=("$PREFIX")
}

# read_host SETTING ITEM TEXT: a prefix, or a name to resolve later, in HOST.
read_host() {
    # Where a name ends in a number, resolvers take it for an address in one of its old spellings.
    if [[ $3 == *[:/]* || ${3##*.} =~ ^([0-9]+|0[xX][0-9A-Fa-f]*)$ ]]; then
        read_address "$@" || return 1
        HOST=$PREFIX
        return
    fi
    if ((${#3} > LONGEST_NAME)) || [[ ! $3 =~ ^[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?$ || $3 == *..* ]]; then
        problem "$1: \"$2\": the host is neither an address nor a name of at most $LONGEST_NAME characters"
        return 1
    fi
    HOST=$3
    remember_name "$1" "$3"
}

# read_address SETTING ITEM TEXT: the prefix in PREFIX, if the setting may name such a one.
read_address() {
    if [[ $3 == */0 ]]; then
        problem "$1: \"$2\" is everything, which no item may be"
        return 1
    fi
    if ! parse_prefix "$3"; then
        problem "$1: \"$2\" $OFFENCE"
        return 1
    fi
    refuse_kind "$1" "$2" "$PREFIX"
}

# refuse_kind SETTING ITEM PREFIX: fails, with a problem noted, for an address of no use there.
refuse_kind() {
    kind_of "$3"
    [[ $KIND == loopback && $SCOPE == uid ]] && return
    [[ " ${REFUSED_KINDS[$1]} " == *" $KIND "* ]] || return 0
    problem "$1: \"$2\" ${KIND_OFFENCES[$KIND]}"
    return 1
}

remember_name() {
    local known
    for known in "${NAMES[@]}"; do
        [[ $known == "$1 $2" ]] && return
    done
    NAMES+=("$1 $2")
}

# Asks for the addresses of every name, once: what they are then is what the rules say.
resolve_names() {
    local entry setting name
    for entry in "${NAMES[@]}"; do
        read -r setting name <<<"$entry"
        if ! resolve "$name"; then
            problem "$setting: \"$name\" does not resolve to an address"
            continue
        fi
        RESOLVED[$name]=$ADDRESSES
        refuse_resolved "$setting" "$name"
    done
}

# resolve NAME: its addresses as prefixes, sorted, in ADDRESSES; fails when it has none.
resolve() {
    local address found
    ADDRESSES=
    found=$(timeout -s KILL 5 getent ahosts "$1" | cut -d ' ' -f 1 | sort -u) || return 1
    for address in $found; do
        parse_prefix "$address" && ADDRESSES+="$PREFIX "
    done
    [[ -n $ADDRESSES ]]
}

refuse_resolved() {
    local address
    for address in ${RESOLVED[$2]}; do
        refuse_kind "$1" "$2 ($address)" "$address" || return 0
    done
}

# addresses_of HOST FAMILY: the prefixes of that family which a host stands for, in ADDRESSES.
addresses_of() {
    local address
    ADDRESSES=
    for address in ${RESOLVED[$1]-${HEX[$1]+$1}}; do
        family_of "$address"
        [[ $FAMILY == "$2" ]] && ADDRESSES+="$address "
    done
    return 0
}
