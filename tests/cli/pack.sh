#!/bin/sh
# `weir pack`: a file of its own that gives the hash of the original under weir verify, every refusal with what to do, and an end
# in the middle that leaves nothing behind. TAP on standard output.
. "$(dirname "$0")/tap.inc"

check() { if eval "$2"; then ok "$1"; else no "$1"; fi; }
# refused NAME STATUS PHRASE COMMAND...: the exit status, the phrase on standard error, nothing on standard output
refused() {
    name=$1 status=$2 phrase=$3
    shift 3
    "$@" >"$tmp/out" 2>"$tmp/err"
    rc=$?
    if [ $rc = "$status" ] && grep -q "$phrase" "$tmp/err" && [ ! -s "$tmp/out" ]; then ok "$name"; else no "$name: exit $rc: $(head -n 1 "$tmp/err")"; fi
}
hash_of() { "$weir" verify "$1" 2>/dev/null | head -n 1 | awk '{ print $NF }'; }
nothing_left() { [ "$(ls "$tmp" | grep -c "partial")" = 0 ]; }

for kind in "llama Q4_0" "qwen2 Q8_0" "gemma3 Q4_K" "qwen3 Q6_K"; do
    set -- $kind
    rm -f "$tmp"/*.gguf
    tiny $1 $2 "$tmp/m.gguf" --ffn 768 --seed 3 || no "synth $kind"
    "$weir" pack "$tmp/m.gguf" "$tmp/p.gguf" >"$tmp/out" 2>"$tmp/err"
    rc=$?
    check "pack $kind: says what it did" '[ $rc = 0 ] && [ ! -s "$tmp/err" ] && grep -q "packed .* tensors" "$tmp/out"'
    hash=$(hash_of "$tmp/m.gguf")
    check "pack $kind: weir verify gives the original hash, $hash" '[ -n "$hash" ] && "$weir" verify "$tmp/p.gguf" --expect "$hash" >"$tmp/out" 2>&1'
done
if [ -f "$smol" ]; then
    "$weir" pack "$smol" "$tmp/s.gguf" --json >"$tmp/out" 2>"$tmp/err"
    check "pack of a real model, --json: 210 tensors" '[ "$(field packed_tensors "$tmp/out")" = 210 ] && [ "$(field file_bytes "$tmp/out")" = "$(wc -c <"$tmp/s.gguf")" ] && [ ! -s "$tmp/err" ]'
    golden=$(awk '$1 == "smollm2" { print $2 }' "$(dirname "$0")/../golden/verify.txt")
    check "a real model packed: its known hash" '[ -n "$golden" ] && "$weir" verify "$tmp/s.gguf" --expect "$golden" >"$tmp/out" 2>&1'
    rm -f "$tmp/s.gguf"
else
    skip "pack of a real model" "no model; tools/get_models.sh fetches it"
fi

# ---- what a packed file says of itself
"$weir" inspect "$tmp/p.gguf" --all >"$tmp/out"
check "inspect: packed, and which tensors" 'grep -q "^GGUF v3 packed, qwen3" "$tmp/out" && grep -q "attn_q.weight.*Q6_K packed" "$tmp/out" && grep -q "token_embd.weight  *Q6_K  " "$tmp/out" && grep -q "weir.pack.version .*u32 .*1$" "$tmp/out"'
"$weir" inspect "$tmp/p.gguf" --json >"$tmp/out"
check "inspect --json: types and offsets at whole blocks" '[ "$(grep -c "Q6_K packed" "$tmp/out")" = 21 ] && sed -n "s/.*\"offset\": \([0-9]*\).*/\1/p" "$tmp/out" | awk "\$1 % 4096 { bad = 1 } END { exit bad }"'
echo "the ship sails" | "$weir" tokenize -m "$tmp/m.gguf" >"$tmp/ids"
echo "the ship sails" | "$weir" tokenize -m "$tmp/p.gguf" >"$tmp/out"
check "the vocabulary came along" '[ -s "$tmp/ids" ] && cmp -s "$tmp/ids" "$tmp/out"'

"$weir" doctor --json >"$tmp/out"
check "doctor says which layout" '[ "$(field pack_version "$tmp/out")" = 1 ] && [ "$(field pack_rows "$tmp/out")" = 16 ] && "$weir" doctor | grep -q "^layout "'
"$weir" bench "$tmp/p.gguf" --mem 40MiB --prompt-tokens 16 -n 4 --rounds 1 --json >"$tmp/out"
check "bench says how much is packed" '[ "$(field packed_mb "$tmp/out")" != 0.0 ] && [ -n "$(field packed_mb "$tmp/out")" ]'
"$weir" run -m "$tmp/m.gguf" --raw -p x -n 1 --json --set compute.pack=off >"$tmp/out"
"$weir" run -m "$tmp/m.gguf" --raw -p x -n 1 --json --set compute.pack=auto >"$tmp/out2"
check "compute.pack=off keeps the layout of the file" '[ "$(field packed_bytes "$tmp/out")" = 0 ] && [ "$(field packed_bytes "$tmp/out2")" -gt 1000000 ] && [ "$(field logits_hash "$tmp/out")" = "$(field logits_hash "$tmp/out2")" ]'

# ---- refusals
refused "no output: usage" 2 "no output is given" "$weir" pack "$tmp/m.gguf"
refused "three files: usage" 2 "belongs to no option" "$weir" pack "$tmp/m.gguf" "$tmp/a" "$tmp/b"
refused "a file that is there is kept" 2 "give another one, or --force" "$weir" pack "$tmp/m.gguf" "$tmp/p.gguf"
refused "the model itself is never replaced" 2 "the model itself" "$weir" pack "$tmp/m.gguf" "$tmp/m.gguf" --force
ln -s m.gguf "$tmp/link.gguf"
refused "nor by another name of it" 2 "the model itself" "$weir" pack "$tmp/link.gguf" "$tmp/m.gguf" --force
refused "packed already" 1 "packed already" "$weir" pack "$tmp/p.gguf" "$tmp/q.gguf"
refused "a folder as output" 2 "there is a file of this name" "$weir" pack "$tmp/m.gguf" "$tmp"
refused "no such folder" 1 "nowhere" "$weir" pack "$tmp/m.gguf" /nowhere/p.gguf
refused "a model that is not there" 1 "absent.gguf" "$weir" pack "$tmp/absent.gguf" "$tmp/q.gguf"
tiny llama F16 "$tmp/f.gguf" && refused "nothing to pack" 1 "floats" "$weir" pack "$tmp/f.gguf" "$tmp/q.gguf"
tiny llama F16 "$tmp/hf" --safetensors && refused "no GGUF" 1 "convert the model" "$weir" pack "$tmp/hf" "$tmp/q.gguf"
(ulimit -f 100 && exec "$weir" pack "$tmp/m.gguf" "$tmp/q.gguf") >"$tmp/out" 2>"$tmp/err"
rc=$?
check "a disk that takes no more: exit 1, nothing left" '[ $rc = 1 ] && grep -q "q.gguf.*writing" "$tmp/err" && [ ! -e "$tmp/q.gguf" ] && nothing_left'
if [ "$(id -u)" != 0 ]; then
    mkdir "$tmp/closed" && chmod 555 "$tmp/closed"
    refused "a folder that may not be written" 1 "closed" "$weir" pack "$tmp/m.gguf" "$tmp/closed/p.gguf"
else
    skip "a folder that may not be written" "root may write everywhere"
fi
cp "$tmp/p.gguf" "$tmp/q.gguf" && "$weir" pack "$tmp/m.gguf" "$tmp/q.gguf" --force --quiet >"$tmp/out" 2>&1
check "--force replaces; equal models give equal bytes" 'cmp -s "$tmp/p.gguf" "$tmp/q.gguf"'

# ---- files that are not what they say. patch OFFSET-OF-TEXT ADD BYTE: changes a byte of q.gguf behind the text's beginning
patch() {
    cp "$tmp/p.gguf" "$tmp/q.gguf"
    at=$(LC_ALL=C grep -abo -- "$1" "$tmp/q.gguf" | head -n 1 | cut -d: -f1)
    printf "$3" | dd of="$tmp/q.gguf" bs=1 seek=$((at + $2)) conv=notrunc 2>/dev/null
}
patch weir.pack.version 21 '\011'
refused "another version: pack it again" 1 "version 9 of the layout.*pack it again from the original" "$weir" run -m "$tmp/q.gguf" -p x
patch weir.pack.rows 18 '\010'
refused "groups of another size: pack it again" 1 "groups of 8 rows.*pack it again" "$weir" run -m "$tmp/q.gguf" -p x
patch weir.pack.digest 20 '\001\001\001'
refused "another digest: pack it again" 1 "put together from others; pack it again" "$weir" run -m "$tmp/q.gguf" -p x
patch blk.1.attn_k.weight 8 X
refused "another tensor table: pack it again" 1 "put together from others; pack it again" "$weir" inspect "$tmp/q.gguf"
patch weir.pack.version 5 q
refused "half of the packing lost: pack it again" 1 "without the metadata key weir.pack.version" "$weir" inspect "$tmp/q.gguf"
head -c 1200000 "$tmp/p.gguf" >"$tmp/q.gguf"
refused "cut off: says so" 1 "incomplete or the file is damaged" "$weir" inspect "$tmp/q.gguf"
rm -f "$tmp/q.gguf"

# ---- ends in the middle
"$weir" synth --type Q4_0 --hidden 1024 --layers 12 --heads 16 --kv-heads 4 --ffn 4096 -o "$tmp/big.gguf" --quiet
for signal in INT TERM; do
    "$weir" pack "$tmp/big.gguf" "$tmp/q.gguf" --set fault=read:60:delay=2000:length=4096 >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    sleep 1
    kill -$signal $pid && wait $pid
    rc=$?
    check "SIG$signal during pack: exit $rc, nothing left" '[ $rc -gt 128 ] && grep -q interrupted "$tmp/err" && [ ! -s "$tmp/out" ] && [ ! -e "$tmp/q.gguf" ] && nothing_left'
done
rm -f "$tmp/big.gguf"
"$weir" synth --type Q4_0 --hidden 2048 --layers 64 --heads 16 --kv-heads 4 --ffn 8192 -o "$tmp/big.gguf" >"$tmp/out" 2>"$tmp/err" &
pid=$!
sleep 0.7
kill -INT $pid && wait $pid
rc=$?
check "SIGINT during synth: exit 130, nothing left" '[ $rc = 130 ] && grep -q interrupted "$tmp/err" && [ ! -e "$tmp/big.gguf" ] && nothing_left'
echo "1..$n"
