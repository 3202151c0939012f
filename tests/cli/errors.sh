#!/bin/sh
# Bad input gives a clear error that says what to do, the right exit status (1 failed, 2 wrong usage), and no answer.
# TAP on standard output.
. "$(dirname "$0")/tap.inc"

# refuse NAME EXIT PHRASE COMMAND...: standard error holds PHRASE in one line, standard output nothing
refuse() {
    name=$1 want=$2 phrase=$3
    shift 3
    timeout 60 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    rc=$?
    if [ "$rc" != "$want" ]; then
        no "$name: exit $rc, wanted $want: $(head -n 1 "$tmp/err")"
    elif ! grep -qi -- "$phrase" "$tmp/err"; then
        no "$name: the message lacks '$phrase': $(head -n 1 "$tmp/err")"
    elif ! grep -q '^weir' "$tmp/err" || [ "$(wc -l <"$tmp/err")" != 1 ]; then
        no "$name: not one line that begins with weir: $(head -n 3 "$tmp/err" | tr '\n' '|')"
    elif [ -n "$(tr -d '\n' <"$tmp/out")" ]; then
        no "$name: something was printed as an answer"
    else
        ok "$name"
    fi
}
# poke FILE OFFSET PRINTF: writes bytes into a file
poke() { printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null; }
# place FILE TEXT: offset behind the first occurrence of TEXT
place() { echo $(($(grep -abo -- "$2" "$1" | head -n 1 | cut -d: -f1) + ${#2})); }
# spoiled NAME: a fresh copy of the model to be damaged
spoiled() { cp "$tmp/m.gguf" "$tmp/$1.gguf" && echo "$tmp/$1.gguf"; }

tiny llama Q8_0 "$tmp/m.gguf" || no "synth"
tiny llama F16 "$tmp/hf" --safetensors || no "synth safetensors"
run="$weir run --raw -m $tmp/m.gguf -p hello -n 4"

# ---- usage
refuse "no such command" 2 "no command" "$weir" frobnicate
refuse "a hash that is none" 2 "16 hexadecimal" "$weir" verify "$tmp/m.gguf" --expect zz
refuse "no such option" 2 "no option --frob" "$weir" run --frob
refuse "an option without its value" 2 "needs a value" "$weir" run -m
refuse "a flag with a value" 2 "no value" $run --json=yes
refuse "a size without a unit" 2 "unit" $run --mem 64
refuse "a size of zero" 2 "zero" $run --mem 0MiB
refuse "a size of zero in a list" 2 "zero" "$weir" bench "$tmp/m.gguf" --mem 20MiB,0MiB
refuse "a garbled number" 2 "whole number" $run --ctx 12x
refuse "a negative number" 2 "whole number" $run --ctx -5
refuse "a number beyond its range" 2 "whole number" $run -n 99999999999
refuse "a garbled float" 2 "number" $run --temp warm
refuse "a negative temperature" 2 "--temp" $run --temp -1
refuse "a probability above 1" 2 "--top-p" $run --top-p 1.5
refuse "an unknown cache type" 2 "f16 or f32" $run --kv-type q4
refuse "caches that grow in no known way" 2 "full, dynamic or static" $run --kv-cache paged
refuse "no model" 2 "no model" "$weir" run -p hello
refuse "two models" 2 "two models" "$weir" inspect "$tmp/m.gguf" -m "$tmp/m.gguf"
refuse "no prompt" 2 "no prompt" "$weir" run -m "$tmp/m.gguf"
refuse "a word too many" 2 "stray" "$weir" inspect "$tmp/m.gguf" stray
refuse "more threads than are possible" 2 "thread" $run --threads 100000
refuse "a list of processors that is none" 2 "a list such as 0,2-3" $run --cpus 0-
refuse "a list of processors upside down" 2 "a list such as 0,2-3" $run --cpus 3-1
refuse "a processor that is not there" 2 "may not use processor" $run --cpus 0-1023
refuse "the same by the setting" 2 "may not use processor" $run --set compute.cpus=0-1023
refuse "an unknown instruction set" 2 "sse9" $run --set cpu=sse9
refuse "an unknown setting" 2 "no.such" $run --set no.such=1
refuse "a setting without a value" 2 "name=value" $run --set cpu

# ---- budgets and contexts
refuse "a budget below the smallest" 1 "at least .* are needed.*would fit" $run --mem 1MiB
refuse "a context that does not fit the budget" 1 "ctx" $run --mem 24MiB --ctx 500000
refuse "a prompt longer than the context" 1 "context" "$weir" run --raw -m "$tmp/m.gguf" -p "$(head -c 4000 /dev/zero | tr '\0' 'q')" --ctx 16
refuse "a budget below the smallest, asked for JSON" 1 "at least" $run --mem 1MiB --json
refuse "bench below the smallest budget" 1 "at least" "$weir" bench "$tmp/m.gguf" --mem 1MiB --json

# ---- files
refuse "no such file" 1 "none.gguf.*no such file\|none.gguf.*does not exist" "$weir" run -m "$tmp/none.gguf" -p hello
refuse "no such file, asked for JSON" 1 "none.gguf" "$weir" inspect "$tmp/none.gguf" --json
refuse "a folder without a model" 1 "$tmp" "$weir" inspect "$tmp"
: >"$tmp/empty.gguf"
refuse "an empty file" 1 "empty.gguf" "$weir" inspect "$tmp/empty.gguf"
printf 'GGUF' >"$tmp/short.gguf"
refuse "four bytes of a file" 1 "short.gguf" "$weir" inspect "$tmp/short.gguf"
head -c 100000 /dev/urandom >"$tmp/noise.gguf"
refuse "noise" 1 "noise.gguf" "$weir" inspect "$tmp/noise.gguf"
f=$(spoiled cut) && head -c 200000 "$tmp/m.gguf" >"$f"
refuse "a truncated model" 1 "cut.gguf" "$weir" run --raw -m "$f" -p hello
f=$(spoiled version) && poke "$f" 4 '\011'
refuse "an unknown version" 1 "version 9" "$weir" inspect "$f"
f=$(spoiled count) && poke "$f" 8 '\377\377\377\377\377\377\377\177'
refuse "a number of tensors that lies" 1 "count.gguf" "$weir" inspect "$f"
f=$(spoiled keys) && poke "$f" 16 '\377\377\377\377\377\377\377\377'
refuse "a number of keys that lies" 1 "keys.gguf" "$weir" inspect "$f"
sed 's/llama/lhama/g' "$tmp/m.gguf" >"$tmp/arch.gguf"
refuse "an unknown architecture" 1 "lhama" "$weir" run --raw -m "$tmp/arch.gguf" -p hello
t=blk.1.attn_k.weight
sed 's/blk\.1\.attn_k\.weight/blk.1.attn_x.weight/' "$tmp/m.gguf" >"$tmp/missing.gguf"
refuse "a missing tensor" 1 "$t" "$weir" run --raw -m "$tmp/missing.gguf" -p hello
f=$(spoiled type) && poke "$f" $(($(place "$f" $t) + 20)) '\143'
refuse "an unknown weight type" 1 "$t.*99\|99.*$t" "$weir" run --raw -m "$f" -p hello
f=$(spoiled shape) && poke "$f" $(($(place "$f" $t) + 4)) '\100'
refuse "a tensor of the wrong shape" 1 "$t" "$weir" run --raw -m "$f" -p hello
f=$(spoiled huge) && poke "$f" $(($(place "$f" $t) + 4)) '\377\377\377\377\377\377\377\177'
refuse "a tensor whose size overflows" 1 "$t" "$weir" run --raw -m "$f" -p hello
f=$(spoiled beyond) && poke "$f" $(($(place "$f" $t) + 24)) '\000\000\000\000\100'
refuse "a tensor beyond the end of the file" 1 "$t" "$weir" run --raw -m "$f" -p hello
f=$(spoiled heads) && poke "$f" $(($(place "$f" llama.attention.head_count) + 4)) '\007'
refuse "a number of heads that does not divide" 1 "head" "$weir" run --raw -m "$f" -p hello
f=$(spoiled escape) && sed 's/llama/ll\x1b[m/' "$tmp/m.gguf" >"$f"
"$weir" inspect "$f" >"$tmp/out" 2>"$tmp/err"
if grep -q "$(printf '\033')" "$tmp/out" "$tmp/err"; then no "a file's own escape sequences reach the terminal"; else ok "a file's own escape sequences are cleaned"; fi
sed 's/im_start/xx_start/g' "$tmp/m.gguf" >"$tmp/template.gguf"
refuse "an unknown chat template" 1 "--raw" "$weir" run -m "$tmp/template.gguf" -p hello
refuse "an unknown chat template in chat" 1 "--raw" "$weir" chat -m "$tmp/template.gguf"
printf 'a\0b' >"$tmp/nul"
sh -c "'$weir' run -m '$tmp/m.gguf' -p - -n 1 <'$tmp/nul'" >"$tmp/out" 2>"$tmp/err"
if [ $? = 1 ] && grep -q NUL "$tmp/err" && [ ! -s "$tmp/out" ]; then ok "a NUL byte in a chat prompt"; else no "a NUL byte in a chat prompt: $(cat "$tmp/err")"; fi

f=$(spoiled nan) && poke "$f" $(($(wc -c <"$f") - 34)) '\377\177'
refuse "weights that are no numbers" 1 "nan.gguf.*no numbers" "$weir" run --raw -m "$f" -p hello -n 4
"$weir" verify "$f" --steps 1 --prompt-tokens 3 >"$tmp/out" 2>"$tmp/err"
if [ $? = 1 ] && grep -q "no numbers" "$tmp/out"; then ok "verify of weights that are no numbers"; else no "verify of weights that are no numbers: $(tail -n 1 "$tmp/out")"; fi
mkdir "$tmp/bad" && cp "$tmp/hf"/* "$tmp/bad" && rm "$tmp/bad/config.json"
refuse "safetensors without config.json" 1 "config.json" "$weir" inspect "$tmp/bad"
printf '{"architectures": ["Llama' >"$tmp/bad/config.json"
refuse "a config.json that is broken off" 1 "config.json" "$weir" inspect "$tmp/bad"
cp "$tmp/hf/config.json" "$tmp/bad" && head -c 5000 "$tmp/hf/model.safetensors" >"$tmp/bad/model.safetensors"
refuse "a truncated safetensors file" 1 "model.safetensors" "$weir" inspect "$tmp/bad"
cp "$tmp/hf/model.safetensors" "$tmp/bad" && poke "$tmp/bad/model.safetensors" 0 '\377\377\377\377\377\377\377\177'
refuse "a safetensors header that lies" 1 "model.safetensors" "$weir" inspect "$tmp/bad"

rm "$tmp/bad/config.json" && mkfifo "$tmp/bad/config.json"
refuse "a pipe in the place of config.json" 1 "config.json.*pipe" "$weir" inspect "$tmp/bad"
rm -r "$tmp/bad"

# ---- output
mkdir "$tmp/dir"
refuse "synth onto a folder" 1 "dir" "$weir" synth -o "$tmp/dir"
refuse "synth into a folder that is not there" 1 "nowhere" "$weir" synth -o "$tmp/nowhere/m.gguf"
refuse "synth without an output" 2 "-o" "$weir" synth
refuse "synth with an impossible shape" 2 "multiple" "$weir" synth --type Q4_K --hidden 200 -o "$tmp/x.gguf"
refuse "synth of an unknown type" 2 "Q9_9" "$weir" synth --type Q9_9 -o "$tmp/x.gguf"
refuse "synth of an unknown architecture" 1 "mamba" "$weir" synth --arch mamba -o "$tmp/x.gguf"
[ -z "$(ls "$tmp" | grep '^x\.gguf\|partial')" ] && ok "a refused synth leaves no file" || no "a refused synth leaves a file"
mkfifo "$tmp/fifo"
refuse "synth onto a pipe" 1 "fifo.*not a regular file" "$weir" synth -o "$tmp/fifo"
[ -p "$tmp/fifo" ] && ok "the pipe is still there" || no "synth replaced a pipe by a file"
rm "$tmp/fifo"
(ulimit -f 8; "$weir" synth -o "$tmp/x.gguf" >"$tmp/out" 2>"$tmp/err"; echo $? >"$tmp/rc")
if [ "$(cat "$tmp/rc")" = 1 ] && grep -q "x.gguf.*writing failed" "$tmp/err" && [ -z "$(ls "$tmp" | grep '^x\.gguf')" ]; then ok "a limit on the size of files"; else no "a limit on the size of files: $(cat "$tmp/rc" "$tmp/err")"; fi
if [ -w /dev/full ]; then
    "$weir" inspect "$tmp/m.gguf" >/dev/full 2>"$tmp/err"
    if [ $? = 1 ] && grep -q "standard output" "$tmp/err"; then ok "a full disk behind standard output"; else no "a full disk behind standard output"; fi
else
    skip "a full disk behind standard output" "no /dev/full"
fi

# ---- faults: reading fails for good from the n-th read on. Early it is the description or the loading that fails, then the
# run; at last nothing is read any more. Never is there half an answer.
smallest=$("$weir" plan --json --ctx 64 "$tmp/m.gguf" 2>/dev/null | tr -d ' ,' | sed -n 's/"smallest_bytes"://p')
$run --ctx 64 --json >"$tmp/whole" 2>/dev/null
failures=0 answers=0
for at in 0 1 2 4 8 16 24 32 40 48 56 64 80 96 128 192 256 4096; do
    $run --ctx 64 --mem "$((${smallest:-0} + 1048576))B" --json --set "fault=read:$at:for_good" >"$tmp/out" 2>"$tmp/err"
    rc=$?
    if [ $rc = 1 ] && [ ! -s "$tmp/out" ] && grep -q "^weir run: .*m.gguf.*offset" "$tmp/err"; then
        failures=$((failures + 1))
    elif [ $rc = 0 ] && [ "$(tokens "$tmp/out")" = "$(tokens "$tmp/whole")" ]; then
        answers=$((answers + 1))
    else
        failures=-1000
        echo "# read $at for good: exit $rc: $(head -n 1 "$tmp/err")"
    fi
done
if [ $failures -gt 4 ] && [ $answers -gt 0 ]; then ok "reading fails for good: $failures errors without an answer, $answers answers"; else no "reading fails for good: $failures errors, $answers answers"; fi
same=0
for at in 0 1 2 4 8 16 24 32 40 48 56 64 80 96 128 192 256 4096; do
    $run --ctx 64 --mem "$((${smallest:-0} + 1048576))B" --json --set "fault=completion:$at" >"$tmp/out" 2>"$tmp/err" &&
        [ "$(tokens "$tmp/out")" = "$(tokens "$tmp/whole")" ] && same=$((same + 1))
done
if [ $same = 18 ]; then ok "a read that fails once changes nothing"; else no "a read that fails once: $same of 18 answers are the same"; fi
bad=0 failures=0
for at in 0 5 10 20 30 40 50 60 80 100 120 140 160 200 100000; do
    $run --ctx 64 --json --set "fault=host_alloc:$at:for_good" >"$tmp/out" 2>"$tmp/err"
    rc=$?
    if [ $rc = 1 ] && [ ! -s "$tmp/out" ] && grep -q "^weir.*alloc\|^weir.*memory" "$tmp/err"; then
        failures=$((failures + 1))
    elif [ $rc != 0 ] || [ "$(tokens "$tmp/out")" != "$(tokens "$tmp/whole")" ]; then
        bad=$((bad + 1))
        echo "# allocation $at for good: exit $rc: $(head -n 1 "$tmp/err")"
    fi
done
if [ $bad = 0 ] && [ $failures -gt 4 ]; then ok "memory is refused for good: $failures errors without an answer"; else no "memory is refused for good: $bad bad ends, $failures errors"; fi
refuse "no threads" 1 "thread" $run --threads 2 --set fault=thread_create:0:for_good
echo "1..$n"
