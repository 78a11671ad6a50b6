#!/usr/bin/env bash
# Installs the Debian packages that dtx needs: launch/packages.sh [build|tests|cluster]…   (default: build)
# As root or through sudo. When all are there it only says so and costs nothing. cluster: Slurm, for tests that start one
# of their own; no daemon is started here (on a machine with systemd munge.service would start with the next boot).
set -euo pipefail

packages_build="gcc libc6-dev cmake ninja-build pkg-config libopenmpi-dev openmpi-bin libhdf5-dev hdf5-tools libdnnl-dev
    libyaml-dev libjansson-dev libpcre2-dev libutf8proc-dev libzstd-dev zlib1g-dev libxxhash-dev gnuplot-nox"
packages_tests="$packages_build libcmocka-dev clang-format shellcheck python3-h5py"
packages_cluster="slurmctld slurmd slurm-client munge iproute2 procps"

wanted=""
for set in "${@:-build}"; do
    case $set in
    build) wanted+=" $packages_build" ;;
    tests) wanted+=" $packages_tests" ;;
    cluster) wanted+=" $packages_cluster" ;;
    *) echo "usage: launch/packages.sh [build|tests|cluster]…" >&2; exit 78 ;;
    esac
done

missing=()
for package in $(tr -s ' \n' '\n' <<<"$wanted" | sort -u); do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "packages: all are installed"
    exit 0
fi

if ! command -v apt-get >/dev/null; then
    echo "packages: no apt-get here; install what corresponds to these Debian packages: ${missing[*]}" >&2
    exit 78
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "packages: need root or sudo to install: ${missing[*]}" >&2; exit 78; }
    as_root=(sudo)
fi

# Daemons are not started: the system's own policy decides, and where there is none, this one while packages are installed.
log=$(mktemp)
policy=/usr/sbin/policy-rc.d
if [ -e "$policy" ]; then
    trap 'rm -f "$log"' EXIT
else
    trap '"${as_root[@]}" rm -f "$policy"; rm -f "$log"' EXIT
    trap 'exit 143' TERM INT HUP
    "${as_root[@]}" sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy"
fi
run_apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q "$@" >"$log" 2>&1; }

echo "packages: installing ${#missing[@]}: ${missing[*]}"
updated=false
update() {
    echo "packages: apt-get update"
    run_apt update || { tail -n 20 "$log" >&2; echo "packages: apt-get update failed" >&2; exit 1; }
    updated=true
}
run_apt install --no-install-recommends --simulate "${missing[@]}" || update
install() { run_apt install --no-install-recommends "${missing[@]}"; }
if ! install; then
    # Old lists name versions that the mirror no longer has.
    $updated || update
    install || { tail -n 20 "$log" >&2; echo "packages: the installation failed (see above)" >&2; exit 1; }
fi
echo "packages: done"
