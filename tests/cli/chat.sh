#!/bin/sh
# weir chat as a person uses it, on a real terminal (script(1) gives one), and line by line through a pipe. TAP on standard output.
. "$(dirname "$0")/tap.inc"

check() { if eval "$2"; then ok "$1"; else no "$1"; fi; }

# A model whose greedy answers are short of no end: they run into the limit given by -n, or the context.
tiny llama Q8_0 "$tmp/m.gguf" --vocab 1000 --ctx 32768 --seed 5 || no "synth"
chat="$weir chat -m $tmp/m.gguf --ctx 20000 -n 12"

# ---- through a pipe
printf 'hello\n/memory\nwhy\n/nonsense\n\n/reset\nhello\n/help\n' | $chat >"$tmp/out" 2>"$tmp/err"
check "a pipe: exit 0" '[ $? = 0 ]'
"$weir" run -m "$tmp/m.gguf" --ctx 20000 -n 12 -p hello --quiet >"$tmp/run" 2>/dev/null
check "a pipe: the first answer is that of weir run" 'head -n "$(wc -l <"$tmp/run")" "$tmp/out" | cmp -s - "$tmp/run"'
check "a pipe: after /reset the same question has the same answer" '[ "$(grep -A "$(wc -l <"$tmp/run")" "^forgotten" "$tmp/out" | tail -n +2)" = "$(cat "$tmp/run")" ]'
check "a pipe: /memory, an unknown command, /help" 'grep -q "^memory *budget" "$tmp/out" && grep -q "there is no /nonsense" "$tmp/out" && grep -q "^/reset " "$tmp/out"'
check "a pipe: no prompt, no greeting" '! grep -q "^> \|Ask something" "$tmp/out"'
check "a pipe: an answer at its limit is marked" '[ "$(grep -c "broken off at the length" "$tmp/err")" = 3 ]'
check "a pipe: the memory report at the end" 'grep -q "^memory *budget.*measured peak" "$tmp/err"'
check "a pipe that ends at once: exit 0" '$chat --quiet </dev/null >"$tmp/out" 2>&1 && [ ! -s "$tmp/out" ]'
check "/quit leaves" '[ -z "$(printf "/quit\nhello\n" | $chat --quiet 2>/dev/null)" ]'
long=$(head -c 3000 /dev/zero | tr '\0' 'q')
printf '%s\nhello\n' "$long" | "$weir" chat -m "$tmp/m.gguf" --ctx 64 -n 4 --quiet >"$tmp/out" 2>"$tmp/err"
rc=$?
check "a question longer than the context: told, the next one is answered, exit 1" '[ $rc = 1 ] && grep -q "larger --ctx" "$tmp/err" && [ "$(grep -c . "$tmp/out")" -gt 0 ]'
printf 'hello\nwhy\n' | $chat --quiet --ctx 512 2>/dev/null >"$tmp/two"
printf 'hello\nwhy\n' | $chat --quiet --ctx 512 --mem 7MiB --threads 1 --chunk 7 2>/dev/null >"$tmp/two_small"
check "two turns, whole and streamed, are the same" '[ "$(wc -c <"$tmp/two")" -gt 20 ] && cmp -s "$tmp/two" "$tmp/two_small"'
printf 'hello\n' | $chat --quiet --temp 1 --seed 7 2>/dev/null >"$tmp/a"
printf 'hello\n' | $chat --quiet --temp 1 --seed 7 2>/dev/null >"$tmp/b"
printf 'hello\n' | $chat --quiet --temp 1 --seed 8 2>/dev/null >"$tmp/c"
check "seeds mean in chat what they mean in run" 'cmp -s "$tmp/a" "$tmp/b" && ! cmp -s "$tmp/a" "$tmp/c"'

# Ctrl-C in a pipe ends the program, with what there is marked as stopped.
mkfifo "$tmp/lines"
rm -f "$tmp/out"
"$weir" chat -m "$tmp/m.gguf" --ctx 20000 -n 20000 --quiet <"$tmp/lines" >"$tmp/out" 2>"$tmp/err" &
pid=$!
exec 4>"$tmp/lines"
echo hello >&4
tries=0
while [ ! -s "$tmp/out" ] && [ $tries -lt 200 ]; do sleep 0.05 && tries=$((tries + 1)); done
kill -INT "$pid"
exec 4>&-
wait "$pid"
rc=$?
check "a pipe: SIGINT ends the program within the answer, exit 130" '[ $rc = 130 ] && grep -q "stopped" "$tmp/err"'

# While it waits for a question, others need the memory (R6.5).
mkdir -p "$tmp/proc"
machine() { printf 'MemTotal: 67108864 kB\nMemAvailable: %s kB\n' "$1" >"$tmp/proc/next" && mv "$tmp/proc/next" "$tmp/proc/meminfo"; }
if "$weir" synth --quiet --arch llama --type Q8_0 --hidden 512 --layers 8 --heads 8 --kv-heads 4 --ffn 1024 --vocab 1000 --seed 7 -o "$tmp/l.gguf"; then
    printf 'hello\nwhy\n' | "$weir" chat -m "$tmp/l.gguf" --ctx 512 -n 12 --quiet >"$tmp/two" 2>/dev/null
    machine 8000000
    mkfifo "$tmp/slow"
    "$weir" chat -m "$tmp/l.gguf" --ctx 512 -n 12 --mem 200MiB --verbose --set compute.pressure=auto --set compute.ram_reserve=16GiB --set "proc_root=$tmp/proc" \
        --set "cgroup_root=$tmp/proc" <"$tmp/slow" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    exec 4>"$tmp/slow"
    echo hello >&4
    tries=0
    while ! grep -q "broken off" "$tmp/err" && [ $tries -lt 400 ]; do sleep 0.05 && tries=$((tries + 1)); done
    early=$(grep -c "memory is short" "$tmp/err")
    machine 0
    tries=0
    while ! grep -q "memory is short" "$tmp/err" && [ $tries -lt 400 ]; do sleep 0.05 && tries=$((tries + 1)); done
    late=$(grep -c "memory is short" "$tmp/err")
    echo why >&4
    exec 4>&-
    wait "$pid"
    rc=$?
    check "memory that others need is given back while it waits, and the answers stay the same" '[ $rc = 0 ] && [ $early = 0 ] && [ $late = 1 ] && [ "$(wc -c <"$tmp/two")" -gt 20 ] && cmp -s "$tmp/two" "$tmp/out"'
else
    no "synth"
fi

# ---- on a terminal
if ! command -v script >/dev/null; then
    skip "chat on a terminal" "no script(1)"
    echo "1..$n"
    exit 0
fi
mkfifo "$tmp/keys"
log=$tmp/screen
# see PATTERN: waits until what came since the last `mark` matches
mark() { seen=$(wc -c <"$log" 2>/dev/null || echo 0); }
since() { tail -c +$((seen + 1)) "$log" 2>/dev/null; }
see() {
    tries=0
    until since | grep -q -- "$1"; do
        tries=$((tries + 1))
        [ $tries -gt 200 ] && return 1
        sleep 0.05
    done
}
start() {
    : >"$log" && mark
    XDG_STATE_HOME=$tmp/state HOME=$tmp TERM=xterm script -qefc "$1; echo exit=\$?" "$log" <"$tmp/keys" >/dev/null 2>&1 &
    session=$!
    exec 3>"$tmp/keys"
}
# Whatever went wrong, nothing is left running.
finish() {
    exec 3>&-
    see "^exit=" || kill "$session" 2>/dev/null
    wait "$session" 2>/dev/null
}

start "$weir chat -m $tmp/m.gguf --ctx 20000 -n 12 --quiet"
check "terminal: a greeting and a prompt" 'see "Ask something.*" && see "> "'
mark && printf 'hello\r' >&3
check "terminal: a question is answered" 'see "broken off at the length" && since | tr -d "\r" | grep -qF "$(head -n 1 "$tmp/run" | cut -c 1-12)"'
mark && printf '/memory\r' >&3
check "terminal: /memory" 'see "memory *budget.*measured peak"'
mark && printf '/help\r' >&3
check "terminal: /help" 'see "^/memory  *what is held where"'
mark && printf '/reset\r' >&3
check "terminal: /reset" 'see "^forgotten"'
mark && printf 'half a line\003/wrong\r' >&3
check "terminal: Ctrl-C empties the line" 'see "there is no /wrong"'
mark && printf '\004' >&3
check "terminal: Ctrl-D leaves with status 0" 'see "^exit=0"'
finish
check "terminal: the history is kept, for its owner only" '[ "$(grep -c "hello\|/memory\|/wrong" "$tmp/state/weir_history")" = 3 ] && [ "$(stat -c %a "$tmp/state/weir_history")" = 600 ] && ! grep -q half "$tmp/state/weir_history"'

start "$weir chat -m $tmp/m.gguf --ctx 20000 -n 20000 --quiet"
see "> "
mark && printf 'hello\r' >&3
sleep 1
check "terminal: a long answer is being written" '[ "$(since | wc -c)" -gt 100 ] && ! since | grep -q "broken off\|exit="'
mark && printf '\003' >&3
check "terminal: Ctrl-C stops the answer" 'see "\[stopped\]"'
check "terminal: and not the program" 'see "> " && ! since | grep -q "exit="'
mark && printf 'hello\r' >&3
sleep 0.5
mark && printf '\003' >&3
check "terminal: once more, with the same answer" 'see "\[stopped\]"'
mark && printf '\020' >&3
check "terminal: the arrow brings back what was typed" 'see "hello"'
mark && printf '\003/quit\r' >&3
check "terminal: /quit leaves with status 0" 'see "^exit=0"'
finish

# ---- waits on slow storage: what is remembered of this one is made slow, so that what is left is said before anything is read
export WEIR_CACHE_FOLDER="$tmp/cache"
"$weir" doctor "$tmp/m.gguf" --probe >/dev/null 2>&1
awk 'NR > 1 { $5 = 100000 } { print }' "$tmp/cache/storage" >"$tmp/made_slow" && cp "$tmp/made_slow" "$tmp/cache/storage"
wait_of() { TERM=xterm script -qefc "$1" "$log" </dev/null >/dev/null 2>&1; }
slow="-m $tmp/m.gguf --mem 7MiB --ctx 300 --chunk 8 -n 2"
wait_of "$weir run $slow --raw -p 'one two three four five six seven eight nine ten'"
check "terminal: on slow storage a token's time and the prompt's are told" 'grep -q "s a token: each token reads" "$log" && grep -q "reading the prompt: 0 of [0-9]* tokens, [0-9]* \(s\|min\) left" "$log"'
wait_of "printf 'hello\\n' | $weir chat $slow"
check "terminal: and in a chat" 'grep -q "reading the prompt: 0 of [0-9]* tokens, [0-9]* \(s\|min\) left" "$log"'
wait_of "$weir run $slow --quiet --raw -p 'one two three four five six seven eight nine ten'"
check "terminal: --quiet says nothing of it" '! grep -q "reading the prompt\|each token" "$log"'
echo "1..$n"
