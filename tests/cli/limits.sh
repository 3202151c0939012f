#!/bin/sh
# X2: inside a control group of exactly --mem, nothing is ever killed, and the answer is that of an unlimited run.
# Real cgroups, v1 or v2, whichever has the memory controller here; counted as skipped where none can be made.
# TAP on standard output. WEIR_TEST_FULL=1 adds the 1.2 GB model.
. "$(dirname "$0")/tap.inc"

. "$(dirname "$0")/group.inc"

# same NAME LIMIT_BYTES MODEL ARGS...: the run in a group of LIMIT_BYTES equals the reference in $tmp/whole
same() {
    name=$1 limit=$2
    shift 2
    if [ "$version" = 0 ]; then skip "$name" "no control group can be made"; return; fi
    limited "$limit" "$weir" run "$@" --mem "${limit}B" --json >"$tmp/out" 2>"$tmp/err"
    rc=$? k=$(kills) peak=$(field peak_bytes "$tmp/out")
    if [ "$rc" != 0 ]; then no "$name: exit $rc: $(tail -n 1 "$tmp/err")"; return; fi
    if [ "${k:-0}" != 0 ]; then no "$name: $k kills"; return; fi
    if [ -z "$(tokens "$tmp/out")" ] || [ "$(tokens "$tmp/out")" != "$(tokens "$tmp/whole")" ]; then no "$name: other tokens"; return; fi
    if [ "$(field logits_hash "$tmp/out")" != "$(field logits_hash "$tmp/whole")" ]; then no "$name: other logits"; return; fi
    if [ "$peak" -gt "$limit" ]; then no "$name: measured peak $peak bytes is above the budget $limit"; return; fi
    ok "$name: peak $peak of $limit bytes, planned $(field planned_peak_bytes "$tmp/out")"
}

p="Write one sentence about rivers."
if [ -f "$smol" ]; then
    "$weir" run -m "$smol" -p "$p" -n 24 --ctx 512 --json >"$tmp/whole" 2>/dev/null || no "reference run"
    same "SmolLM2, --mem 64MiB --ctx 512" 67108864 -m "$smol" -p "$p" -n 24 --ctx 512
    same "SmolLM2, --mem 45MiB --ctx 512" 47185920 -m "$smol" -p "$p" -n 24 --ctx 512
else
    skip "SmolLM2" "no model; tools/get_models.sh fetches it"
fi
if [ -f "$gemma" ]; then
    "$weir" run --raw -m "$gemma" -p "$p" -n 8 --ctx 512 --json >"$tmp/whole" 2>/dev/null || no "reference run"
    same "Gemma 3, --mem 64MiB --ctx 512" 67108864 --raw -m "$gemma" -p "$p" -n 8 --ctx 512
else
    skip "Gemma 3" "no model; tools/get_models.sh fetches it"
fi
# ---- a limit that falls while the program runs, and rises again (R6.5)
set_limit() { if [ "$version" = 1 ]; then echo "$1" >"$group/memory.limit_in_bytes"; else echo "$1" >"$group/memory.max"; fi 2>/dev/null; }
in_use() { if [ "$version" = 1 ]; then cat "$group/memory.usage_in_bytes"; else cat "$group/memory.current"; fi; }
# falling NAME HIGH LOW ARGS...: from HIGH down to LOW in steps, each as far as what is held allows, and back. The answer must be
# that of $tmp/whole; the log says that the budget went down and up.
falling() {
    name=$1 high=$2 low=$3
    shift 3
    if [ "$version" = 0 ]; then skip "$name" "no control group can be made"; return; fi
    limited "$high" "$weir" run "$@" --mem "${high}B" --set compute.pressure=auto --json --verbose >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    # When it is loaded, it holds no more from one moment to the next.
    tries=0 before=0 now=1
    until [ $tries -gt 100 ] || { [ "$now" -gt "$low" ] && [ $((now - before)) -lt 1000000 ]; }; do
        before=$now && sleep 0.5 && now=$(in_use) && tries=$((tries + 1))
    done
    limit=$high tries=0
    while [ "$limit" -gt "$low" ] && [ $tries -lt 400 ] && kill -0 $pid 2>/dev/null; do
        next=$(($(in_use) + 6291456))
        [ "$next" -lt "$low" ] && next=$low
        [ "$next" -lt "$limit" ] && set_limit "$next" && limit=$next
        sleep 0.1 && tries=$((tries + 1))
    done
    least=$limit waited=$tries
    sleep 1
    set_limit "$high"
    sleep 7
    if [ "$least" -gt "$low" ] && ! kill -0 $pid 2>/dev/null && wait $pid; then
        if [ "$waited" -gt 30 ] && ! grep -q "memory is short" "$tmp/err"; then no "$name: nothing was given back"; return; fi
        skip "$name" "the answer was there too soon"
        return
    fi
    wait $pid
    rc=$? k=$(kills)
    if [ "$rc" != 0 ] || [ "${k:-0}" != 0 ]; then no "$name: exit $rc, ${k:-0} kills: $(tail -n 1 "$tmp/err")"; return; fi
    if [ "$least" -gt "$low" ]; then no "$name: the limit came down to $least bytes only"; return; fi
    if [ -z "$(tokens "$tmp/out")" ] || [ "$(tokens "$tmp/out")" != "$(tokens "$tmp/whole")" ]; then no "$name: other tokens"; return; fi
    if [ "$(field logits_hash "$tmp/out")" != "$(field logits_hash "$tmp/whole")" ]; then no "$name: other logits"; return; fi
    down=$(grep -c "memory is short" "$tmp/err") up=$(grep -c "memory is there again" "$tmp/err")
    if [ "$down" = 0 ] || [ "$up" = 0 ]; then no "$name: went down $down times and up $up times"; return; fi
    ok "$name: down $down times, up $up times"
}
if [ -f "$smol" ]; then
    "$weir" run -m "$smol" -p "$p" -n 1000 --ignore-end --ctx 1100 --threads 1 --json >"$tmp/whole" 2>/dev/null || no "reference run"
    falling "SmolLM2, a limit that falls from 180 to 100 MB and rises" 180000000 100000000 -m "$smol" -p "$p" -n 1000 --ignore-end --ctx 1100 --threads 1
    falling "SmolLM2 with a draft, a limit that falls from 330 to 220 MB and rises" 330000000 220000000 -m "$smol" -p "$p" -n 1000 --ignore-end --ctx 1100 --threads 1 \
        --draft "$smol" --draft-mem 150MB --speculate draft
else
    skip "a limit that falls" "no model; tools/get_models.sh fetches it"
fi
if [ "${WEIR_TEST_FULL:-0}" = 1 ]; then
    big=$tmp/big.gguf
    if "$weir" synth --arch llama --type Q8_0 --hidden 2048 --layers 22 --heads 32 --kv-heads 4 --ffn 5632 --vocab 50257 --seed 1 -o "$big"; then
        "$weir" run --raw -m "$big" -p "$p" -n 6 --ctx 512 --json >"$tmp/whole" 2>/dev/null || no "reference run"
        for mb in 1000 700 400 150; do
            same "synthetic 1.2 GB Q8_0, $mb MB" "${mb}000000" --raw -m "$big" -p "$p" -n 6 --ctx 512
        done
    else
        no "the synthetic model could not be written"
    fi
else
    skip "synthetic 1.2 GB Q8_0 at 1000, 700, 400, 150 MB" "part of make test-full"
fi
echo "1..$n"
