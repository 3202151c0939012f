#!/bin/sh
# X1, R1.4: `weir verify` on a synthetic model of every architecture, on every weight type, and on both real models: everything
# streamed, half-way, and whole, with one and with all threads, alone and in a batch, by every instruction set. Each hash is also
# a known one (tests/golden/verify.txt), so that a change of bits cannot go unseen. WEIR_GOLDEN_WRITE=1 writes that file anew.
. "$(dirname "$0")/tap.inc"

# check NAME MODEL [ARGS]; NAME-full must give the hash of NAME
check() {
    name=$1
    shift
    expect=$(awk -v k="${name%-full}" '$1 == k { print $2 }' "$golden" 2>/dev/null)
    if [ "${WEIR_GOLDEN_WRITE:-0}" = 1 ]; then
        expect=
    elif [ -z "$expect" ]; then
        no "verify $name: no golden hash in $golden"
        return
    fi
    "$weir" verify "$@" ${expect:+--expect "$expect"} >"$tmp/out" 2>&1
    rc=$?
    last=$(tail -n 1 "$tmp/out")
    if [ "$rc" = 0 ]; then
        ok "verify $name: $last"
        [ "${WEIR_GOLDEN_WRITE:-0}" = 1 ] && [ "$name" = "${name%-full}" ] && echo "$name $(head -n 1 "$tmp/out" | awk '{ print $NF }')" >>"$golden.new"
    else
        no "verify $name: $last"
        grep -v '^same' "$tmp/out" | head -n 8 | sed 's/^/# /'
    fi
    rm -f "$tmp"/*.gguf
}
rm -f "$golden.new"

for arch in llama qwen2 qwen3 gemma3; do
    tiny $arch Q4_K "$tmp/m.gguf" --ffn 768 && check "$arch-Q4_K" "$tmp/m.gguf"
done
for type in F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4; do
    tiny llama $type "$tmp/m.gguf" && check "llama-$type" "$tmp/m.gguf"
done
tiny gemma3 Q8_0 "$tmp/m.gguf" --window 16 --softcap 30 --head-dim 32 --layers 7 && check "gemma3-window" "$tmp/m.gguf" --prompt-tokens 70 --ctx 160
tiny llama F16 "$tmp/hf" --safetensors && check "llama-safetensors" "$tmp/hf"
tiny qwen3 Q8_0 "$tmp/m.gguf" --rope-scaling yarn && check "qwen3-yarn-f32-cache" "$tmp/m.gguf" --kv-type f32
if [ -f "$smol" ]; then check "smollm2" "$smol"; else skip "verify smollm2" "no model; tools/get_models.sh fetches it"; fi
if [ -f "$gemma" ]; then check "gemma3-270m" "$gemma" --prompt-tokens 9 --steps 1; else skip "verify gemma3-270m" "no model"; fi
if [ "${WEIR_TEST_FULL:-0}" = 1 ]; then
    [ -f "$smol" ] && check "smollm2-full" "$smol" --full
else
    skip "verify smollm2-full" "part of make test-full"
fi
[ -f "$golden.new" ] && { echo "# name and logits hash that weir verify must give; written by WEIR_GOLDEN_WRITE=1 tests/cli/verify.sh"; cat "$golden.new"; } >"$golden" && rm -f "$golden.new"
echo "1..$n"
