#!/bin/sh
# Every command on real input: valid JSON with the fields that scripts rely on, seeds, prompts from a pipe, vocabularies' vectors,
# sizes with units, and a manual that knows every option. TAP on standard output.
. "$(dirname "$0")/tap.inc"
manual=${WEIR_SOURCE_DIR:-$(dirname "$0")/../..}/docs/weir.1
vocab=${WEIR_SHARED_DATA:-../shared/data}/vocab

check() { if eval "$2"; then ok "$1"; else no "$1"; fi; }

# valid FILE: one JSON document. With neither jq nor python3, at least its brackets match and nothing stands behind it.
valid() {
    if command -v jq >/dev/null; then jq -es 'length == 1' "$1" >/dev/null 2>&1
    elif command -v python3 >/dev/null; then python3 -m json.tool "$1" >/dev/null 2>&1
    else
        awk '{ s = s $0 "\n" } END { gsub(/\\\\/, "", s); gsub(/\\"/, "", s); gsub(/"[^"]*"/, "s", s); n = gsub(/[{[]/, "", s); m = gsub(/[]}]/, "", s); exit !(n == m && n > 0) }' "$1"
    fi
}
# has NAME FILE FIELD...: valid, and each field occurs as a key
has() {
    name=$1 file=$2 missing=
    shift 2
    valid "$file" || missing="(not valid JSON)"
    for key in "$@"; do grep -q "\"$key\":" "$file" || missing="$missing $key"; done
    if [ -z "$missing" ]; then ok "$name"; else no "$name: lacks$missing"; fi
}

tiny llama Q8_0 "$tmp/m.gguf" || no "synth"
run="$weir run --raw -m $tmp/m.gguf --ctx 128"

# ---- help
check "weir help run is weir run --help" '"$weir" help run >"$tmp/a" && "$weir" run --help >"$tmp/b" && cmp -s "$tmp/a" "$tmp/b" && grep -q "usage: weir run" "$tmp/a"'
check "a misspelt command is told its neighbour" '! "$weir" verfy 2>"$tmp/err" && grep -q "did you mean .verify.?" "$tmp/err"'
check "a word that is near no command is told where the list is" '! "$weir" quantize 2>"$tmp/err" && grep -q "see weir --help" "$tmp/err"'

# ---- run
$run -p hello -n 8 --seed 5 --json --profile >"$tmp/run" 2>"$tmp/err"
check "run --json ends well and says nothing else" '[ $? = 0 ] && [ ! -s "$tmp/err" ]'
has "run --json" "$tmp/run" text tokens logits_hash memory timings prompt_tokens stop seed applied profile
has "run --json: memory (R10.1)" "$tmp/run" reason mode free_mb working_mb reserve_mb loaded_mb size_mb streamed_mb budget_bytes planned_peak_bytes peak_bytes accounts weights.resident kv activations
has "run --json: timings" "$tmp/run" prefill_seconds decode_seconds first_token_seconds prefill_tps decode_tps
has "run --json: profile (R15.5)" "$tmp/run" phases seconds wait_seconds ops weight_bytes streamed_bytes peak_live_bytes allocated_bytes count
check "run --json: eight tokens" '[ "$(tokens "$tmp/run" | tr "," " " | wc -w)" = 8 ]'
check "run --json: nothing was applied" 'tr -d "\n " <"$tmp/run" | grep -q "\"applied\":{}"'
$run -p hello -n 2 --kv-type f32 --json >"$tmp/out" 2>/dev/null
check "run --json: an F32 cache is recorded (R1.3)" 'tr -d "\n " <"$tmp/out" | grep -q "\"applied\":{\"kv_type\":\"f32\"}"'
for how in dynamic static; do
    $run -p hello -n 8 --seed 5 --kv-cache $how --json >"$tmp/out" 2>/dev/null
    check "run --json: a cache that is $how is recorded, and the bits stay (R1.3, R11.1)" 'tr -d "\n " <"$tmp/out" | grep -q "\"applied\":{\"kv_cache\":\"$how\"}" && [ "$(field logits_hash "$tmp/out")" = "$(field logits_hash "$tmp/run")" ]'
    "$weir" plan "$tmp/m.gguf" --ctx 2000 --no-rates --kv-cache $how >"$tmp/out"
    check "plan: a cache that is $how has its line (R9.2)" 'grep -q "^caches   $how, .* at 1024 tokens (.* while growing), .* at 2000 tokens" "$tmp/out"'
    "$weir" plan "$tmp/m.gguf" --ctx 2000 --no-rates --set compute.kv_cache=$how --json >"$tmp/out"
    has "plan --json: a cache that is $how" "$tmp/out" session_cache kv_cache first_bytes at tokens bytes peak_bytes
done
$run -p hello -n 2 --kv-cache static 2>"$tmp/err" >/dev/null
check "run reports a static cache (R1.3)" 'grep -q "; applied: kv-cache static" "$tmp/err"'
$run -p hello -n 8 --seed 5 >"$tmp/text" 2>"$tmp/report"
for word in "memory .*budget .*planned peak .*measured peak" "weights .*stay.*stream" "weights.resident .*iB" "account .*planned .*now .*peak" "prompt tokens in" "logits"; do
    check "run reports: $word" 'grep -q "$word" "$tmp/report"'
done
check "every size in the report has its unit" '! sed -n "/account/,/process  resident/p" "$tmp/report" | grep -v account | grep -E "[0-9] *$"'
$run -p hello -n 8 --quiet >"$tmp/out" 2>"$tmp/err"
check "run --quiet gives the text alone" '[ ! -s "$tmp/err" ] && cmp -s "$tmp/out" "$tmp/text"'

text() { $run -p hello -n 24 --json "$@" 2>/dev/null | sed -n 's/^ "text": //p'; }
check "equal seeds give equal text" '[ -n "$(text --temp 1 --seed 3)" ] && [ "$(text --temp 1 --seed 3)" = "$(text --temp 1 --seed 3)" ]'
check "other seeds give other text at --temp 1" '[ "$(text --temp 1 --seed 3)" != "$(text --temp 1 --seed 4)" ]'
check "without a temperature the seed does not matter" '[ "$(text --seed 3)" = "$(text --seed 4)" ]'
check "--top-k 1 is greedy" '[ "$(text --temp 1 --top-k 1 --seed 9)" = "$(text)" ]'
check "budget, threads and chunk change nothing" '[ "$(text --mem 6500KiB --threads 1 --chunk 3)" = "$(text)" ]'
cpu=$(sed -n 's/^Cpus_allowed_list:[^0-9]*\([0-9]*\).*/\1/p' /proc/self/status)
check "processors, and more threads than processors, change nothing" '[ "$(text --cpus $cpu)" = "$(text)" ] && [ "$(text --cpus $cpu --threads 3)" = "$(text)" ] && [ "$(text --threads 0)" = "$(text)" ]'
"$weir" plan "$tmp/m.gguf" --cpus $cpu --json >"$tmp/out" 2>/dev/null
check "as many threads as --cpus names" 'grep -q "\"threads\": 1\b" "$tmp/out"'
check "a repeat penalty changes the text" '[ "$(text --repeat-penalty 1.9)" != "$(text)" ]'

printf 'hello\n' | $run -p - -n 8 --json --seed 5 >"$tmp/out" 2>/dev/null
check "a prompt on standard input is the prompt without its last newline" '[ "$(tokens "$tmp/out")" = "$(tokens "$tmp/run")" ]'
"$weir" run -m "$tmp/m.gguf" --ctx 128 -p hello -n 8 --json >"$tmp/chat" 2>/dev/null
check "a chat template adds its tokens" '[ "$(field prompt_tokens "$tmp/chat")" -gt "$(field prompt_tokens "$tmp/run")" ]'
"$weir" run -m "$tmp/m.gguf" --ctx 128 --system "Be brief." -p hello -n 8 --json >"$tmp/out" 2>/dev/null
check "a system message adds its tokens" '[ "$(field prompt_tokens "$tmp/out")" -gt "$(field prompt_tokens "$tmp/chat")" ]'
$run -p hello -n 1000 --ctx 32 --ignore-end --json >"$tmp/out" 2>/dev/null
check "a full context ends the answer and says so" '[ $? = 0 ] && [ "$(field stop "$tmp/out")" = context ]'
$run -p hello -n 0 --json >"$tmp/out" 2>/dev/null
check "-n 0 reads the prompt only" '[ $? = 0 ] && valid "$tmp/out" && [ -z "$(tokens "$tmp/out")" ]'

# ---- the others
"$weir" inspect "$tmp/m.gguf" --json >"$tmp/out" 2>/dev/null
has "inspect --json" "$tmp/out" format architecture parameters metadata units tensors smallest_working_set_bytes tokenizer chat_template file_bytes weight_bytes
"$weir" inspect -m "$tmp/m.gguf" >"$tmp/out" 2>/dev/null
check "inspect shows metadata, units, tensors, the smallest working set" 'grep -q "^metadata" "$tmp/out" && grep -q "^units" "$tmp/out" && grep -q "^tensors" "$tmp/out" && grep -q "smallest working set.*iB" "$tmp/out"'
check "inspect --all shows every tensor" '[ "$("$weir" inspect --all "$tmp/m.gguf" | grep -c " offset ")" = 30 ]'
"$weir" plan "$tmp/m.gguf" --mem 6MiB --ctx 64 --json >"$tmp/out" 2>/dev/null
has "plan --json" "$tmp/out" budget_bytes planned_peak_bytes smallest_bytes whole_bytes fits missing_bytes streamed_bytes_per_pass accounts
"$weir" plan "$tmp/m.gguf" --mem 1MiB --json >"$tmp/out" 2>/dev/null
check "plan of a budget that does not fit: exit 1, fits false, what is missing" '[ $? = 1 ] && valid "$tmp/out" && [ "$(field fits "$tmp/out")" = false ] && [ "$(field missing_bytes "$tmp/out")" -gt 0 ]'
"$weir" plan "$tmp/m.gguf" --mem 6MiB --ctx 64 >"$tmp/out" 2>/dev/null
check "plan: every size has its unit" 'grep -q "smallest budget.*iB" "$tmp/out" && ! grep -E "^  .*[0-9] *$" "$tmp/out"'
"$weir" plan "$tmp/m.gguf" --mem 1MiB --ctx 64 >"$tmp/out" 2>/dev/null
fit=$(sed -n 's/.*what would fit: --mem \([^ ,]*\).*/\1/p' "$tmp/out")
"$weir" plan "$tmp/m.gguf" --mem "$fit" --ctx 64 --no-rates >"$tmp/out" 2>/dev/null
check "plan: the budget that would fit can be typed as it stands ($fit)" '[ $? = 0 ] && grep -q "^fits" "$tmp/out"'
"$weir" plan "$tmp/m.gguf" --sessions 0 >"$tmp/out" 2>"$tmp/err"
check "plan for no sessions is refused" '[ $? = 2 ] && grep -q "sessions 0" "$tmp/err"'
# A file in memory: each read has ended when it is queued, which once made the measuring of rates endless.
if [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] && mem=$(mktemp -d /dev/shm/weir-XXXXXX); then
    trap 'rm -rf "$tmp" "$mem"' EXIT
    tiny llama Q8_0 "$mem/m.gguf" --layers 12 || no "synth"
    timeout 120 "$weir" plan "$mem/m.gguf" --mem 7MiB --ctx 64 --json >"$tmp/out" 2>"$tmp/err"
    check "plan with rates of a model on tmpfs that streams" '[ $? = 0 ] && [ "$(field streamed_bytes_per_pass "$tmp/out")" -gt 0 ] && grep -q "\"tokens_per_s\": [1-9]" "$tmp/out"'
    rm -rf "$mem"
else
    skip "plan with rates of a model on tmpfs that streams" "/dev/shm is no tmpfs"
fi
smallest=$("$weir" plan "$tmp/m.gguf" --ctx 64 --json 2>/dev/null | tr -d ' ,' | sed -n 's/"smallest_bytes"://p')
# the pages of code and libraries that a process holds differ from one to the next by some hundred KiB
$run --ctx 64 -p hello -n 2 --mem "$((smallest + 1048576))B" --json >"$tmp/out" 2>/dev/null
check "what plan calls the smallest budget suffices (1 MiB apart), and weights stream" '[ $? = 0 ] && [ "$(field reason "$tmp/out")" = budget ]'
check "the measured peak is within the budget" '[ "$(field peak_bytes "$tmp/out")" -le "$(field budget_bytes "$tmp/out")" ]'
"$weir" bench "$tmp/m.gguf" --mem 7MiB,40MiB --prompt-tokens 16 -n 4 --rounds 1 --json >"$tmp/out" 2>/dev/null
check "bench ends well" '[ $? = 0 ]'
has "bench --json" "$tmp/out" budget_bytes planned_peak_bytes peak_bytes prefill_tps decode_tps streamed_bytes_per_token storage_bytes_per_s limit_tps share_of_limit
check "bench gives one object per budget" '[ "$(grep -c "\"budget_bytes\"" "$tmp/out")" = 2 ]'
check "bench measured the storage where weights stream, and only there" '[ "$(grep "storage_bytes_per_s" "$tmp/out" | grep -c " 0.0,")" = 1 ]'
"$weir" bench "$tmp/m.gguf" --mem 7MiB --prompt-tokens 16 -n 4 --rounds 1 >"$tmp/out" 2>/dev/null
check "bench as a table" 'grep -q "^7 MiB" "$tmp/out"'
# where nothing but the ring fits, a prediction is made in another way, and says so
tight="--set memory.process=8MiB --ctx 20"
tight="$tight --mem $("$weir" plan "$tmp/m.gguf" $tight --json 2>/dev/null | tr -d ' ,' | sed -n 's/"smallest_bytes"://p')B"
"$weir" bench "$tmp/m.gguf" $tight --prompt-tokens 16 -n 4 --rounds 1 --json >"$tmp/out" 2>/dev/null
check "bench tells what could not be rehearsed" 'grep -q "\"predicted_note\": \"the plan has no room" "$tmp/out"'
"$weir" bench "$tmp/m.gguf" $tight --prompt-tokens 16 -n 4 --rounds 1 >"$tmp/out" 2>/dev/null
check "bench as a table tells it, too" 'grep -q "^  predicted: the plan has no room" "$tmp/out"'
"$weir" doctor --json >"$tmp/out" 2>/dev/null
has "doctor --json" "$tmp/out" version cpus cpu_set cpu_sets devices devices_note total_bytes available_bytes reserve_bytes default_budget_bytes cgroup_version settings value source
"$weir" doctor --set io.backend=threads >"$tmp/out" 2>/dev/null
check "doctor shows a setting and where it comes from" 'grep -q "io.backend *threads" "$tmp/out" && grep -q "^budget .*iB" "$tmp/out"'
check "doctor lists the devices of OpenCL, or says why there are none" 'grep -qE "^devices +(opencl:0: .*compute units|cpu; no OpenCL)" "$tmp/out"'
OCL_ICD_VENDORS=/nonexistent "$weir" doctor >"$tmp/out" 2>/dev/null
check "doctor without a driver says so" 'grep -qE "^devices +cpu; no OpenCL(:| device: .* no OpenCL platform was found)" "$tmp/out"'
"$weir" doctor >"$tmp/out" 2>/dev/null
check "doctor has a memory check (R10.3)" '[ "$(sed -n "/^memory check/,/^$/p" "$tmp/out" | grep -cE "^  (mode|reserve|limit|RAM reserve|host copies|pinned budget|copy streams|retry|fallback) +[^ ]")" = 9 ]'
"$weir" doctor --set compute.vram_mode=low --set compute.vram_limit_mb=300 --set compute.max_pinned_mb=7 --set compute.host_copies=off --json >"$tmp/out" 2>/dev/null
has "doctor --json: memory check (R10.3)" "$tmp/out" memory_check mode reserve_bytes limit_bytes ram_reserve_bytes host_copies makes_host_copies max_pinned_bytes copy_streams copies_ahead retry fallback remarks
check "doctor: what the settings mean" '[ "$(field mode "$tmp/out")" = low ] && [ "$(field limit_bytes "$tmp/out")" = 300000000 ] && [ "$(field max_pinned_bytes "$tmp/out")" = 7000000 ] && [ "$(field makes_host_copies "$tmp/out")" = false ] && grep -q "vram_limit_mb is not above" "$tmp/out"'
check "doctor: a setting out of range is named" '"$weir" doctor --set compute.async_offload=9 >/dev/null 2>"$tmp/err"; [ $? = 2 ] && grep -q "compute.async_offload is .9." "$tmp/err"'
export WEIR_CACHE_FOLDER="$tmp/cache"
"$weir" doctor "$tmp/m.gguf" >"$tmp/out" 2>/dev/null
check "doctor PATH before a measurement says so" 'grep -q "^storage .*not measured" "$tmp/out" && [ ! -e "$tmp/cache" ]'
"$weir" doctor --probe "$tmp/m.gguf" --json >"$tmp/out" 2>/dev/null
has "doctor --probe --json" "$tmp/out" storage bytes_per_s random_bytes_per_s latency_seconds memory_bytes_per_s depth read_bytes in_memory slow fresh reader file_system
check "doctor --probe measures" '[ "$(field fresh "$tmp/out")" = true ] && [ -s "$tmp/cache/storage" ]'
"$weir" doctor "$tmp" --json >"$tmp/out2" 2>/dev/null
check "doctor remembers what was measured, for all of the file system" '[ "$(field fresh "$tmp/out2")" = false ] && [ "$(field measured_at "$tmp/out2")" = "$(field measured_at "$tmp/out")" ]'
check "doctor --probe without a path: exit 2" '"$weir" doctor --probe >/dev/null 2>"$tmp/err"; [ $? = 2 ] && grep -q PATH "$tmp/err"'
check "doctor of a path that is not there: exit 1" '"$weir" doctor "$tmp/none" >/dev/null 2>"$tmp/err"; [ $? = 1 ] && grep -q "none" "$tmp/err"'
# ---- runtime
"$weir" runtime "$tmp/m.gguf" --ctx 128 --json >"$tmp/out" 2>"$tmp/err"
has "runtime --json (R10.2)" "$tmp/out" models name kind device mode reason size_bytes loaded_bytes streamed_bytes host_bytes copied_bytes users
check "runtime: all of it is in memory" '[ ! -s "$tmp/err" ] && [ "$(field loaded_bytes "$tmp/out")" -gt 0 ] && [ "$(field loaded_bytes "$tmp/out")" = "$(field size_bytes "$tmp/out")" ] && [ "$(field streamed_bytes "$tmp/out")" = 0 ]'
vram="--device sim --set compute.vram_reserve_mb=0 --set compute.vram_mode=low --quiet"
"$weir" runtime "$tmp/m.gguf" --ctx 128 $vram --json >"$tmp/out" 2>/dev/null
check "runtime: loaded and streamed are all of a model on a device" '[ "$(field streamed_bytes "$tmp/out")" -gt 0 ] && [ $(($(field loaded_bytes "$tmp/out") + $(field streamed_bytes "$tmp/out"))) = "$(field size_bytes "$tmp/out")" ] && [ "$(field reason "$tmp/out")" = mode ]'
"$weir" runtime -m "$tmp/m.gguf" --ctx 128 $vram --set compute.host_copies=off >"$tmp/out" 2>/dev/null
check "runtime as bars" 'grep -qE "^  \[#*\.+\]$" "$tmp/out" && grep -qE "^  loaded .*iB of .*iB, streamed .*iB \(mode\), in RAM 0 bytes" "$tmp/out"'
check "runtime without a model: exit 2" '"$weir" runtime >/dev/null 2>"$tmp/err"; [ $? = 2 ] && grep -q "no model" "$tmp/err"'

WEIR_IO_BACKEND=threads "$weir" doctor --json >"$tmp/out" 2>/dev/null
check "settings come from the environment" 'tr -d "\n " <"$tmp/out" | grep -q "\"io.backend\":{\"value\":\"threads\",\"source\":\"environment\""'
printf 'io.backend = threads\n' >"$tmp/settings"
WEIR_SETTINGS=$tmp/settings "$weir" doctor --json >"$tmp/out" 2>/dev/null
check "settings come from a file" 'tr -d "\n " <"$tmp/out" | grep -q "\"io.backend\":{\"value\":\"threads\",\"source\":\"file\""'
$run -p hello -n 8 --seed 5 --json --set io.backend=threads --mem 7MiB >"$tmp/out" 2>/dev/null
check "the other reader gives the same tokens" '[ "$(tokens "$tmp/out")" = "$(tokens "$tmp/run")" ] && grep -q "\"reader\": \"threads" "$tmp/out"'
"$weir" verify "$tmp/m.gguf" --prompt-tokens 7 --steps 1 --json >"$tmp/out" 2>/dev/null
check "verify ends well" '[ $? = 0 ]'
has "verify --json" "$tmp/out" passed failed rows same budget mem_bytes threads chunk batch logits_hash streamed_mb
"$weir" verify "$tmp/m.gguf" --prompt-tokens 7 --steps 1 --expect 0123456789abcdef >"$tmp/out" 2>/dev/null
check "verify of a wrong hash: exit 1, counted on the last line" '[ $? = 1 ] && tail -n 1 "$tmp/out" | grep -qE "^[0-9]+ passed, [1-9][0-9]* failed$"'
"$weir" synth --seed 2 -o "$tmp/a.gguf" && "$weir" synth --seed 2 -o "$tmp/b.gguf" && "$weir" synth --seed 3 -o "$tmp/c.gguf"
check "synth: equal seeds, equal bytes; other seeds, other bytes" 'cmp -s "$tmp/a.gguf" "$tmp/b.gguf" && ! cmp -s "$tmp/a.gguf" "$tmp/c.gguf"'

# ---- tokenize
ids() { "$weir" tokenize -m "$tmp/m.gguf" "$@" 2>/dev/null; }
check "special tokens are parsed with --special only" '[ "$(printf "<|im_start|>" | ids --special | wc -w)" = 1 ] && [ "$(printf "<|im_start|>" | ids | wc -w)" -gt 1 ]'
printf 'hello' | ids --json >"$tmp/out"
has "tokenize --json" "$tmp/out" tokens
check "nothing gives nothing" '[ -z "$(ids </dev/null)" ]'
check "a NUL byte is text" '[ "$(printf "a\0b" | ids | wc -w)" = 3 ]'
for name in gpt-2 llama-spm deepseek-llm bert-bge; do
    file=$vocab/ggml-vocab-$name.gguf
    if [ ! -f "$file" ]; then
        skip "tokenize: vectors of $name" "no vocabularies under $vocab"
        continue
    fi
    # every text of the list through the program, and its ids line by line
    rm -rf "$tmp/texts" && mkdir "$tmp/texts"
    awk -v dir="$tmp/texts" 'BEGIN { RS = "\n__ggml_vocab_test__\n" } { printf "%s", $0 > sprintf("%s/%03d", dir, NR) }' "$file.inp"
    : >"$tmp/ids"
    for t in "$tmp/texts"/*; do "$weir" tokenize -m "$file" <"$t" >>"$tmp/ids" 2>/dev/null; done
    n_texts=$(wc -l <"$file.out")
    sed 's/^ *//; s/ *$//' "$file.out" >"$tmp/want"
    head -n "$n_texts" "$tmp/ids" | cmp -s - "$tmp/want" && ok "tokenize: $n_texts vectors of $name" || no "tokenize: vectors of $name differ"
done

# ---- help and the manual: each command's section names the options that its help names, and no others; each is described
for command in run chat inspect plan "plan --formula" measure verify bench pack synth tokenize runtime doctor; do
    "$weir" $command --help >"$tmp/help" 2>"$tmp/err"
    rc=$?
    check "weir $command --help" '[ $rc = 0 ] && [ ! -s "$tmp/err" ] && grep -q "^usage: weir $command" "$tmp/help"'
    awk -v c="$command" '/^\.S[sh] / { on = $0 == ".Ss weir " c } on' "$manual" >"$tmp/section"
    sed -n 's/^  *\(-\(.\), \)\{0,1\}--\([a-z0-9-]*\).*/\3 \2/p' "$tmp/help" | grep -v '^help' >"$tmp/options"
    wrong=
    while read -r long short; do
        grep -qE -- "^\.(It|Op) .*-$long( |\$)|^\.(Op )?Fl ${short:-none} " "$tmp/section" || wrong="$wrong --$long"
        grep -qE -- "^\.It Fl .*-$long( |\$)" "$manual" || wrong="$wrong --$long(undescribed)"
    done <"$tmp/options"
    for long in $(grep -E '^\.(Op|It) ' "$tmp/section" | grep -oE '(Fl|[,|]) -[a-z][a-z0-9-]*' | sed 's/.* -//' | sort -u); do
        grep -q "^$long " "$tmp/options" || wrong="$wrong --$long(not an option)"
    done
    if [ -s "$tmp/section" ] && [ -z "$wrong" ]; then ok "the manual knows weir $command and its $(wc -l <"$tmp/options") options"; else no "the manual's weir $command:$wrong"; fi
done
check "weir --version" '"$weir" --version | grep -qE "^weir [0-9]+\.[0-9]+\.[0-9]+$"'
check "weir without a command: help, exit 2" '"$weir" >"$tmp/out" 2>"$tmp/err"; [ $? = 2 ] && [ ! -s "$tmp/out" ] && grep -q "^usage" "$tmp/err"'
if command -v mandoc >/dev/null; then
    check "mandoc finds nothing to mend in the manual" '[ -z "$(mandoc -T lint -W warning "$manual" 2>&1)" ]'
else
    skip "mandoc on the manual" "no mandoc"
fi
echo "1..$n"
