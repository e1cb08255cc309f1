# shellcheck shell=bash disable=SC2034,SC2153 # What one file of these sets, another reads.
# Addresses and prefixes, parsed strictly and written as iptables-save writes them. Pure.
#
# An address is also kept as hexadecimal digits (8 for IPv4, 32 for IPv6), so that both families
# are compared by the same few lines. What is lax elsewhere (0x7f.1, 010.0.0.1, ::1%lo) is refused:
# two readers of one spelling must not disagree about whom it names.

# What a function here found is in the variable that its comment names.
FAMILY='' DIGITS='' ADDRESS='' PREFIX='' OFFENCE='' KIND=''

# By prefix in its canonical spelling: its digits, and its length in bits.
declare -A HEX=() BITS=()

# family_of TEXT: 4 or 6 in FAMILY.
family_of() {
    FAMILY=4
    [[ $1 == *:* ]] && FAMILY=6
    return 0
}

# ipv4_hex TEXT: the digits in DIGITS; fails when TEXT is no dotted quad.
ipv4_hex() {
    local octet='(0|[1-9][0-9]{0,2})'
    [[ $1 =~ ^$octet\.$octet\.$octet\.$octet$ ]] || return 1
    local value
    for value in "${BASH_REMATCH[@]:1}"; do
        ((value <= 255)) || return 1
    done
    printf -v DIGITS '%02x%02x%02x%02x' "${BASH_REMATCH[@]:1}"
}

# ipv6_hex TEXT: the digits in DIGITS; fails when TEXT is no address of RFC 4291 §2.2.
ipv6_hex() {
    local text=$1 left right groups
    [[ $text == *:* && $text =~ ^[0-9A-Fa-f:.]+$ ]] || return 1
    if [[ $text == *.* ]]; then
        ipv4_hex "${text##*:}" || return 1
        text=${text%:*}:${DIGITS:0:4}:${DIGITS:4:4}
    fi
    [[ $text == *:::* || $text == *::*::* ]] && return 1
    if [[ $text != *::* ]]; then
        hex_groups "$text" && ((${#DIGITS} == 32))
        return
    fi
    hex_groups "${text%%::*}" || return 1
    left=$DIGITS
    hex_groups "${text#*::}" || return 1
    right=$DIGITS
    groups=$(((${#left} + ${#right}) / 4))
    ((groups <= 7)) || return 1
    printf -v DIGITS '%s%0*d%s' "$left" $(((8 - groups) * 4)) 0 "$right"
}

# hex_groups TEXT: groups between single colons, each filled up to four digits, in DIGITS.
hex_groups() {
    DIGITS=
    [[ -z $1 ]] && return
    [[ $1 =~ ^[0-9A-Fa-f]{1,4}(:[0-9A-Fa-f]{1,4})*$ ]] || return 1
    local group filled digits=
    local -a groups
    IFS=: read -ra groups <<<"$1"
    for group in "${groups[@]}"; do
        printf -v filled '%04x' "0x$group"
        digits+=$filled
    done
    DIGITS=$digits
}

# address_text DIGITS: the canonical spelling in ADDRESS.
address_text() {
    if ((${#1} == 8)); then
        printf -v ADDRESS '%d.%d.%d.%d' "0x${1:0:2}" "0x${1:2:2}" "0x${1:4:2}" "0x${1:6:2}"
    else
        ipv6_text "$1"
    fi
}

# As glibc's inet_ntop, which is what iptables-save prints: the first longest run of two or more
# zero groups is left out; with IPv4 at the end where a run of six, or of five before ffff, begins it.
ipv6_text() {
    local digits=$1 index start=-1 length=0 run=0
    local -a groups=()
    for index in 0 1 2 3 4 5 6 7; do
        printf -v "groups[$index]" '%x' "0x${digits:index*4:4}"
        if [[ ${groups[index]} != 0 ]]; then
            run=0
            continue
        fi
        run=$((run + 1))
        ((run > length)) && length=$run start=$((index - run + 1))
    done
    ((length >= 2)) || start=-1
    local embedded=false
    if ((start == 0)) && { ((length == 6)) || [[ $length == 5 && ${groups[5]} == ffff ]]; }; then
        embedded=true
    fi
    ADDRESS=
    for ((index = 0; index < 8; index++)); do
        if ((index == start)); then
            ADDRESS+=::
            index=$((index + length - 1))
            continue
        fi
        [[ -z $ADDRESS || $ADDRESS == *: ]] || ADDRESS+=:
        if ((index == 6)) && [[ $embedded == true ]]; then
            printf -v ADDRESS '%s%d.%d.%d.%d' "$ADDRESS" "0x${digits:24:2}" "0x${digits:26:2}" \
                "0x${digits:28:2}" "0x${digits:30:2}"
            return
        fi
        ADDRESS+=${groups[index]}
    done
}

# parse_prefix TEXT: an address or address/length; canonical, with its length, in PREFIX.
# Fails with the offence in OFFENCE.
parse_prefix() {
    local address=${1%%/*} bits digits
    if ! ipv4_hex "$address" && ! ipv6_hex "$address"; then
        OFFENCE='is not an IPv4 or IPv6 address'
        return 1
    fi
    digits=$DIGITS
    bits=$((${#digits} * 4))
    if [[ $1 == */* ]]; then
        if [[ ! ${1#*/} =~ ^(0|[1-9][0-9]{0,2})$ ]] || ((${1#*/} > bits)); then
            OFFENCE="has no prefix length from 1 to $bits after the slash"
            return 1
        fi
        bits=${1#*/}
    fi
    remember_prefix "$digits" "$bits"
    if [[ ${HEX[$PREFIX]} != "$digits" ]]; then
        OFFENCE="has bits set behind its prefix: did you mean $PREFIX?"
        return 1
    fi
}

# remember_prefix DIGITS BITS: the prefix of that length around an address, in PREFIX.
remember_prefix() {
    local digits=$1 bits=$2 whole=$(($2 / 4)) network
    local -i nibble
    network=${digits:0:whole}
    if ((bits % 4)); then
        nibble="0x${digits:whole:1}"
        printf -v network '%s%x' "$network" $((nibble & (0xf0 >> (bits % 4))))
    fi
    while ((${#network} < ${#digits})); do
        network+='0'
    done
    address_text "$network"
    PREFIX=$ADDRESS/$bits
    HEX[$PREFIX]=$network BITS[$PREFIX]=$bits
}

# contains OUTER INNER: whether the first prefix holds all of the second.
contains() {
    local outer=${HEX[$1]} inner=${HEX[$2]} bits=${BITS[$1]}
    ((${#outer} == ${#inner} && bits <= ${BITS[$2]})) || return 1
    local whole=$((bits / 4)) rest=$((bits % 4))
    [[ ${outer:0:whole} == "${inner:0:whole}" ]] || return 1
    ((rest == 0)) && return
    local -i ours="0x${outer:whole:1}" theirs="0x${inner:whole:1}"
    (((ours ^ theirs) >> (4 - rest) == 0))
}

# Kinds of address that a setting may refuse, by the prefix that they are in.
declare -A KINDS=(
    ['0.0.0.0/32']=unspecified ['::/128']=unspecified
    ['127.0.0.0/8']=loopback ['::1/128']=loopback
    ['224.0.0.0/4']=multicast ['ff00::/8']=multicast
    ['255.255.255.255/32']=broadcast
    ['::ffff:0.0.0.0/96']=mapped
)

for prefix in "${!KINDS[@]}"; do
    parse_prefix "$prefix"
done
unset prefix

# kind_of PREFIX: one of KINDS, or unicast, in KIND.
kind_of() {
    local candidate
    KIND=unicast
    for candidate in "${!KINDS[@]}"; do
        contains "$candidate" "$1" && KIND=${KINDS[$candidate]}
    done
    return 0
}
