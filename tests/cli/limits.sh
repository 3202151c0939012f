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
