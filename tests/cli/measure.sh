#!/bin/sh
# weir measure (R14.5, R14.7, R14.8): every step stays in the report, however it ended; the page needs nothing from elsewhere.
# TAP on standard output.
. "$(dirname "$0")/tap.inc"

check() { if eval "$2"; then ok "$1"; else no "$1"; fi; }
valid() {
    if command -v jq >/dev/null; then jq -es 'length == 1' "$1" >/dev/null 2>&1
    elif command -v python3 >/dev/null; then python3 -m json.tool "$1" >/dev/null 2>&1
    else [ -s "$1" ]
    fi
}
# all FIELD FILE: every value of a key, one a line
all() { sed -n "s/^ *\"$1\": *\"\{0,1\}\([^\",]*\).*/\1/p" "$2"; }
list() { all "$1" "$2" | tr '\n' ' '; }

tiny llama Q8_0 "$tmp/m.gguf" || no "synth"
measure="$weir measure $tmp/m.gguf --interval 2 --quiet"

# ---- a run that fits
$measure --sessions 1..3 --ctx 128 --mem 64MiB -o "$tmp/r" --html "$tmp/h" >"$tmp/out" 2>"$tmp/err"
check "measure ends well and says nothing else" '[ $? = 0 ] && [ ! -s "$tmp/err" ]'
check "the report is valid JSON" 'valid "$tmp/r"'
check "three steps, one for each number of sessions, all well" '[ "$(list outcome "$tmp/r")" = "ok ok ok " ] && [ "$(grep -c "^   \"sessions\":" "$tmp/r")" = 3 ]'
check "the model is named by its SHA-256" '[ "$(field sha256 "$tmp/r")" = "$(sha256sum "$tmp/m.gguf" | cut -d" " -f1)" ] && [ "$(field quantization "$tmp/r")" = Q8_0 ]'
missing=
for key in version began kernel cpus cpu_set total_bytes budget_bytes ctx_tokens prompt_tokens decode_tokens threads planned_peak_bytes peak_rss_bytes pss_bytes pss_anon_bytes private_bytes cgroup_bytes cgroup_peak_bytes cgroup_working_set_bytes available_before_bytes available_lowest_bytes minor_faults major_faults some_stall_us difference_bytes difference_percent prefill_tps decode_tps decode_tps_per_session slowest_pass_seconds samples phases not_tested; do
    grep -q "\"$key\":" "$tmp/r" || missing="$missing $key"
done
check "the report has what was fixed, measured and compared:$missing" '[ -z "$missing" ]'
check "measured peaks are real: above 1 MiB, within the budget" 'all peak_rss_bytes "$tmp/r" | awk "{ if (\$1 < 1048576 || \$1 > 67108864) bad = 1; n++ } END { exit bad || n != 3 }"'
check "samples were taken of every step" 'all interval_ms "$tmp/r" | wc -l | grep -q "^ *3$" && grep -c "\"pss_anon_bytes\": \[" "$tmp/r" | grep -q "^3$"'
check "the difference is measured less planned" 'awk -F"[:,]" "/\"account\": \"kv\"/ { on = 1 } on && /planned_bytes/ { p = \$2 } on && /measured_bytes/ { m = \$2 } on && /difference_bytes/ { d = \$2; on = 0; if (m - p != d || p <= 0) bad = 1; n++ } END { exit bad || n != 3 }" "$tmp/r"'
check "the key-value cache is held as planned (R14.3)" '[ "$(grep -A4 "\"account\": \"kv\"" "$tmp/r" | grep -c "\"difference_bytes\": 0,")" = 3 ]'
check "the table has a line for each step" '[ "$(grep -c "^ *[123] ok" "$tmp/out")" = 3 ] && grep -q "not tested:" "$tmp/out"'

check "a speed is predicted before each step, unless it is not wanted" '[ "$(grep -c "\"predicted_decode_tps\": [0-9]" "$tmp/r")" = 3 ] && $measure --ctx 128 --mem 64MiB --no-rates --json >"$tmp/out" && [ "$(field outcome "$tmp/out")" = ok ] && ! grep -q predict "$tmp/out"'

# ---- the page
check "the page is whole, with drawings and tables" 'grep -q "^</body></html>" "$tmp/h" && [ "$(grep -c "<svg" "$tmp/h")" = 4 ] && grep -q "<table" "$tmp/h"'
check "the page fetches nothing: no address, script, import or link" '! grep -qiE "https?://|src=|href=|url\(|@import|<script|<link" "$tmp/h"'
check "the page says what was not shown (R14.8)" 'grep -q "What this does not show" "$tmp/h" && grep -q "Soak" "$tmp/h"'

# ---- a budget too small for more than one session
smallest=$("$weir" plan "$tmp/m.gguf" --ctx 512 --json 2>/dev/null | tr -d ' ,' | sed -n 's/"smallest_bytes"://p')
$measure --sessions 1..8 --ctx 512 --mem "$((smallest + 1048576))B" --json -o "$tmp/r" >"$tmp/out" 2>"$tmp/err"
check "one step that ran is a success" '[ $? = 0 ]'
check "--json prints the report that -o writes" 'valid "$tmp/out" && cmp -s "$tmp/out" "$tmp/r"'
check "refused steps stay: all eight are there, the first ran, the last was refused" '[ "$(all outcome "$tmp/r" | wc -l)" = 8 ] && [ "$(all outcome "$tmp/r" | head -n 1)" = ok ] && [ "$(all outcome "$tmp/r" | tail -n 1)" = refused ]'
check "a refusal has its status, its missing bytes and what would fit" 'grep -q "\"status\": \"BUDGET\"" "$tmp/r" && grep -qE "\"missing_bytes\": [1-9]" "$tmp/r" && grep -q "what would fit" "$tmp/r"'
$measure --mem 1MiB --ctx 128 -o "$tmp/r" --html "$tmp/h" >"$tmp/out" 2>/dev/null
check "no step that ran: exit 1, and both reports are written" '[ $? = 1 ] && [ "$(list outcome "$tmp/r")" = "refused " ] && grep -q "BUDGET" "$tmp/h"'

$measure --sessions 1..8 --fewer-sessions --ctx 512 --mem "$((smallest + 1048576))B" -o "$tmp/f" >/dev/null 2>&1
check "--fewer-sessions ends with as many as fit: no step is refused (R14.6)" '[ $? = 0 ] && [ "$(field wanted_sessions "$tmp/f")" = 8 ] && [ "$(field last_sessions "$tmp/f")" = "$(all outcome "$tmp/f" | wc -l)" ] && [ "$(all outcome "$tmp/f" | sort -u)" = ok ] && [ "$(all outcome "$tmp/f" | wc -l)" -lt 8 ]'
# The plan gives many sessions a shorter context than it gives one; the steps all have that of one.
tiny llama Q8_0 "$tmp/c.gguf" --ctx 4096 || no "synth"
whole=$("$weir" plan "$tmp/c.gguf" --ctx 4096 --no-rates --json 2>/dev/null | tr -d ' ,' | sed -n 's/"smallest_bytes"://p')
"$weir" measure "$tmp/c.gguf" --interval 2 --quiet --sessions 1..8 --fewer-sessions --mem "$((whole + 3145728))B" -o "$tmp/f" >/dev/null 2>&1
check "and where the context is the plan's: all steps have that of the first" '[ $? = 0 ] && [ "$(field wanted_sessions "$tmp/f")" = 8 ] && [ "$(field ctx_tokens "$tmp/f")" = 4096 ] && [ "$(field last_sessions "$tmp/f")" -lt 8 ] && [ "$(all outcome "$tmp/f" | sort -u)" = ok ]'
"$weir" bench "$tmp/m.gguf" --sessions 8 --ctx 512 --mem "$((smallest + 1048576))B" >/dev/null 2>"$tmp/err"
check "bench refuses sessions that do not fit" '[ $? = 1 ] && grep -q "missing" "$tmp/err"'
"$weir" bench "$tmp/m.gguf" --sessions 8 --fewer-sessions --ctx 512 -n 4 --prompt-tokens 8 --rounds 1 --mem "$((smallest + 1048576))B" --json >"$tmp/b" 2>/dev/null
check "bench --fewer-sessions takes as many as fit" '[ $? = 0 ] && [ "$(field wanted_sessions "$tmp/b")" = 8 ] && [ "$(field sessions "$tmp/b")" -ge 1 ] && [ "$(field sessions "$tmp/b")" -lt 8 ] && [ "$(field same_logits "$tmp/b")" = true ]'

# ---- failures inside a step
$measure --ctx 128 --mem 64MiB --set fault=no-such-fault -o "$tmp/r" >/dev/null 2>"$tmp/err"
check "a setting that is none is refused at once" '[ $? = 2 ] && [ -s "$tmp/err" ]'

# step_of PID: the process of the step that runs now
step_of() { for p in /proc/[0-9]*; do [ "$(awk '{ print $4 }' "$p/stat" 2>/dev/null)" = "$1" ] && echo "${p#/proc/}"; done; }
wait_step() {
    tries=0 child=
    while [ -z "$child" ] && [ $tries -lt 200 ]; do child=$(step_of "$1"); tries=$((tries + 1)); sleep 0.05; done
    tries=0
    while [ -n "$child" ] && [ $tries -lt 200 ] && ! grep -q measure "/proc/$child/cmdline" 2>/dev/null; do tries=$((tries + 1)); sleep 0.05; done
}
tiny llama Q8_0 "$tmp/long.gguf" --ctx 262144 || no "synth"
long="$weir measure $tmp/long.gguf --interval 20 --quiet --no-hash --ctx 200000 -n 199000 --mem 4GiB -o $tmp/r"
$long --html "$tmp/h" >"$tmp/out" 2>/dev/null &
parent=$!
wait_step $parent
sleep 0.5
kill -9 $child 2>/dev/null
wait $parent
check "a killed step: exit 1, and the report has its signal and phase" '[ $? = 1 ] && [ "$(list outcome "$tmp/r")" = "killed " ] && [ "$(field signal "$tmp/r")" = 9 ] && grep -q "\"phase\":" "$tmp/r" && grep -q "signal 9" "$tmp/h" && grep -q "signal 9" "$tmp/out"'

$long --sessions 1..3 >"$tmp/out" 2>/dev/null &
parent=$!
wait_step $parent
sleep 0.5
kill -TERM $parent
wait $parent
rc=$?
check "an interrupt keeps what was measured and starts no further step" '[ $rc = 143 ] && valid "$tmp/r" && [ "$(field interrupted "$tmp/r")" = true ] && [ "$(list outcome "$tmp/r")" = "interrupted " ]'
check "an interrupted step leaves no process" '[ -z "$(step_of $parent)" ] && ! kill -0 $child 2>/dev/null'

$measure --sessions 1..3 --ctx 512 --mem 64MiB -o "$tmp/r" >"$tmp/out" 2>/dev/null &
parent=$!
sleep 1 # within the first prediction, which takes some two seconds
kill -TERM $parent
wait $parent
rc=$?
check "an interrupt while a speed is predicted ends that, too" '[ $rc = 143 ] && valid "$tmp/r" && [ "$(field interrupted "$tmp/r")" = true ] && ! grep -q "\"outcome\": \"ok\"" "$tmp/r"'

# ---- bad input
for bad in "--sessions 0" "--sessions 3..2" "--sessions 1..x" "--sessions 1..9999" "--sessions -1" "-n 0" "--interval 0" "--ctx 8" "--mem 5"; do
    "$weir" measure "$tmp/m.gguf" $bad >"$tmp/out" 2>"$tmp/err"
    check "measure $bad: exit 2, a message, nothing else" '[ $? = 2 ] && [ -s "$tmp/err" ] && [ ! -s "$tmp/out" ]'
done
"$weir" measure "$tmp/none.gguf" >"$tmp/out" 2>"$tmp/err"
check "a model that is not there: exit 1" '[ $? = 1 ] && grep -q none.gguf "$tmp/err"'
$measure --ctx 128 --mem 64MiB -o "$tmp/no/such/folder" >/dev/null 2>"$tmp/err"
check "a report that cannot be written: exit 1" '[ $? = 1 ] && grep -q "no/such/folder" "$tmp/err"'
echo "1..$n"
