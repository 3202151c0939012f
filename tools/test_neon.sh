#!/bin/sh
# The tests of kernels on 64-bit Arm: cross-compiles base, kernels and tests/kernels, and runs them under qemu-aarch64,
# where the set `neon` is the best one. Prints TAP. Without a cross compiler or qemu it counts as one skipped test
# (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user).
# usage: tools/test_neon.sh [TEST...]   e.g. test_variants; default: all of tests/kernels
# WEIR_BUILD: folder for build results (build); WEIR_CROSS_CC, WEIR_QEMU: other tools.
set -u
cd "$(dirname "$0")/.." || exit 1
cc=${WEIR_CROSS_CC:-aarch64-linux-gnu-gcc}
qemu=${WEIR_QEMU:-qemu-aarch64}
build=${WEIR_BUILD:-build}
out=$build/neon

for tool in "$cc" "$qemu"; do
    command -v "$tool" >/dev/null || { echo "ok 1 - kernels on aarch64 # SKIP $tool is not installed"; exit 0; }
done

mkdir -p "$out" || exit 1
flags="-std=gnu11 -O2 -g -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Werror"
flags="$flags -ffp-contract=off -ffunction-sections -fdata-sections -pthread -Itests/cross -Isrc -Iinclude"
export cc flags out

# The text of the device kernels, as a source file.
make -s BUILD="$build" "$build/gen/kern_gpu_text.c" || { echo "not ok 1 - the text of device kernels"; exit 1; }

# base_aio_uring.c needs liburing's headers, and kernels need no reads.
# A file is compiled again when it or any header is newer than its object.
find src/base src/kernels/*.c src/kernels/ref src/kernels/arm tests/kernels "$build/gen" -name '*.c' ! -name base_aio_uring.c |
    xargs -P 2 -I '{}' sh -c '
        object=$out/$(basename "$1" .c).o isa=
        case $1 in *_neon.c) isa="-march=armv8.2-a+dotprod -fno-schedule-insns" ;; esac
        [ -f "$object" ] && [ -z "$(find "$1" src include tests/kernels tests/cross -newer "$object" \( -name "*.h" -o -path "$1" \))" ] && exit 0
        "$cc" $flags $isa -c "$1" -o "$object" || { rm -f "$object"; exit 255; }' compile '{}' ||
    { echo "not ok 1 - kernels compile for aarch64"; exit 1; }
echo "ok - kernels compile for aarch64"

rc=0
tests=${*:-$(cd tests/kernels && ls test_*.c | sed 's/\.c$//')}
for t in $tests; do
    objects=$(find "$out" -name '*.o' ! -name 'test_*' ! -name 'base_*')
    base=$(find "$out" -name 'base_*.o')
    rm -f "$out/base.a"
    # shellcheck disable=SC2086
    "$cc-ar" rcs "$out/base.a" $base 2>/dev/null || "${cc%gcc}ar" rcs "$out/base.a" $base || exit 1
    # shellcheck disable=SC2086
    "$cc" -static -pthread -Wl,--gc-sections -o "$out/$t" "$out/$t.o" $objects "$out/base.a" -lm ||
        { echo "not ok - $t: links for aarch64"; rc=1; continue; }
    # -cpu max: with dot products.
    "$qemu" -cpu max "$out/$t" || { echo "not ok - $t: exit $?"; rc=1; }
done
exit $rc
