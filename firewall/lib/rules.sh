# shellcheck shell=bash disable=SC2034,SC2153 # What one file of these sets, another reads.
# What the settings and the network mean as rules. Decides, and touches nothing.
#
# A step is one line of the order that README.md explains: a chain, a verdict, what it matches, and
# its name. A chain is a list of steps, first match wins (but for a mark, which decides nothing);
# verify reads the same steps that the rules are rendered from.

readonly LIST_OF_RANGES=$HERE/ranges.txt
# On flows that came in and were let in; what OUT calls a reply has it. The one bit of a connection's
# mark that nobody claims: kube-proxy and CNI have 0xe000, Calico, Tailscale and others what is above,
# Istio (0x539), Cilium and the CNI of a cloud what is below. A mark lives in connection tracking,
# so it outlives the rules that set it.
readonly LET_IN=0x1000/0x1000

readonly REPLIES='-m conntrack --ctstate ESTABLISHED --ctdir REPLY'

readonly DOCKER_RESOLVER=127.0.0.11/32 LINK_LOCAL=fe80::/10
parse_prefix "$DOCKER_RESOLVER"

RANGES=()

# Interfaces on which nobody may open anything.
UPSTREAM_LINKS=()

# The plan for one family: its chains, their jumps as `HOOK CHAIN MATCHES`, the steps, the rules.
PLAN_CHAINS=() PLAN_JUMPS=() PLAN_RULES=() ANSWERS=''
STEP_CHAINS=() STEP_VERDICTS=() STEP_ADDRESSES=() STEP_PROTOCOLS=() STEP_MATCHES=() STEP_NAMES=()

read_ranges() {
    local prefix _
    RANGES=()
    while read -r prefix _; do
        [[ -z $prefix || $prefix == '#'* ]] && continue
        parse_prefix "$prefix" || fail "$REFUSED" "$LIST_OF_RANGES: \"$prefix\" $OFFENCE"
        RANGES+=("$PREFIX")
    done <"$LIST_OF_RANGES"
    ((${#RANGES[@]})) || fail "$REFUSED" "$LIST_OF_RANGES names no range"
}

# plan FAMILY: fills the PLAN_* and STEP_* arrays.
plan() {
    PLAN_CHAINS=(BULWARK-OUT) PLAN_RULES=()
    STEP_CHAINS=() STEP_VERDICTS=() STEP_ADDRESSES=() STEP_PROTOCOLS=() STEP_MATCHES=() STEP_NAMES=()
    plan_out "$1"
    if [[ $SCOPE == container ]]; then
        PLAN_CHAINS=(BULWARK-FWD BULWARK-IN BULWARK-OUT)
        plan_in "$1"
        step BULWARK-FWD reject '' '' '' 'no router'
        PLAN_JUMPS=('OUTPUT BULWARK-OUT' 'INPUT BULWARK-IN' 'FORWARD BULWARK-FWD')
    else
        PLAN_JUMPS=("OUTPUT BULWARK-OUT -m owner --uid-owner $USER_ID")
    fi
    render_steps "$1"
}

# step CHAIN VERDICT ADDRESS PROTOCOL MATCHES NAME, each as iptables-save spells it.
step() {
    STEP_CHAINS+=("$1") STEP_VERDICTS+=("$2") STEP_ADDRESSES+=("$3")
    STEP_PROTOCOLS+=("$4") STEP_MATCHES+=("$5") STEP_NAMES+=("$6")
}

plan_out() {
    local family=$1
    # The kernel's own: nobody without CAP_NET_RAW can send these. First, because it asks for
    # neighbours before an address is its own.
    [[ $family == 6 ]] && plan_neighbours BULWARK-OUT 133 135 136
    # A reset by the rules below comes over loopback, in the name of whoever was asked. Connection
    # tracking makes no flow of it.
    [[ $SCOPE == uid ]] || step BULWARK-OUT accept '-o lo' tcp '-m tcp --tcp-flags RST RST' 'resets'
    # IPv6 lets any process send from any address (IPV6_FREEBIND). Over loopback, connection tracking
    # would take that for a flow from there, and what follows for replies.
    step BULWARK-OUT drop '' '' '-m addrtype ! --src-type LOCAL' "not an own address"
    plan_out_loopback "$family"
    # REPLY: packets that answer a flow which came in. A flow that this side opened is judged by the
    # rules below with each packet, so that one opened before them, or under wider ones, ends.
    plan_out_replies "$family"
    plan_exceptions "$family"
    plan_dns "$family"
    plan_denied "$family"
    [[ $MODE == internet ]] && plan_neighbourhood "$family"
    plan_ranges "$family"
    plan_end "$family"
}

# What answers a flow that was let in. One that was tracked before there were rules, or whose packets
# they reject, has no mark. In uid scope nothing that comes in is judged, so there is none to ask for.
#
# By TCP, and to pings: the server serves nothing else, and a neighbour who forges an address (with IPv6
# without any privilege) could open a way there by one UDP packet. Nor does a connection begin with
# what is called a reply: where the kernel forgot one, the next SYN is a new flow of this side.
plan_out_replies() {
    local answers=$REPLIES icmp=icmp
    [[ $SCOPE == uid ]] || answers+=" -m connmark --mark $LET_IN"
    [[ $1 == 4 ]] || icmp=ipv6-icmp
    step BULWARK-OUT accept '' tcp "-m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN $answers" 'replies'
    step BULWARK-OUT accept '' "$icmp" "$answers" 'replies to pings'
}

plan_out_loopback() {
    # The host's loopback is full of the host's services; a container's has its own only.
    [[ $SCOPE == container ]] || return 0
    # By address, not by port: nat has already put the resolver's own port in the place of 53.
    if [[ $1 == 4 && ${DNS[*]} == none ]]; then
        step BULWARK-OUT reject "-d $DOCKER_RESOLVER" '' '' "no resolver"
    fi
    step BULWARK-OUT accept '-o lo' '' '' loopback
}

# plan_neighbours CHAIN TYPE…
plan_neighbours() {
    local chain=$1 type
    for type in "${@:2}"; do
        step "$chain" accept '' ipv6-icmp "-m icmp6 --icmpv6-type $type" 'neighbour discovery'
    done
}

plan_exceptions() {
    local entry host port protocol text address
    for entry in "${ALLOW[@]}"; do
        read -r host port protocol text <<<"$entry"
        addresses_of "$host" "$1"
        for address in $ADDRESSES; do
            step BULWARK-OUT accept "-d $address" "$protocol" "-m $protocol --dport $port" "allow $text"
        done
    done
}

plan_dns() {
    local resolver protocol
    for resolver in "${DNS[@]}"; do
        addresses_of "$resolver" "$1"
        [[ -n $ADDRESSES ]] || continue
        for protocol in udp tcp; do
            step BULWARK-OUT accept "-d $resolver" "$protocol" "-m $protocol --dport 53" "resolver ${resolver%/*}"
        done
    done
}

plan_denied() {
    local entry host text address
    for entry in "${DENY[@]}"; do
        read -r host text <<<"$entry"
        addresses_of "$host" "$1"
        for address in $ADDRESSES; do
            step BULWARK-OUT reject "-d $address" '' '' "deny $text"
        done
    done
}

# What is near is not the internet, whatever range it is in.
plan_neighbourhood() {
    local prefix
    [[ $SCOPE == uid ]] && step BULWARK-OUT reject '' '' '-m addrtype --dst-type LOCAL' 'own addresses'
    for prefix in "${ONLINK[@]}"; do
        family_of "$prefix"
        [[ $FAMILY == "$1" ]] && step BULWARK-OUT reject "-d $prefix" '' '' "on-link $prefix"
    done
    for prefix in "${GATEWAYS[@]}"; do
        family_of "$prefix"
        [[ $FAMILY == "$1" ]] && step BULWARK-OUT reject "-d $prefix" '' '' "gateway ${prefix%/*}"
    done
    return 0
}

plan_ranges() {
    local prefix
    for prefix in "${RANGES[@]}"; do
        family_of "$prefix"
        [[ $FAMILY == "$1" ]] && step BULWARK-OUT reject "-d $prefix" '' '' "range $prefix"
    done
    return 0
}

plan_end() {
    if [[ $MODE == upstream-only ]]; then
        step BULWARK-OUT reject '' '' '' 'everything else'
    elif [[ $1 == 6 && $IPV6 == off ]]; then
        # The devices of a home have global IPv6 addresses, which no list of ranges can know.
        step BULWARK-OUT reject '' '' '' 'no IPv6 internet'
    else
        step BULWARK-OUT accept '' '' '' internet
    fi
}

plan_in() {
    local family=$1 link
    step BULWARK-IN accept '-i lo' '' '' loopback
    upstream_links
    plan_in_upstream_replies "$family"
    [[ $family == 6 ]] && plan_neighbours BULWARK-IN 135 136
    plan_in_errors "$family"
    for link in "${UPSTREAM_LINKS[@]}"; do
        step BULWARK-IN reject "-i $link" '' '' 'network of an exception'
    done
    step BULWARK-IN accept '' '' "$REPLIES" 'replies'
    # Routers are neighbours, too, except on a network of the upstream: it must not become one.
    [[ $family == 6 ]] && plan_neighbours BULWARK-IN 134
    # Linux answers on every interface for every address that it has; a neighbour on one network
    # must not reach what listens on another.
    step BULWARK-IN drop '' '' '-m addrtype ! --dst-type LOCAL --limit-iface-in' 'own address only'
    plan_in_exceptions "$family"
    # What is left alone here is a client's: it may be answered.
    step BULWARK-IN mark '' '' '' 'may be answered'
}

# Without these, a path with a small MTU behind a gateway that is an exception would swallow
# connections. They open nothing: the kernel looks for the flow that they are about.
plan_in_errors() {
    if [[ $1 == 4 ]]; then
        step BULWARK-IN accept '' icmp '-m icmp --icmp-type 3' 'unreachable'
    else
        step BULWARK-IN accept '' ipv6-icmp '-m icmp6 --icmpv6-type 1' 'unreachable'
        step BULWARK-IN accept '' ipv6-icmp '-m icmp6 --icmpv6-type 2' 'packet too big'
    fi
}

# On a network that is there for the upstream, nobody opens anything: whoever owns the upstream has
# other addresses there than the exception's (of the other family, link-local, or simply forged). Nor
# does anybody there reply in the place of the internet: only what lies that way can.
plan_in_upstream_replies() {
    local link prefix
    for link in "${UPSTREAM_LINKS[@]}"; do
        for prefix in $LINK_LOCAL ${THAT_WAY[$link]:-}; do
            family_of "$prefix"
            [[ $FAMILY == "$1" ]] || continue
            step BULWARK-IN accept "-s $prefix -i $link" '' "$REPLIES" 'replies'
        done
    done
}

# Interfaces by which an exception is reached, itself or by a router, and which are no way out, where
# there is another: by that one the clients come. In UPSTREAM_LINKS.
upstream_links() {
    local entry host address link
    UPSTREAM_LINKS=()
    ((${#LINKS[@]} > 1)) || return 0
    for entry in "${ALLOW[@]}"; do
        host=${entry%% *}
        for address in ${RESOLVED[$host]-${HEX[$host]+$host}}; do
            links_to "$address"
            for link in "${LINKS_TO[@]}"; do
                is_way_out "$link" || add_once UPSTREAM_LINKS "$link"
            done
        done
    done
}

# An exception is whom an engine's exploit would own: it gets replies, and opens nothing. What comes
# to a published port has the gateway's address, so a gateway may still open that one.
plan_in_exceptions() {
    local family=$1 entry host text address gateway verdict
    local -A seen=()
    for entry in "${ALLOW[@]}"; do
        read -r host _ _ text <<<"$entry"
        addresses_of "$host" "$family"
        for address in $ADDRESSES; do
            [[ -n ${seen[$address]:-} ]] && continue
            seen[$address]=true
            for gateway in "${GATEWAYS[@]}"; do
                contains "$address" "$gateway" || continue
                for verdict in mark accept; do
                    step BULWARK-IN "$verdict" "-s $gateway" tcp "-m tcp --dport $PUBLIC_PORT" \
                        "published ${gateway%/*}"
                done
            done
            step BULWARK-IN reject "-s $address" '' '' "from $text"
        done
    done
}
