# Sourced by installers after scripts/engines/common.sh and a change of its ENGINES: fetches packages
# of any of Debian's releases, from the mirror of the system, and installs none of them.
# shellcheck shell=bash

KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
APT_HOME=$ENGINES/apt
CODENAME=$(. /etc/os-release 2>/dev/null && echo "${VERSION_CODENAME:-sid}") || :

# need_debian WHAT: or gives up; the mirror in MIRROR.
need_debian() {
    { [[ -e /etc/debian_version ]] && command -v apt-get && command -v dpkg; } >/dev/null \
        || give_up "takes $1 from Debian's packages, and this is no Debian"
    [[ -e $KEYRING ]] || give_up "needs debian-archive-keyring: apt-get install debian-archive-keyring"
    # Of a run that was interrupted: lists may be old by now.
    rm -rf "$APT_HOME"
    mkdir -p "$APT_HOME/cache/archives/partial"
    MIRROR=$(mirror_of "$CODENAME")
    if [[ ! $MIRROR ]]; then
        # A system that was just made has no lists, and then apt says nothing of its sources.
        SYSTEM_LISTS=(-o Dir::State::Lists="$APT_HOME/lists-system")
        mkdir -p "$APT_HOME/lists-system/partial"
        step "asking what this system's mirror has" our_apt "${SYSTEM_LISTS[@]}" update
        MIRROR=$(mirror_of "$CODENAME")
    fi
    [[ $MIRROR ]] || give_up "finds no mirror of $CODENAME among apt's sources"
}

# Where the system's lists are: its own, if it has any.
SYSTEM_LISTS=()

# mirror_of RELEASE: the system's own mirror of it, whichever that is; RELEASE may be a pattern.
mirror_of() {
    # shellcheck disable=SC2016 # apt's own variables
    apt-get "${SYSTEM_LISTS[@]}" indextargets --format '$(REPO_URI) $(RELEASE)' "Created-By: Packages" \
        | awk -v release="^($1)$" '$2 ~ release { print $1; exit }'
}

our_apt() {
    apt-get -qq -o Dir::Cache="$APT_HOME/cache" -o Acquire::Languages=none -o APT::Sandbox::User=root "$@"
}

# suite_apt SUITE ARGUMENT…: with lists of its own, so that the system goes on knowing only its own
# release; one for each suite, so that nothing is lost where a mirror lacks one.
suite_apt() {
    local suite=$1
    shift
    our_apt -o Dir::Etc::SourceList="$APT_HOME/$suite.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$APT_HOME/lists-$suite" "$@"
}

# fetch_packages SUITE FOLDER PACKAGE…: unpacked in FOLDER/root, which is made anew.
fetch_packages() (
    suite=$1
    rm -rf "$2" && mkdir -p "$2/root" "$APT_HOME/lists-$suite/partial" && cd "$2" || return
    shift 2
    if [[ ! -e $APT_HOME/$suite.asked ]]; then
        echo "deb [signed-by=$KEYRING] $MIRROR $suite main" >"$APT_HOME/$suite.list"
        suite_apt "$suite" update && touch "$APT_HOME/$suite.asked" || return
    fi
    # By suite: of what is installed apt would rather take that version, which is not there.
    suite_apt "$suite" download "${@/%//$suite}" || return
    for each in *.deb; do
        dpkg --extract "$each" root && rm "$each" || return
    done
    rm -rf root/usr/share
)
