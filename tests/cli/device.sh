#!/bin/sh
# A simulated device (R12.1, R12.2, R3.6): language models whose weights stay there, stay in part, or stream give the CPU's tokens and
# the known logits hashes (R1.4); RAM and device budgets both hold; what does not fit, or is no device, is told.
. "$(dirname "$0")/tap.inc"
sim="--device sim --set compute.vram_reserve_mb=0"

for arch in llama qwen2 qwen3 gemma3; do
    tiny $arch Q4_K "$tmp/m.gguf" --ffn 768
    for mode in high low none; do same "$arch-Q4_K $mode" $arch-Q4_K "$tmp/m.gguf" $sim --set compute.vram_mode=$mode; done
done
for type in F32 F16 BF16 Q8_0 Q4_1 Q6_K IQ4_NL; do
    tiny llama $type "$tmp/m.gguf"
    same "llama-$type none" llama-$type "$tmp/m.gguf" $sim --set compute.vram_mode=none
done
tiny gemma3 Q8_0 "$tmp/m.gguf" --window 16 --softcap 30 --head-dim 32 --layers 7
same "gemma3-window low" gemma3-window "$tmp/m.gguf" --prompt-tokens 70 --ctx 160 $sim --set compute.vram_mode=low

# run MODE ARGS: the answer's tokens and the report
if [ -f "$smol" ]; then
    "$weir" run -m "$smol" -p "The capital of France is" -n 12 --ctx 512 --json >"$tmp/cpu" 2>"$tmp/err"
    want=$(tokens "$tmp/cpu")
    [ -n "$want" ] && ok "the CPU answers with the tokens $want" || no "the CPU answers: $(cat "$tmp/err")"
    run() {
        name=$1
        shift
        "$weir" run -m "$smol" -p "The capital of France is" -n 12 --ctx 512 --json --device sim "$@" >"$tmp/sim" 2>"$tmp/err"
        if [ -n "$want" ] && [ "$(tokens "$tmp/sim")" = "$want" ]; then ok "run on the device, $name: the same tokens"; else no "run on the device, $name: $(tokens "$tmp/sim") $(head -n 1 "$tmp/err")"; fi
    }
    run resident --set compute.vram_reserve_mb=0 --set compute.simulate_vram_mb=200
    r=$(field resident_units "$tmp/sim")
    [ "${r:-0}" -gt 0 ] && [ "$r" = "$(field units "$tmp/sim")" ] && ok "all units stay" || no "all units stay: $(field resident_units "$tmp/sim") of $(field units "$tmp/sim")"
    grep -q '"arena_saved_mib": *[0-9.]*[1-9]' "$tmp/sim" && ok "what sharing activations saves is reported (R15.2)" || no "arena_saved_mib: $(field arena_saved_mib "$tmp/sim")"
    run half --set compute.vram_reserve_mb=0 --set compute.simulate_vram_mb=100
    r=$(field resident_units "$tmp/sim") taken=$(field taken_bytes "$tmp/sim")
    if [ "${r:-0}" -gt 0 ] && [ "$r" -lt "$(field units "$tmp/sim")" ] && [ "$taken" -le 100000000 ]; then ok "$r units stay, $taken bytes are taken of 100 MB"; else no "half: $r units stay, $taken bytes taken"; fi
    run "limited" --set compute.vram_reserve_mb=0 --set compute.simulate_vram_mb=400 --set compute.vram_limit_mb=90
    t=$(field taken_bytes "$tmp/sim")
    [ "${t:-0}" -gt 0 ] && [ "$t" -le 90000000 ] && ok "compute.vram_limit_mb holds: $(field taken_bytes "$tmp/sim") bytes" || no "compute.vram_limit_mb: $(field taken_bytes "$tmp/sim") bytes are taken"
    run "smallest, from storage, with little RAM" --set compute.vram_mode=low --mem 48MB
    peak=$(field peak_bytes "$tmp/sim")
    [ "${peak:-0}" -gt 0 ] && [ "$peak" -le 48000000 ] && ok "the RAM budget holds too: $peak bytes" || no "the RAM budget: peak $peak bytes of 48 MB"
    # Past 8 passes copies ahead are tried against none, with fewer copies on the device: the peak has neither's in it (R5.3, X2).
    for many in 16 30; do
        "$weir" run -m "$smol" -p "The capital of France is" -n $many --ctx 512 --json >"$tmp/cpu-$many" 2>"$tmp/err"
        "$weir" run -m "$smol" -p "The capital of France is" -n $many --ctx 512 --json --device sim --set compute.vram_mode=low --mem 48MB >"$tmp/sim" 2>"$tmp/err"
        peak=$(field peak_bytes "$tmp/sim")
        if [ "${peak:-0}" -gt 20000000 ] && [ "$peak" -le 48000000 ] && grep -q '"prefetch": "measur' "$tmp/sim" && [ "$(field logits_hash "$tmp/sim")" = "$(field logits_hash "$tmp/cpu-$many")" ]; then
            ok "the RAM budget holds while copies ahead are measured, $many tokens: $peak bytes"
        else
            no "the RAM budget, $many tokens: peak $peak bytes of 48 MB: $(head -n 1 "$tmp/err")"
        fi
    done
    run none --set compute.vram_mode=none
    "$weir" run -m "$smol" -p "x" -n 2 --device sim --set compute.vram_mode=high --set compute.simulate_vram_mb=20 >"$tmp/out" 2>"$tmp/err"
    [ $? = 1 ] && grep -q "simulated device" "$tmp/err" && ok "a device that is too small is told" || no "a device that is too small: $(head -n 1 "$tmp/err")"
else
    skip "run on the device" "no model; tools/get_models.sh fetches it"
fi
# On OpenCL, where there is a device: the same bits again.
if "$weir" doctor 2>/dev/null | grep -q "opencl:0:"; then
    for arch in llama qwen2 qwen3 gemma3; do
        tiny $arch Q4_K "$tmp/m.gguf" --ffn 768
        same "$arch-Q4_K none, OpenCL" $arch-Q4_K "$tmp/m.gguf" --device opencl:0 --set compute.vram_mode=none
    done
    if [ -f "$smol" ]; then
        run "OpenCL, 200 MB" --device opencl:0 --set compute.vram_limit_mb=200 --set compute.vram_reserve_mb=0
        run "OpenCL, 90 MB" --device opencl:0 --set compute.vram_limit_mb=90 --set compute.vram_reserve_mb=0
        t=$(field taken_bytes "$tmp/sim")
        [ "${t:-0}" -gt 0 ] && [ "$t" -le 90000000 ] && grep -q "opencl:0" "$tmp/sim" && ok "OpenCL: compute.vram_limit_mb holds" || no "OpenCL: $(field taken_bytes "$tmp/sim") bytes are taken of 90 MB"
    fi
    "$weir" run -m "$tmp/m.gguf" -p x --device opencl:99 >"$tmp/out" 2>"$tmp/err"
    [ $? = 1 ] || [ $? = 2 ] && [ -s "$tmp/err" ] && ok "a device that is not there is told: $(head -n 1 "$tmp/err")" || no "opencl:99"
    # A driver's folder without drivers: PoCL's loader and others read this variable.
    mkdir -p "$tmp/no-drivers"
    OCL_ICD_VENDORS="$tmp/no-drivers" "$weir" run -m "$tmp/m.gguf" -p x --device opencl:0 >"$tmp/out" 2>"$tmp/err"
    [ $? = 1 ] && grep -q "opencl:0: .*no OpenCL platform was found" "$tmp/err" && ok "OpenCL without a driver is told" || no "OpenCL without a driver: $(head -n 1 "$tmp/err")"
    # A library that cannot be opened: the reason is in the message.
    mkdir -p "$tmp/broken"
    echo x >"$tmp/broken/libOpenCL.so.1"
    echo x >"$tmp/broken/libOpenCL.so"
    LD_LIBRARY_PATH="$tmp/broken" "$weir" run -m "$tmp/m.gguf" -p x --device opencl:0 >"$tmp/out" 2>"$tmp/err"
    [ $? = 1 ] && grep -q "opencl:0: no OpenCL: library libOpenCL.so.1 cannot be opened: ." "$tmp/err" && ok "no OpenCL at all is told with its reason" || no "no OpenCL at all: $(head -n 1 "$tmp/err")"
    # Packed files: the kernels of OpenCL read rows as files have them.
    tiny llama Q8_0 "$tmp/m.gguf"
    "$weir" pack "$tmp/m.gguf" "$tmp/packed.gguf" >"$tmp/out" 2>&1 || no "pack: $(head -n 1 "$tmp/out")"
    for command in run plan; do
        args="-p x"
        [ $command = plan ] && args=
        "$weir" $command -m "$tmp/packed.gguf" $args --device opencl:0 >"$tmp/out" 2>"$tmp/err"
        [ $? = 1 ] && grep -q "packed for the CPU (weir pack), which device opencl:0 cannot read" "$tmp/err" && ok "$command: a packed file is refused on OpenCL" || no "$command of a packed file on OpenCL: $(head -n 1 "$tmp/err")"
    done
else
    no_opencl "OpenCL"
fi
tiny llama Q8_0 "$tmp/m.gguf"
# What no row could be without is told once, and no table is begun.
for command in "verify" "bench" "bench --sessions 2" "bench --speculate lookup"; do
    "$weir" $command -m "$tmp/m.gguf" --device opencl:99 >"$tmp/out" 2>"$tmp/err"
    code=$?
    [ $code = 1 ] && [ ! -s "$tmp/out" ] && [ "$(grep -c opencl:99 "$tmp/err")" = 1 ] && ok "$command: a device that is not there is told once" || no "$command on opencl:99: $code, $(wc -l <"$tmp/out") lines"
done
small="--device sim --set compute.vram_limit_mb=1"
"$weir" plan "$tmp/m.gguf" --mem 64MiB $small >"$tmp/out" 2>/dev/null
[ $? = 0 ] && grep -q "^fits the budget, but not the device: .* are needed, 0 bytes are there" "$tmp/out" && ! grep -q "^fits;" "$tmp/out" && ok "plan: what is more than a device's room" || no "plan beyond a device's room: $(grep fits "$tmp/out")"
"$weir" plan "$tmp/m.gguf" $small >"$tmp/out" 2>/dev/null
[ $? = 0 ] && grep -qE "^ .* RAM  " "$tmp/out" && grep -q "^RAM: " "$tmp/out" && ! grep -q " yes " "$tmp/out" && ok "plan's table: what is more than a device's room" || no "plan's table beyond a device's room"
"$weir" plan "$tmp/m.gguf" --mem 64MiB --device sim >"$tmp/out" 2>/dev/null
[ $? = 0 ] && grep -q "^fits; each pass" "$tmp/out" && ok "plan: what a device has room for" || no "plan within a device's room: $(grep fits "$tmp/out")"
"$weir" measure "$tmp/m.gguf" --sessions 1..1 --mem 64MiB --ctx 64 --prompt-tokens 8 -n 4 --no-hash --no-rates --device sim --json >"$tmp/out" 2>/dev/null
[ $? = 0 ] && grep -q '"name": "simulated' "$tmp/out" && ok "measure runs on the device" || no "measure --device sim"
for bad in gpu sim:1 opencl: opencl:x; do
    "$weir" run -m "$tmp/m.gguf" -p x --device $bad >"$tmp/out" 2>"$tmp/err"
    [ $? = 2 ] && grep -q "cpu, sim, or opencl:N" "$tmp/err" && ok "--device $bad is refused" || no "--device $bad: $(cat "$tmp/err")"
done
for set in compute.simulate_vram_mb=x compute.simulate_vram_mb=0 compute.vram_mode=some compute.vram_limit_mb=-1; do
    "$weir" run -m "$tmp/m.gguf" -p x --device sim --set $set >"$tmp/out" 2>"$tmp/err"
    [ $? = 2 ] && grep -q "${set%%=*}" "$tmp/err" && ok "--set $set is refused" || no "--set $set: $(cat "$tmp/err")"
done
echo "1..$n"
