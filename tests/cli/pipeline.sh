#!/bin/sh
# examples/pipeline under the memory manager (R1.1, R2.2, R3.6, R10.1, R12): one known hash, wherever its weights are.
. "$(dirname "$0")/tap.inc"
build=${WEIR_BUILD:-build}
source=${WEIR_SOURCE_DIR:-.}
pipeline=$build/examples/pipeline
want=d52ef97404f2a18e
[ -x "$pipeline" ] && ok "the example is built" || no "the example is built: $pipeline"
export WEIR_CACHE_FOLDER="$tmp/cache"

# same NAME zero|some ARGS: the known hash, and nothing or something streamed
same() {
    name=$1 streams=$2
    shift 2
    "$pipeline" "$@" >"$tmp/out" 2>"$tmp/err"
    hash=$(sed -n 's/^hash //p' "$tmp/out") bytes=$(sed -n 's/^streamed_bytes //p' "$tmp/out")
    case "$streams:${bytes:-none}" in
    zero:0 | some:[1-9]*) counted=yes ;;
    *) counted=no ;;
    esac
    if [ "$hash" = "$want" ] && [ $counted = yes ]; then
        ok "$name: hash $hash, $bytes bytes streamed"
    else
        no "$name: hash $hash instead of $want, ${bytes:-no} bytes streamed; $(head -n 1 "$tmp/err")"
    fi
}
same "CPU" zero --device cpu
same "simulated, resident" zero --device sim --vram-mb 50
same "simulated, half" some --device sim --vram-mb 2
same "simulated, smallest" some --device sim --vram-mb 50 --mode low
same "simulated, none" some --device sim --vram-mb 50 --mode none
"$pipeline" --device cpu --seed 2 >"$tmp/out" 2>&1
hash=$(sed -n 's/^hash //p' "$tmp/out")
[ -n "$hash" ] && [ "$hash" != "$want" ] && ok "another seed, another hash" || no "another seed: $hash"
# R6.4: a voice in the place of a weight: another known hash, the same wherever the weights are.
want=b2e79dde2fe201cf
same "another voice, CPU" zero --device cpu --voice 5
same "another voice, simulated, half" some --device sim --vram-mb 2 --voice 5
same "another voice, simulated, none" some --device sim --vram-mb 50 --mode none --voice 5
want=d52ef97404f2a18e
"$pipeline" --device moon >"$tmp/out" 2>&1
[ $? = 1 ] && grep -q "cpu, sim, or opencl:N" "$tmp/out" && ok "an unknown device is refused" || no "an unknown device: $(cat "$tmp/out")"
if "$weir" doctor 2>/dev/null | grep -q "^devices  *opencl:0:"; then
    same "OpenCL, resident" zero --device opencl:0
    same "OpenCL, none" some --device opencl:0 --mode none
else
    no_opencl "OpenCL"
fi

# Every line of C in the chapter is a line of the example or of the header.
missing=$(awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on && NF' "$source/docs/engines.md" | sed 's/^ *//' | while IFS= read -r line; do
    cat "$source/examples/pipeline/pipeline.c" "$source/examples/pipeline/pipeline_kernels.h" "$source/include/weir/manager.h" "$source/include/weir/kernel.h" | grep -qF -- "$line" || echo "$line"
done)
[ "$(awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on && NF' "$source/docs/engines.md" | wc -l)" -gt 40 ] && [ -z "$missing" ] && ok "docs/engines.md quotes real code" || no "docs/engines.md quotes what is not there: $missing"
echo "1..$n"
