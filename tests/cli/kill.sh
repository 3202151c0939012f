#!/bin/sh
# Ends in the middle: interrupts, kills, and model files that are cut, overwritten, replaced or removed under a running program.
# Every end is clean: the documented status and message, no half file, no partial answer that looks whole. TAP on standard output.
. "$(dirname "$0")/tap.inc"

check() { if eval "$2"; then ok "$1"; else no "$1"; fi; }
# until_written FILE BYTES: waits for a file to have so many bytes
until_written() {
    tries=0
    while [ "$(cat "$1" 2>/dev/null | wc -c)" -lt "$2" ] && [ $tries -lt 400 ]; do sleep 0.02 && tries=$((tries + 1)); done
}

fresh() { rm -f "$tmp/out" "$tmp/err"; }

tiny llama Q8_0 "$tmp/m.gguf" --vocab 1000 --ctx 32768 --seed 5 || no "synth"
cp "$tmp/m.gguf" "$tmp/good.gguf"
long="--raw -m $tmp/m.gguf -p hello --ignore-end -n 4000 --ctx 4100 --quiet"
mem=$("$weir" plan "$tmp/m.gguf" --ctx 4100 --json | tr -d ' ,' | sed -n 's/"smallest_bytes"://p')
mem=$((mem + 1048576))B

# ---- interrupts
fresh
"$weir" run $long >"$tmp/out" 2>"$tmp/err" &
pid=$!
until_written "$tmp/out" 50
kill -INT $pid && wait $pid
rc=$?
check "SIGINT during run: exit 130, what there is, marked" '[ $rc = 130 ] && [ "$(wc -c <"$tmp/out")" -gt 49 ] && grep -q "cancelled.*not complete" "$tmp/err"'
fresh
"$weir" run $long >"$tmp/out" 2>"$tmp/err" &
pid=$!
until_written "$tmp/out" 50
kill -TERM $pid && wait $pid
rc=$?
check "SIGTERM during run: exit 143, marked" '[ $rc = 143 ] && grep -q "cancelled" "$tmp/err"'
fresh
"$weir" run $long -n 30000 --ctx 30100 --json >"$tmp/out" 2>"$tmp/err" &
pid=$!
sleep 1
kill -INT $pid && wait $pid
rc=$?
check "SIGINT during run --json: exit 130, valid, stop is cancelled" '[ $rc = 130 ] && [ "$(field stop "$tmp/out")" = cancelled ] && [ "$(tail -n 1 "$tmp/out")" = "}" ] && [ -n "$(tokens "$tmp/out")" ]'
fresh
"$weir" run $long --mem $mem >"$tmp/out" 2>"$tmp/err" &
pid=$!
until_written "$tmp/out" 50
kill -INT $pid && wait $pid
rc=$?
check "SIGINT during a streamed run: exit 130" '[ $rc = 130 ] && grep -q "cancelled" "$tmp/err"'
fresh
"$weir" run $long --set fault=read:20:delay=3000 >"$tmp/out" 2>"$tmp/err" &
pid=$!
sleep 1
kill -INT $pid && wait $pid
rc=$?
check "SIGINT while loading: exit 130, no answer" '[ $rc = 130 ] && [ -z "$(tr -d "\n" <"$tmp/out")" ] && grep -q "interrupted\|cancelled" "$tmp/err"'
fresh
head -c 3900 /dev/zero | tr '\0' 'q' | "$weir" run $long -p - --chunk 1 --mem $mem >"$tmp/out" 2>"$tmp/err" &
pid=$!
sleep 0.8
kill -INT $pid && wait $pid
check "SIGINT while a long prompt is read: marked" 'grep -q "cancelled\|interrupted" "$tmp/err"'

# Stages in front of an answer. late NAME PLANS FAULT COMMAND...: one read takes long, the signal comes meanwhile, and no more than so
# many loads begin. A read of 1000 MB or less is no other than it was, but late.
late() {
    name=$1 plans=$2 fault=$3
    shift 3
    fresh
    printf 'hello\n' | "$weir" "$@" -m "$tmp/m.gguf" --ctx 300 -n 9 --quiet --verbose --draft "$tmp/good.gguf" --set fault=$fault:length=1000000000:delay=3000 >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    tries=0
    while [ $tries -lt 75 ] && ! grep -q "plan:" "$tmp/err" 2>/dev/null; do sleep 0.02 && tries=$((tries + 1)); done
    kill -INT $pid && wait $pid
    rc=$?
    check "$name: exit 130, loads begun: $plans" '[ $rc = 130 ] && [ "$(grep -c "plan:" "$tmp/err")" = "$plans" ] && [ ! -s "$tmp/out" ] && grep -q "interrupted" "$tmp/err"'
}
# the first queued read is of the draft's weights; the first of its header is found by what fails
late "SIGINT while the draft loads" 1 completion:0 run -p hello
late "SIGINT while the draft of a chat loads" 1 completion:0 chat
reads=0
until "$weir" run -p hello -m "$tmp/m.gguf" -n 1 --draft "$tmp/good.gguf" --set fault=read:$reads 2>&1 | grep -q "good.gguf: reading" || [ $reads -gt 50 ]; do reads=$((reads + 1)); done
late "SIGINT while the draft is opened" 0 read:$reads run -p hello

# ---- kills
printf 'the file of before' >"$tmp/old.gguf"
"$weir" synth --hidden 2048 --layers 16 --ffn 8192 -o "$tmp/old.gguf" &
pid=$!
sleep 0.7
kill -KILL $pid && wait $pid 2>/dev/null
check "SIGKILL during synth: the file of before is untouched" '[ "$(cat "$tmp/old.gguf" | head -c 100)" = "the file of before" ]'
check "SIGKILL during synth: what is left says what it is" '[ "$(ls "$tmp" | grep -c "old.gguf.partial-")" = 1 ]'
rm -f "$tmp"/old.gguf*
"$weir" synth --safetensors --type F16 --hidden 2048 --layers 16 --ffn 8192 -o "$tmp/old" &
pid=$!
sleep 0.7
kill -KILL $pid && wait $pid 2>/dev/null
"$weir" inspect "$tmp/old" >"$tmp/out" 2>"$tmp/err"
rc=$?
check "SIGKILL during synth --safetensors: the folder is refused as a model" '[ $rc = 1 ] && [ ! -s "$tmp/out" ]'
rm -rf "$tmp/old"

# ---- files that change. meddle NAME COMMAND RUN-ARGS...: runs, meddles when the answer has begun, waits. The end must be the
# documented error after a partial answer, or, where nothing of the change can be seen, the whole answer.
meddle() {
    name=$1 how=$2 must=$3
    shift 3
    cp "$tmp/good.gguf" "$tmp/m.gguf" && fresh
    "$weir" run $long "$@" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    until_written "$tmp/out" 50
    eval "$how"
    wait $pid
    rc=$?
    if [ $rc = 1 ] && grep -qi "m.gguf.*\(changed\|another file\|is empty\|ends\)" "$tmp/err"; then
        ok "$name: refused, exit 1"
    elif [ $rc = 0 ] && [ "$must" = may ] && cmp -s "$tmp/out" "$tmp/whole"; then
        ok "$name: unseen, the answer is the same"
    else
        no "$name: exit $rc: $(head -n 1 "$tmp/err")"
    fi
}
"$weir" run $long >"$tmp/whole" 2>/dev/null
meddle "a file cut short while it streams" 'truncate -s 1000000 "$tmp/m.gguf"' must --mem $mem
meddle "a file emptied while it streams" ': >"$tmp/m.gguf"' must --mem $mem
meddle "a file overwritten while it streams" 'head -c 2400000 /dev/zero | dd of="$tmp/m.gguf" conv=notrunc 2>/dev/null' must --mem $mem
meddle "a file touched while it streams" 'touch "$tmp/m.gguf"' may --mem $mem
meddle "a file replaced while it streams" 'cp "$tmp/good.gguf" "$tmp/n.gguf"; mv "$tmp/n.gguf" "$tmp/m.gguf"' may --mem $mem
meddle "a file removed while it streams" 'rm "$tmp/m.gguf"' may --mem $mem
meddle "a file cut short, read by threads" 'truncate -s 1000000 "$tmp/m.gguf"' must --mem 40MiB --set io.backend=threads
meddle "a file cut short beneath a model that is whole in memory" 'truncate -s 1000000 "$tmp/m.gguf"' may
# ---- mapped weights: zeros in the place of what is gone must not reach the answer
meddle "a file cut short beneath mapped weights" 'truncate -s 1000000 "$tmp/m.gguf"' must --weights map
meddle "a file emptied beneath mapped weights" ': >"$tmp/m.gguf"' must --weights map
meddle "a file overwritten beneath mapped weights" 'head -c 2400000 /dev/zero | dd of="$tmp/m.gguf" conv=notrunc 2>/dev/null' must --weights map
meddle "a file replaced beneath mapped weights" 'cp "$tmp/good.gguf" "$tmp/n.gguf"; mv "$tmp/n.gguf" "$tmp/m.gguf"' may --weights map
meddle "a file removed beneath mapped weights" 'rm "$tmp/m.gguf"' may --weights map
# two processes with the same model: the pages are there once (R14.2: PSS)
cp "$tmp/good.gguf" "$tmp/m.gguf"
# kilobytes of the model file in a process, and its share of them
mapped() { awk -v f="$tmp/m.gguf" '/^[0-9a-f]+-/ { on = $NF == f } on && /^Rss:/ { r += $2 } on && /^Pss:/ { p += $2 } END { print r + 0, p + 0 }' "/proc/$1/smaps"; }
"$weir" run $long --weights map >"$tmp/out" 2>/dev/null &
one=$!
"$weir" run $long --weights map >"$tmp/out2" 2>/dev/null &
two=$!
until_written "$tmp/out" 50
until_written "$tmp/out2" 50
set -- $(mapped $one)
kill -TERM $one $two
wait $one $two
if [ "${1:-0}" -gt 1000 ] && [ "$2" -le $(($1 * 6 / 10)) ]; then ok "two processes share mapped weights: $1 kB resident, $2 kB of them counted to each"; else no "two processes share mapped weights: resident ${1:-?} kB, share ${2:-?} kB"; fi
echo "1..$n"
