#!/bin/sh
# Installs the Debian packages that building and testing need, and only those that are missing.
# usage: tools/install_deps.sh [build|test|check|fuzz|cross]...   (build is always included)
set -eu

build="gcc make libc6-dev pkg-config liburing-dev libpcre2-dev libutf8proc-dev libjansson-dev libedit-dev opencl-headers ca-certificates python3 python3-pip"
test="libcmocka-dev ocl-icd-libopencl1 pocl-opencl-icd libcurl4-openssl-dev"
check="clang-format cppcheck"
fuzz="clang libclang-rt-dev"
cross="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"

packages=$build
for set in "$@"; do
    case $set in
    build) ;;
    test) packages="$packages $test" ;;
    check) packages="$packages $check" ;;
    fuzz) packages="$packages $fuzz" ;;
    cross) packages="$packages $cross" ;;
    *) echo "install_deps.sh: unknown set '$set' (build, test, check, fuzz, cross)" >&2; exit 2 ;;
    esac
done

missing=
for p in $packages; do
    # A tool that is there from elsewhere (python3 and pip built by hand) counts as installed.
    case $p in
    python3) command -v python3 >/dev/null && continue ;;
    python3-pip) python3 -m pip --version >/dev/null 2>&1 && continue ;;
    esac
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "install_deps.sh: no apt-get here; please install the equivalents of:$missing" >&2
    exit 1
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing:$missing"
$sudo apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
