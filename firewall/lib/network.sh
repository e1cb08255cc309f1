# shellcheck shell=bash disable=SC2034,SC2153 # What one file of these sets, another reads.
# What the kernel says of this network namespace: prefixes on the link, gateways, resolvers, and
# whether it is the host's own. Read from /proc and /sys, because a small image has no `ip`.

# Lines of the file that was read last.
TEXT_LINES=()

# read_lines FILE: in one go. Line by line, bash reads ahead and seeks back, and a file of the kernel
# may have changed in between; then lines are torn.
read_lines() {
    TEXT_LINES=()
    mapfile -t TEXT_LINES 2>/dev/null <"$1" || return 1
}

# A route this wide is a way out, not a neighbourhood: the default, or one of a VPN's two halves.
readonly LEAST_ONLINK_BITS=8

declare -ri ROUTE_UP=0x1 ROUTE_REJECT=0x200
# IPv6 has its own addresses and anycast among the routes.
declare -ri ROUTE_NOT_A_LINK=0x80100000
# Learned from a router's advertisement, which any neighbour can send.
declare -ri ROUTE_LEARNED=0x40000

# Of both families, as prefixes.
ONLINK=() GATEWAYS=() OWN=()
# Interfaces with a route, those with a way out, and by interface all prefixes that lie that way, with a
# space after each.
LINKS=() WAYS_OUT=()
declare -A THAT_WAY=()
LINKS_TO=()
# Addresses that this namespace will ask for names.
RESOLVERS=()

read_network() {
    ONLINK=() GATEWAYS=() OWN=() LINKS=() WAYS_OUT=() THAT_WAY=()
    read_ipv4_routes
    read_ipv6_routes
    read_own_addresses
    read_resolvers
}

ipv6_present() {
    read_lines /proc/net/if_inet6 && ((${#TEXT_LINES[@]}))
}

read_ipv4_routes() {
    local line interface destination gateway flags mask _
    read_lines /proc/net/route || return 0
    for line in "${TEXT_LINES[@]}"; do
        read -r interface destination gateway flags _ _ _ mask _ <<<"$line"
        [[ $flags =~ ^[0-9A-F]+$ ]] || continue
        swap_bytes "$destination"
        destination=$DIGITS
        mask_bits "$mask"
        swap_bytes "$gateway"
        add_route "$interface" "$destination" "$MASK_BITS" "$DIGITS" "$((16#$flags))"
    done
}

read_ipv6_routes() {
    local line destination length gateway flags interface _
    read_lines /proc/net/ipv6_route || return 0
    for line in "${TEXT_LINES[@]}"; do
        read -r destination length _ _ gateway _ _ _ flags interface <<<"$line"
        (((16#$flags & ROUTE_NOT_A_LINK) == 0)) || continue
        add_route "$interface" "$destination" "$((16#$length))" "$gateway" "$((16#$flags))"
    done
}

# add_route INTERFACE DESTINATION BITS GATEWAY FLAGS
add_route() {
    [[ $1 != lo ]] || return 0
    ((($5 & (ROUTE_UP | ROUTE_REJECT)) == ROUTE_UP)) || return 0
    if (($5 & ROUTE_LEARNED)); then
        # Where IPv6 is closed at the end, it says nothing; the rules must not change with it.
        [[ $MODE == internet && $IPV6 == on ]] || return 0
    elif (($3 >= LEAST_ONLINK_BITS)); then
        remember_prefix "$2" "$3"
        if ! comes_and_goes "$PREFIX"; then
            THAT_WAY[$1]+="$PREFIX "
            add_once LINKS "$1"
        fi
    else
        add_once WAYS_OUT "$1"
        add_once LINKS "$1"
    fi
    if [[ $4 =~ [^0] ]]; then
        remember_prefix "$4" $((${#4} * 4))
        comes_and_goes "$PREFIX" || add_once GATEWAYS "$PREFIX"
    elif (($3 >= LEAST_ONLINK_BITS)); then
        remember_prefix "$2" "$3"
        comes_and_goes "$PREFIX" || add_once ONLINK "$PREFIX"
    fi
}

# links_to PREFIX: the interfaces of its longest route, and those of routes into it; in LINKS_TO.
links_to() {
    local link prefix longest=0
    LINKS_TO=()
    for link in "${LINKS[@]}"; do
        for prefix in ${THAT_WAY[$link]:-}; do
            contains "$prefix" "$1" && ((${BITS[$prefix]} > longest)) && longest=${BITS[$prefix]}
        done
    done
    for link in "${LINKS[@]}"; do
        for prefix in ${THAT_WAY[$link]:-}; do
            if contains "$1" "$prefix"; then
                add_once LINKS_TO "$link"
            elif contains "$prefix" "$1" && ((${BITS[$prefix]} == longest)); then
                add_once LINKS_TO "$link"
            fi
        done
    done
}

# is_way_out INTERFACE
is_way_out() {
    local link
    for link in "${WAYS_OUT[@]}"; do
        [[ $link == "$1" ]] && return
    done
    return 1
}

# IPv6 has a link-local and a multicast route on every link that is up. Both are ranges; as rules
# of their own they would make what is generated depend on the moment.
comes_and_goes() {
    [[ $1 == fe80:* || $1 == ff00:* ]]
}

# The trie names an address on one line, and on the next ones what it is.
read_own_addresses() {
    local line address=
    read_lines /proc/net/fib_trie || :
    for line in "${TEXT_LINES[@]}"; do
        case $line in
            *'|-- '*) address=${line##*|-- } ;;
            *'/32 host LOCAL') parse_prefix "$address" && add_once OWN "$PREFIX" ;;
        esac
    done
    read_lines /proc/net/if_inet6 || :
    for line in "${TEXT_LINES[@]}"; do
        remember_prefix "${line%% *}" 128
        add_once OWN "$PREFIX"
    done
}

# is_own PREFIX: whether packets to that address would stay here.
is_own() {
    local own
    kind_of "$1"
    [[ $KIND == loopback ]] && return
    for own in "${OWN[@]}"; do
        [[ $own == "$1" ]] && return
    done
    return 1
}

# add_once ARRAY ITEM
add_once() {
    local -n array=$1
    local item
    for item in "${array[@]}"; do
        [[ $item == "$2" ]] && return
    done
    array+=("$2")
}

# /proc/net/route prints the bytes of an address as the machine keeps an integer: little-endian.
swap_bytes() {
    local lowered=${1,,}
    DIGITS=${lowered:6:2}${lowered:4:2}${lowered:2:2}${lowered:0:2}
}

mask_bits() {
    local -i mask=0x$1
    for ((MASK_BITS = 0; mask; mask &= mask - 1)); do
        MASK_BITS=$((MASK_BITS + 1))
    done
}

# Docker's resolver asks the servers of its comment from inside this namespace, except those that it
# marks `host(…)`.
read_resolvers() {
    local line word
    local -a words
    RESOLVERS=()
    read_lines /etc/resolv.conf || return 0
    for line in "${TEXT_LINES[@]}"; do
        case $line in
            nameserver[[:space:]]*) line=${line#nameserver} ;;
            '# ExtServers: ['*) line=${line#*\[} line=${line%%\]*} ;;
            *) continue ;;
        esac
        read -ra words <<<"$line"
        for word in "${words[@]}"; do
            parse_prefix "$word" || continue
            add_once RESOLVERS "$PREFIX"
        done
    done
}

# What shows that a namespace is the host's own, in HOST_SIGN; fails where nothing does.
# Docker's chains in the nat table (DOCKER_OUTPUT) are in every container and are not looked at.
host_sign() {
    local path line
    for path in /sys/class/net/*/device; do
        [[ -e $path ]] || continue
        path=${path%/device}
        HOST_SIGN="${path##*/} is a physical interface"
        return
    done
    for path in /sys/class/net/*/bridge; do
        [[ -e $path ]] || continue
        path=${path%/bridge}
        HOST_SIGN="${path##*/} is a bridge"
        return
    done
    for line in "$@"; do
        [[ $line =~ ^:(DOCKER|DOCKER-[^\ ]*|KUBE-[^\ ]*|CNI-[^\ ]*|cali-[^\ ]*)\  ]] || continue
        HOST_SIGN="the filter table has a chain ${BASH_REMATCH[1]}"
        return
    done
    return 1
}
