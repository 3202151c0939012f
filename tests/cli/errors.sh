#!/bin/sh
# Bad input gives a clear error that says what to do, the right exit status (1 failed, 2 wrong usage), and no answer.
. "$(dirname "$0")/tap.inc"

# refuse NAME EXIT PHRASE COMMAND...: standard error holds PHRASE, standard output nothing
refuse() {
    name=$1 want=$2 phrase=$3
    shift 3
    timeout 60 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    rc=$?
    if [ "$rc" != "$want" ]; then
        no "$name: exit $rc, wanted $want: $(head -n 1 "$tmp/err")"
    elif ! grep -qi -- "$phrase" "$tmp/err"; then
        no "$name: the message lacks '$phrase': $(head -n 1 "$tmp/err")"
    elif [ -s "$tmp/out" ] && [ "$(tr -d '\n' <"$tmp/out" | wc -c)" -gt 0 ]; then
        no "$name: something was printed as an answer"
    else
        ok "$name"
    fi
}

tiny llama Q8_0 "$tmp/m.gguf" || no "synth"
run="$weir run --raw -m $tmp/m.gguf -p hello -n 4"

refuse "no such command" 2 "no command" "$weir" frobnicate
refuse "no such option" 2 "no option --frob" "$weir" run --frob
refuse "an option without its value" 2 "needs a value" "$weir" run -m
refuse "a size without a unit" 2 "unit" $run --mem 64
refuse "a size of zero" 2 "zero" $run --mem 0MiB
refuse "a garbled number" 2 "whole number" $run --ctx 12x
refuse "no model" 2 "no model" "$weir" run -p hello
refuse "no prompt" 2 "no prompt" "$weir" run -m "$tmp/m.gguf"
refuse "no such file" 1 "does not exist\|no such file" "$weir" run -m "$tmp/none.gguf" -p hello
refuse "a folder without a model" 1 "$tmp" "$weir" inspect "$tmp"
refuse "zero threads beyond the machine" 1 "thread" $run --threads 100000
refuse "an unknown instruction set" 1 "sse9" $run --set cpu=sse9
refuse "an unknown setting" 2 "no.such" $run --set no.such=1
refuse "a budget below the smallest" 1 "budget\|smallest" $run --mem 1MiB
refuse "a context that does not fit the budget" 1 "ctx" $run --mem 24MiB --ctx 500000
refuse "a prompt longer than the context" 1 "context" "$weir" run --raw -m "$tmp/m.gguf" -p "$(head -c 4000 /dev/zero | tr '\0' 'q')" --ctx 16
printf 'GGUF' >"$tmp/short.gguf"
refuse "four bytes of a file" 1 "short.gguf" "$weir" inspect "$tmp/short.gguf"
head -c 100000 /dev/urandom >"$tmp/noise.gguf"
refuse "noise" 1 "noise.gguf" "$weir" inspect "$tmp/noise.gguf"
head -c 200000 "$tmp/m.gguf" >"$tmp/cut.gguf"
refuse "a truncated model" 1 "cut.gguf" "$weir" run --raw -m "$tmp/cut.gguf" -p hello
sed 's/llama/lhama/g' "$tmp/m.gguf" >"$tmp/arch.gguf"
refuse "an unknown architecture" 1 "lhama" "$weir" run --raw -m "$tmp/arch.gguf" -p hello
sed 's/blk\.1\.attn_k\.weight/blk.1.attn_x.weight/' "$tmp/m.gguf" >"$tmp/missing.gguf"
refuse "a missing tensor" 1 "blk.1.attn_k.weight" "$weir" run --raw -m "$tmp/missing.gguf" -p hello
sed "s/im_start|>' + message/xx_start|>' + message/" "$tmp/m.gguf" >"$tmp/template.gguf"
refuse "an unknown chat template" 1 "--raw" "$weir" run -m "$tmp/template.gguf" -p hello
refuse "a read error while loading" 1 "m.gguf" $run --set fault=read:40:for_good
refuse "no memory while loading" 1 "" $run --set fault=host_alloc:60:for_good
mkdir "$tmp/dir"
refuse "synth onto a folder" 1 "dir" "$weir" synth -o "$tmp/dir"
refuse "synth with an impossible shape" 2 "multiple" "$weir" synth --type Q4_K --hidden 200 -o "$tmp/x.gguf"
refuse "synth of an unknown type" 2 "Q9_9" "$weir" synth --type Q9_9 -o "$tmp/x.gguf"
[ ! -e "$tmp/x.gguf" ] && ok "a refused synth leaves no file" || no "a refused synth leaves a file"

# a read error in the middle of a streamed run: no answer is passed off as whole
plan=$("$weir" plan --json --ctx 64 "$tmp/m.gguf" 2>/dev/null | tr -d ' ,' | sed -n 's/"smallest_bytes"://p')
if [ -n "$plan" ]; then
    "$weir" run --raw -m "$tmp/m.gguf" -p hello -n 4 --ctx 64 --mem "$((plan + 65536))B" --json --set fault=completion:30:for_good >"$tmp/out" 2>"$tmp/err"
    rc=$?
    if [ $rc = 1 ] && [ ! -s "$tmp/out" ] && grep -q "m.gguf" "$tmp/err"; then ok "a read error in the middle of a run"; else no "a read error in the middle of a run: exit $rc $(head -n 1 "$tmp/err")"; fi
else
    no "weir plan --json gives no smallest_bytes"
fi
echo "1..$n"
