#!/bin/sh
# The first OpenCL device (PoCL in tests): language models of every architecture and weight type give the known logits hashes of the
# CPU (X1, R1.4) and, for a real model, its tokens, wherever their weights are; a limit of device memory holds; kernels are kept.
. "$(dirname "$0")/tap.inc"
cl="--device opencl:0 --set compute.vram_reserve_mb=0"

if ! "$weir" doctor 2>/dev/null | grep -q "^devices  *opencl:0:"; then
    no_opencl "models on OpenCL"
    echo "1..$n"
    exit 0
fi
# The kernels are built once for the whole script.
export WEIR_CACHE_FOLDER="$tmp/cache"

# alike NAME MODEL ARGS: the same tokens and logits as on the CPU, by one run each
alike() {
    name=$1 model=$2
    shift 2
    "$weir" run -m "$model" -p "One, two, three, and so on" -n 8 --ctx 128 --json >"$tmp/cpu" 2>"$tmp/err"
    "$weir" run -m "$model" -p "One, two, three, and so on" -n 8 --ctx 128 --json $cl "$@" >"$tmp/cl" 2>"$tmp/err"
    want=$(field logits_hash "$tmp/cpu") got=$(field logits_hash "$tmp/cl")
    if [ -n "$want" ] && [ "$want" = "$got" ] && [ "$(tokens "$tmp/cpu")" = "$(tokens "$tmp/cl")" ] && t=$(field taken_bytes "$tmp/cl") && [ "${t:-0}" -gt 0 ]; then
        ok "run on OpenCL, $name: logits $got as on the CPU"
    else
        no "run on OpenCL, $name: logits $got, on the CPU $want; $(head -n 1 "$tmp/err")"
    fi
}
set -- high none low auto
for arch in llama qwen2 qwen3 gemma3; do
    tiny $arch Q4_K "$tmp/m.gguf" --ffn 768
    same "$arch-Q4_K $1" $arch-Q4_K "$tmp/m.gguf" $cl --set compute.vram_mode=$1
    shift
done
for type in F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4; do
    tiny llama $type "$tmp/m.gguf"
    alike "llama-$type" "$tmp/m.gguf" --set compute.vram_mode=low
done
tiny gemma3 Q8_0 "$tmp/m.gguf" --window 16 --softcap 30 --head-dim 32 --layers 7
same "gemma3-window" gemma3-window "$tmp/m.gguf" --prompt-tokens 70 --ctx 160 $cl
tiny qwen3 Q8_0 "$tmp/m.gguf" --rope-scaling yarn
alike "qwen3, yarn" "$tmp/m.gguf"
ls "$tmp"/cache/opencl-*.bin >/dev/null 2>&1 && ok "kernels are kept under their hash" || no "kernels are kept: $(ls "$tmp/cache")"

if [ -f "$smol" ]; then
    prompt="The capital of France is"
    "$weir" run -m "$smol" -p "$prompt" -n 12 --ctx 512 --json >"$tmp/cpu" 2>"$tmp/err"
    want=$(tokens "$tmp/cpu")
    [ -n "$want" ] && ok "the CPU answers with the tokens $want" || no "the CPU answers: $(cat "$tmp/err")"
    run() {
        name=$1
        shift
        "$weir" run -m "$smol" -p "$prompt" -n 12 --ctx 512 --json $cl "$@" >"$tmp/cl" 2>"$tmp/err"
        if [ -n "$want" ] && [ "$(tokens "$tmp/cl")" = "$want" ]; then ok "run on OpenCL, $name: the same tokens"; else no "run on OpenCL, $name: $(tokens "$tmp/cl") $(head -n 1 "$tmp/err")"; fi
    }
    run resident --set compute.vram_limit_mb=200
    run "within 90 MB of device memory" --set compute.vram_limit_mb=90
    [ "$(field taken_bytes "$tmp/cl")" -le 90000000 ] && ok "compute.vram_limit_mb holds: $(field taken_bytes "$tmp/cl") bytes" || no "compute.vram_limit_mb: $(field taken_bytes "$tmp/cl") bytes are taken"
    r=$(field resident_units "$tmp/cl")
    [ "${r:-0}" -gt 0 ] && [ "$r" -lt "$(field units "$tmp/cl")" ] && ok "$r of $(field units "$tmp/cl") units stay there" || no "units that stay within 90 MB: $r"
    run none --set compute.vram_mode=none
    [ "$(field logits_hash "$tmp/cl")" = "$(field logits_hash "$tmp/cpu")" ] && ok "and the CPU's logits: $(field logits_hash "$tmp/cl")" || no "logits: $(field logits_hash "$tmp/cl"), on the CPU $(field logits_hash "$tmp/cpu")"
    run "with too small a limit" --set compute.vram_limit_mb=20
    grep -q "needed at least" "$tmp/err" && ok "a limit that is too small is told" || no "a limit that is too small: $(head -n 1 "$tmp/err")"
else
    skip "run on OpenCL" "no model; tools/get_models.sh fetches it"
fi

# No device, no driver, kernels that do not build: an error that names the device, no crash.
tiny llama Q8_0 "$tmp/m.gguf"
# ---- where a device's memory is the machine's RAM, as PoCL's is, one budget holds for both (X2)
if "$weir" doctor 2>/dev/null | grep -q "opencl:0:.* of the machine's memory"; then
    "$weir" synth --hidden 1024 --layers 12 --heads 16 --kv-heads 4 --ffn 2816 --vocab 1000 -o "$tmp/large.gguf" --quiet
    within() { "$weir" run -m "$tmp/large.gguf" --raw -p "One, two" -n 8 --ctx 128 --json $cl "$@" >"$tmp/out" 2>"$tmp/err"; }
    within
    all=$(field planned_peak_bytes "$tmp/out") peak=$(field peak_bytes "$tmp/out") whole=$(field logits_hash "$tmp/out")
    device=$(tr -d "\n " <"$tmp/out" | sed -n 's/.*"device":{"planned_bytes":\([0-9]*\).*/\1/p')
    [ "${device:-0}" -gt 100000000 ] && ok "memory on the device is in the plan: $device bytes" || no "memory on the device is not in the plan: $(cat "$tmp/err")"
    [ "${peak:-0}" -gt 0 ] && [ "$peak" -le "$all" ] && ok "measured peak $peak within the planned $all" || no "measured peak $peak, planned $all"
    # alike_peak NAME: the last run's peak is within 2 % or 2 MiB of its plan
    alike_peak() {
        plan=$(field planned_peak_bytes "$tmp/out") peak=$(field peak_bytes "$tmp/out")
        off=$((${peak:-0} - ${plan:-0})) may=$((${plan:-0} / 50))
        [ $may -ge 2097152 ] || may=2097152
        if [ "${peak:-0}" -gt 50000000 ] && [ "${off#-}" -le $may ]; then ok "$1: planned $plan, peak $peak"; else no "$1: planned $plan, peak $peak: $(head -n 1 "$tmp/err")"; fi
    }
    alike_peak "a plan on OpenCL is what is measured"
    within --mem $((all - 60000000))B
    budget=$(field budget_bytes "$tmp/out") peak=$(field peak_bytes "$tmp/out")
    if [ "${budget:-0}" = $((all - 60000000)) ] && [ "$peak" -le "$budget" ] && [ "$(field logits_hash "$tmp/out")" = "$whole" ] && [ "$(field reason "$tmp/out")" = budget ]; then
        ok "a budget below that: peak $peak of $budget, the same logits"
    else
        no "a budget below that: peak $peak of $budget: $(head -n 1 "$tmp/err")"
    fi
    alike_peak "and its plan is what is measured"
    within --mem $((all - 60000000))B --set compute.vram_mode=high
    peak=$(field peak_bytes "$tmp/out")
    [ "${peak:-0}" -gt 0 ] && [ "$peak" -le "$budget" ] && [ "$(field logits_hash "$tmp/out")" = "$whole" ] && ok "and in mode high: peak $peak" || no "in mode high: peak $peak of $budget: $(head -n 1 "$tmp/err")"
    # The same past the passes in which copies ahead are tried against none, which changes the copies on the device (R5.3).
    within -n 24
    long=$(field logits_hash "$tmp/out")
    for less in 60000000 90000000; do
        budget=$((all - less))
        within -n 24 --mem ${budget}B
        peak=$(field peak_bytes "$tmp/out")
        if [ "${peak:-0}" -gt 50000000 ] && [ "$peak" -le $budget ] && grep -q '"prefetch": "measur' "$tmp/out" && [ -n "$long" ] && [ "$(field logits_hash "$tmp/out")" = "$long" ]; then
            ok "past measuring copies ahead: peak $peak of $budget, the same logits"
        else
            no "past measuring copies ahead: peak $peak of $budget: $(head -n 1 "$tmp/err")"
        fi
    done
    within --mem 20MB
    rc=$?
    least=$(sed -n 's/.*--mem \([0-9]*\)MiB.*/\1/p' "$tmp/err" | head -n 1)
    [ $rc != 0 ] && [ "${least:-0}" -gt 20 ] && grep -q "on the device" "$tmp/err" && ok "too small a budget is refused: $(head -n 1 "$tmp/err")" || no "too small a budget: $(cat "$tmp/err")"
    within --mem "${least}MiB"
    peak=$(field peak_bytes "$tmp/out")
    [ "${peak:-0}" -gt 0 ] && [ "$peak" -le $((least * 1048576)) ] && [ "$(field logits_hash "$tmp/out")" = "$whole" ] && ok "the smallest, $least MiB, does: peak $peak, the same logits" || no "the smallest, $least MiB: peak $peak: $(head -n 1 "$tmp/err")"
else
    skip "device memory in the budget" "this device has memory of its own"
fi

"$weir" run -m "$tmp/m.gguf" -p x -n 2 --device opencl:77 >"$tmp/out" 2>"$tmp/err"
[ $? = 1 ] && grep -q "opencl:77" "$tmp/err" && ok "a device that is not there is told: $(head -n 1 "$tmp/err")" || no "a device that is not there: $(cat "$tmp/err")"
OCL_ICD_VENDORS=/nonexistent "$weir" run -m "$tmp/m.gguf" -p x -n 2 --device opencl:0 >"$tmp/out" 2>"$tmp/err"
[ $? = 1 ] && grep -q "opencl:0" "$tmp/err" && ok "no driver: $(head -n 1 "$tmp/err")" || no "no driver: $(cat "$tmp/err")"
for rule in "1 kernel_build:0" "0 device_alloc:0" "1 device_alloc:3:for_good" "1 copy:0:for_good" "0 pinned_alloc:0:for_good"; do
    must=${rule%% *} fault=${rule#* }
    "$weir" run -m "$tmp/m.gguf" -p x -n 2 --ctx 64 $cl --set fault=$fault >"$tmp/out" 2>"$tmp/err"
    rc=$?
    if [ $rc = "$must" ] && { [ $rc = 0 ] || grep -q "opencl:0" "$tmp/err"; }; then ok "fault $fault: rc $rc $(head -n 1 "$tmp/err" | cut -c1-110)"; else no "fault $fault: rc $rc instead of $must $(head -n 1 "$tmp/err")"; fi
done
echo "1..$n"
