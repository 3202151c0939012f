#!/bin/sh
# What a run gets without --mem inside a container, and what processes that map the same file hold together (R14.5, X2). Real control
# groups; counted as skipped where none can be made. TAP on standard output. WEIR_TEST_FULL=1 adds a 2.3 GB model.
. "$(dirname "$0")/tap.inc"
. "$(dirname "$0")/group.inc"

check() { if eval "$2"; then ok "$1"; else no "$1"; fi; }
p="Write one sentence about rivers."

# fill MIB: page cache of another file, charged to the group
fill() {
    sh -c 'echo $$ >"$1/cgroup.procs"; dd if=/dev/zero of="$2" bs=1M count="$3" conv=fsync 2>/dev/null; cat "$2" >/dev/null' sh "$group" "$tmp/fill" "$1"
}
charged() { if [ "$version" = 1 ]; then cat "$group/memory.usage_in_bytes"; else cat "$group/memory.current"; fi; }

# held NAME LIMIT_BYTES MODEL: without --mem, in a group of that size whose page cache is full
held() {
    name=$1 limit=$2 model=$3
    limited "$limit" true
    fill $((limit / 1048576))
    full=$(charged)
    sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' sh "$group" "$weir" doctor --json >"$tmp/doctor" 2>/dev/null
    budget=$(field default_budget_bytes "$tmp/doctor")
    keep=$((limit / 16))
    [ $keep -gt 67108864 ] && keep=67108864
    # nothing but the reserve and a little of the kernel's own is missing: the cache counts as free
    check "$name: the group is full of cache ($full of $limit) and the default budget is right ($budget)" \
        '[ "$full" -gt $((limit * 8 / 10)) ] && [ "$(field cgroup_limit_bytes "$tmp/doctor")" = $((limit / 4096 * 4096)) ] && [ "$budget" -le $((limit - keep)) ] && [ "$budget" -ge $((limit - keep - limit / 20 - 4194304)) ]'
    sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' sh "$group" "$weir" run --raw -m "$model" -p "$p" -n 8 --ctx 512 --json >"$tmp/out" 2>"$tmp/err"
    rc=$? k=$(kills)
    check "$name: runs with that budget, streams, is never killed" \
        '[ $rc = 0 ] && [ "${k:-0}" = 0 ] && [ "$(field reason "$tmp/out")" = budget ] && [ "$(field peak_bytes "$tmp/out")" -le "$limit" ] && [ "$(field logits_hash "$tmp/out")" = "$(field logits_hash "$tmp/whole")" ]'
    rm -f "$tmp/fill"
}

if [ "$version" = 0 ]; then
    skip "default budgets in a control group" "no control group can be made"
elif [ ! -f "$smol" ]; then
    skip "default budgets in a control group" "no model; tools/get_models.sh fetches it"
else
    "$weir" run --raw -m "$smol" -p "$p" -n 8 --ctx 512 --json >"$tmp/whole" 2>/dev/null || no "reference run"
    held "SmolLM2 in 80,000,000 bytes" 80000000 "$smol"
    held "SmolLM2 in 64 MiB" 67108864 "$smol"
fi
if [ "$version" != 0 ] && [ "${WEIR_TEST_FULL:-0}" = 1 ]; then
    if "$weir" synth --quiet --arch llama --type F16 --hidden 2048 --layers 22 --heads 32 --kv-heads 4 --ffn 5632 --vocab 50257 --seed 1 -o "$tmp/big.gguf"; then
        "$weir" run --raw -m "$tmp/big.gguf" -p "$p" -n 8 --ctx 512 --json >"$tmp/whole" 2>/dev/null || no "reference run"
        held "2.3 GB F16 in 512 MiB" 536870912 "$tmp/big.gguf"
        held "2.3 GB F16 in 2,000,000,000 bytes" 2000000000 "$tmp/big.gguf"
    else
        no "the synthetic model could not be written"
    fi
    rm -f "$tmp/big.gguf"
else
    skip "2.3 GB F16 in 512 MiB and in 2,000,000,000 bytes" "part of make test-full, where a control group can be made"
fi

# ---- two processes that map one file
sum() { awk -v key="$1:" '$1 == key { n += $2 } END { printf "%d", n * 1024 }' "/proc/$2/smaps_rollup" "/proc/$3/smaps_rollup"; }
if [ ! -f "$smol" ] || [ ! -r /proc/self/smaps_rollup ]; then
    skip "two processes that map one file" "no model, or no smaps_rollup"
else
    cp "$smol" "$tmp/own.gguf" # nobody else maps it
    map="--ctx 2048 --mem 400MiB --weights map"
    # shellcheck disable=SC2086
    "$weir" plan "$tmp/own.gguf" $map --no-rates --json >"$tmp/plan" 2>/dev/null
    # shellcheck disable=SC2086
    "$weir" run --raw -m "$tmp/own.gguf" $map -p "$p" -n 1900 --ignore-end >"$tmp/one" 2>/dev/null &
    one=$!
    # shellcheck disable=SC2086
    "$weir" run --raw -m "$tmp/own.gguf" $map -p "$p" -n 1900 --ignore-end >"$tmp/two" 2>/dev/null &
    two=$!
    tries=0
    while { [ "$(wc -c <"$tmp/one")" -lt 60 ] || [ "$(wc -c <"$tmp/two")" -lt 60 ]; } && [ $tries -lt 300 ]; do tries=$((tries + 1)); sleep 0.1; done
    pss=$(sum Pss $one $two) rss=$(sum Rss $one $two)
    kill $one $two 2>/dev/null
    wait $one $two 2>/dev/null
    shared=$(field shared_weight_bytes "$tmp/plan") peak=$(field planned_peak_bytes "$tmp/plan") process=$(field process "$tmp/plan")
    expected=$((2 * peak - shared))
    check "two processes: PSS adds up to the plan with the weights once ($pss, at most $expected)" \
        '[ "$shared" -gt 50000000 ] && [ "$pss" -le "$expected" ] && [ "$pss" -ge $((expected - 2 * process)) ]'
    check "two processes: RSS counts them twice, which is why it is never added up ($rss)" '[ $((rss - pss)) -ge $((shared * 9 / 10)) ]'
fi
echo "1..$n"
