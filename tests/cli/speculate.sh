#!/bin/sh
# X4, R1.1: guesses that one pass checks, from the text and from a draft model, and sessions that share passes: the answer is the
# same in every mode, greedy and sampled, streamed and whole; reports, refusals and measurements.
. "$(dirname "$0")/tap.inc"
check() { if eval "$2"; then ok "$1"; else no "$1"; fi; }
refuse() { # NAME STATUS TEXT COMMAND...
    name=$1 status=$2 text=$3
    shift 3
    "$@" >"$tmp/out" 2>"$tmp/err"
    rc=$?
    if [ $rc = "$status" ] && [ ! -s "$tmp/out" ] && grep -q -- "$text" "$tmp/err"; then ok "$name"; else no "$name: exit $rc, $(head -n 1 "$tmp/err")"; fi
}

tiny llama Q8_0 "$tmp/m.gguf"
tiny qwen3 Q8_0 "$tmp/d.gguf"
tiny llama Q8_0 "$tmp/other.gguf" --vocab 900
run="$weir run -m $tmp/m.gguf --ctx 256 -n 60 --ignore-end --seed 3 --json -p"
prompt="one two three four one two three four one two"

for kind in "--temp 0" "--temp 0.9 --top-p 0.95 --repeat-penalty 1.1"; do
    for mem in 7MiB 64MiB; do
        $run "$prompt" $kind --mem $mem --speculate off >"$tmp/off" 2>/dev/null
        check "plain decoding guesses nothing ($mem, $kind)" '[ "$(field drafted "$tmp/off")" = 0 ] && [ "$(field passes "$tmp/off")" = 60 ] && [ "$(field mode "$tmp/off")" = off ]'
        for how in auto lookup; do
            $run "$prompt" $kind --mem $mem --speculate $how >"$tmp/on" 2>/dev/null
            check "--speculate $how gives the same answer ($mem, $kind)" '[ "$(field logits_hash "$tmp/on")" = "$(field logits_hash "$tmp/off")" ] && [ "$(tokens "$tmp/on")" = "$(tokens "$tmp/off")" ] && [ "$(field mode "$tmp/on")" = '$how' ]'
        done
        check "passes and right guesses make the answer ($mem, $kind)" '[ $(($(field passes "$tmp/on") + $(field accepted "$tmp/on"))) = 60 ]'
    done
    $run "$prompt" $kind --speculate draft --speculate-tokens 5 --draft "$tmp/m.gguf" --mem 64MiB >"$tmp/on" 2>/dev/null
    check "a draft that is the model itself is always right ($kind)" '[ "$(field logits_hash "$tmp/on")" = "$(field logits_hash "$tmp/off")" ] && [ "$(field accepted "$tmp/on")" = "$(field drafted "$tmp/on")" ] && [ "$(field passes "$tmp/on")" = 11 ]'
    for how in draft auto; do
        $run "$prompt" $kind --speculate $how --draft "$tmp/d.gguf" --draft-mem 12MiB --mem 64MiB >"$tmp/on" 2>/dev/null
        check "--speculate $how with another draft: the same answer ($kind)" '[ "$(field logits_hash "$tmp/on")" = "$(field logits_hash "$tmp/off")" ]'
    done
done
printf 'one two three\none two three\n' | "$weir" chat -m "$tmp/m.gguf" -n 20 --quiet --speculate off >"$tmp/off" 2>/dev/null
printf 'one two three\none two three\n' | "$weir" chat -m "$tmp/m.gguf" -n 20 --quiet --draft "$tmp/d.gguf" >"$tmp/on" 2>/dev/null
check "chat with a draft says the same" '[ -s "$tmp/off" ] && cmp -s "$tmp/on" "$tmp/off"'

# A quarter of the budget would do for less context than the model has.
tiny llama Q8_0 "$tmp/long.gguf" --ctx 4096 && tiny llama Q8_0 "$tmp/wide.gguf" --ctx 4096 --layers 8 --kv-heads 4
words=$(for i in $(seq 200); do printf 'one two three four '; done)
for mem in "--mem 170MiB" "--mem 170MiB --draft-mem 30MiB"; do
    "$weir" run -m "$tmp/long.gguf" -n 8 --ignore-end --raw --json $mem --speculate draft --draft "$tmp/wide.gguf" -p "$words" >"$tmp/out" 2>/dev/null
    check "the draft has the model's context where its share allows ($mem)" '[ "$(field prompt_tokens "$tmp/out")" = 2600 ] && { [ "$(field drafted "$tmp/out")" -gt 0 ] || [ "$mem" != "--mem 170MiB" ]; }'
done

refuse "a draft of another vocabulary" 2 "has 1000 tokens, the draft .* has 900" $run x --draft "$tmp/other.gguf"
refuse "a draft that is not there" 1 "nowhere" $run x --draft "$tmp/nowhere.gguf"
refuse "a draft that does not fit its share" 1 "at least" $run x --draft "$tmp/d.gguf" --draft-mem 1MiB
refuse "an unknown way" 2 "auto, off, lookup or draft" $run x --speculate always
refuse "--speculate draft without a draft" 2 "--draft FILE" $run x --speculate draft
refuse "--draft-mem without a draft" 2 "--draft FILE" $run x --draft-mem 9MiB
refuse "--draft with --speculate off" 2 "speculate off" $run x --draft "$tmp/d.gguf" --speculate off
refuse "--draft with --speculate lookup" 2 "never asks it" $run x --draft "$tmp/d.gguf" --speculate lookup
refuse "more guesses than a pass has" 2 "at most 31" $run x --speculate-tokens 32
refuse "--speculate-tokens for bench without --speculate" 2 "speculate HOW" "$weir" bench "$tmp/m.gguf" --speculate-tokens 4
refuse "two measurements at once" 2 "give one of them" "$weir" bench "$tmp/m.gguf" --sessions 2 --speculate auto
refuse "too many sessions" 2 "1 to 64" "$weir" bench "$tmp/m.gguf" --sessions 65

"$weir" bench "$tmp/m.gguf" --mem 7MiB,64MiB --sessions 3 --prompt-tokens 8 -n 4 --rounds 1 --json >"$tmp/out" 2>/dev/null
check "bench --sessions: one object per budget, the same logits" '[ "$(grep -c "\"same_logits\": true" "$tmp/out")" = 2 ] && [ "$(field sessions "$tmp/out")" = 3 ] && grep -q total_tps "$tmp/out" && grep -q one_tps "$tmp/out"'
"$weir" plan "$tmp/m.gguf" --sessions 4 --ctx 512 --no-rates --json >"$tmp/plan" 2>/dev/null
"$weir" bench "$tmp/m.gguf" --mem "$(($(field smallest_bytes "$tmp/plan") + 1048576))B" --ctx 512 --sessions 4 --prompt-tokens 8 -n 4 --rounds 2 --json >"$tmp/out" 2>/dev/null
check "bench --sessions: one alone has the room of the others' caches for weights" '[ $? = 0 ] && [ "$(field same_logits "$tmp/out")" = true ] && awk "BEGIN { exit !($(field streamed_bytes_per_token "$tmp/out") > 0 && $(field streamed_bytes_per_token_one "$tmp/out") < 4 * $(field streamed_bytes_per_token "$tmp/out")) }"'
"$weir" bench "$tmp/m.gguf" --mem 64MiB --speculate draft --draft "$tmp/d.gguf" --prompt-tokens 64 -n 40 --rounds 1 --json >"$tmp/out" 2>/dev/null
check "bench --speculate: both texts, the same logits" '[ "$(grep -c "\"same_logits\": true" "$tmp/out")" = 2 ] && grep -q repetitive "$tmp/out" && grep -q ordinary "$tmp/out" && [ "$(field drafted "$tmp/out")" -gt 0 ]'
printf 'one two three four one two three four' | "$weir" bench "$tmp/m.gguf" --mem 64MiB --speculate lookup --prompt - --raw --temp 0.9 --seed 4 -n 30 --rounds 2 --json >"$tmp/out" 2>/dev/null
check "bench --speculate: a prompt of the caller's, sampled" '[ $? = 0 ] && [ "$(grep -c "\"same_logits\": true" "$tmp/out")" = 1 ] && [ "$(field text "$tmp/out")" = given ] && [ "$(field tokens "$tmp/out")" = 60 ] && [ "$(field drafted "$tmp/out")" -gt 0 ] && grep -q lowest_ratio "$tmp/out"'
$run "one two three four one two three four" --raw >"$tmp/on" 2>/dev/null
check "and its own number of tokens" '[ "$(field prompt_tokens "$tmp/out")" = "$(field prompt_tokens "$tmp/on")" ] && [ "$(field depth_tokens "$tmp/out")" = 0 ]'
prose_tokens() { sed -n 's/.*"prompt_tokens": *\([0-9]*\).*/\1/p' "$tmp/out" | tail -n 1; }
"$weir" bench "$tmp/m.gguf" --mem 64MiB --speculate lookup --depth 100 --prompt-tokens 500 -n 4 --rounds 1 --json >"$tmp/out" 2>/dev/null
check "bench --speculate: the ordinary text has as many tokens as are told" '[ "$(field prompt_tokens "$tmp/out")" = 500 ] && [ "$(field depth_tokens "$tmp/out")" = 100 ] && [ "$(prose_tokens)" -gt 0 ] && [ "$(prose_tokens)" -lt 500 ]'
refuse "a prompt for bench, and how long it were" 2 "taken whole" "$weir" bench "$tmp/m.gguf" --speculate auto --prompt x --prompt-tokens 128
refuse "a prompt for bench, and its depth" 2 "taken whole" "$weir" bench "$tmp/m.gguf" --speculate auto --prompt x --depth 0
"$weir" bench --help >"$tmp/out" 2>/dev/null
check "bench --help: what is so without options" '! grep -q "the clock" "$tmp/out" && grep -q "seed of the random numbers (default 0)" "$tmp/out" && grep -q "without this option nothing is guessed" "$tmp/out"'
refuse "a prompt for bench without --speculate" 2 "speculate HOW" "$weir" bench "$tmp/m.gguf" --prompt x
refuse "sampling of the two texts" 2 "go with --prompt" "$weir" bench "$tmp/m.gguf" --speculate auto --temp 0.5
refuse "sampling of the two texts as it is by default" 2 "go with --prompt" "$weir" bench "$tmp/m.gguf" --speculate auto --temp 0 --seed 0
refuse "--raw without a prompt for bench" 2 "go with --prompt" "$weir" bench "$tmp/m.gguf" --raw
"$weir" verify "$tmp/m.gguf" --json >"$tmp/out" 2>/dev/null
check "verify holds guesses and sessions against plain decoding" '[ $? = 0 ] && [ "$(field failed "$tmp/out")" = 0 ] && [ "$(grep -c "\"answers\": \"lookup\"" "$tmp/out")" = 2 ] && [ "$(grep -c "\"answers\": \"draft\"" "$tmp/out")" = 2 ] && [ "$(grep -c "\"answers\": \"auto\"" "$tmp/out")" = 2 ] && [ "$(grep -c "\"answers\": \"sessions\"" "$tmp/out")" = 2 ]'
check "verify holds answers while the budget changes between their tokens" '[ "$(grep -c "\"answers\": \"budgets\"" "$tmp/out")" = 2 ] && [ "$(grep -c "\"budget_shrinks\": [1-9]" "$tmp/out")" = 2 ] && [ "$(grep -c "\"budget_grows\": [1-9]" "$tmp/out")" = 2 ]'
echo "1..$n"
