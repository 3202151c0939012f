#!/bin/sh
# plan and inspect of models on a server: by their headers only, the same figures as of the file, and clear errors from servers that
# are slow, wrong or hostile. Only the loopback is used. TAP on standard output.
. "$(dirname "$0")/tap.inc"
here=$(dirname "$0")

check() { if eval "$2"; then ok "$1"; else no "$1"; fi; }

tiny llama Q8_0 "$tmp/m.gguf" --vocab 8000 || no "synth"
"$weir" plan http://127.0.0.1:9/m.gguf --mem 64MiB >/dev/null 2>"$tmp/err"
rc=$?
if ! command -v python3 >/dev/null || grep -q "needs libcurl" "$tmp/err"; then
    skip "models on a server" "python3 or libcurl is missing"
    echo "1..$n"
    exit 0
fi
check "nobody listens: exit 1, the address and the reason" '[ $rc = 1 ] && grep -q "127.0.0.1:9.*network failed" "$tmp/err"'

mkdir "$tmp/files"
cp "$tmp/m.gguf" "$tmp/files/m.gguf"
"$weir" synth --arch llama --type F16 --hidden 256 --layers 3 --heads 4 --kv-heads 2 --ffn 512 --vocab 1000 --ctx 512 --safetensors -o "$tmp/files/hf" || no "synth safetensors"
# a header whose array ends far behind any header's length
printf 'GGUF\003\000\000\000\001\000\000\000\000\000\000\000\001\000\000\000\000\000\000\000\001\000\000\000\000\000\000\000x\011\000\000\000\000\000\000\000\000\000\000\000\000\001\000\000' >"$tmp/files/endless.gguf"
head -c 200000 /dev/zero >>"$tmp/files/endless.gguf"
servers=
trap 'kill $servers 2>/dev/null; rm -rf "$tmp"' EXIT
# serve PORT_FILE [CERTIFICATE KEY]
serve() {
    out=$1
    shift
    python3 "$here/range_server.py" "$tmp/files" "$tmp/log" "$@" >"$out" 2>/dev/null &
    servers="$servers $!" tries=0
    while [ ! -s "$out" ] && [ $tries -lt 100 ]; do tries=$((tries + 1)); sleep 0.1; done
}
serve "$tmp/port"
base=http://127.0.0.1:$(cat "$tmp/port")
unset http_proxy HTTP_PROXY https_proxy HTTPS_PROXY all_proxy ALL_PROXY SSL_CERT_FILE
plan="$weir plan --mem 9MiB --ctx 64 --no-rates --json --set memory.process=3MiB --set io.remote_timeout=2 --set io.probe=off"

# ---- what works
$plan "$tmp/m.gguf" >"$tmp/here" 2>/dev/null
$plan "$base/ok/m.gguf" >"$tmp/there" 2>"$tmp/err"
# same A B: plans that agree in all but the length of names
same() {
    for key in fits prefill_chunk weights.resident kv activations workspace tokenizer; do
        [ -n "$(field $key "$1")" ] && [ "$(field $key "$1")" = "$(field $key "$2")" ] || return 1
    done
    d=$(($(field planned_peak_bytes "$1") - $(field planned_peak_bytes "$2")))
    [ $d -lt 4096 ] && [ $d -gt -4096 ]
}
check "the plan of an address is that of the file" 'grep -q "\"fits\": true" "$tmp/here" && same "$tmp/here" "$tmp/there"'
cp "$tmp/here" "$tmp/a"
sent=$(awk '{ n += $1 } END { print n }' "$tmp/log") size=$(wc -c <"$tmp/m.gguf")
check "it costs the header, not the weights: $sent of $size bytes" '[ "$sent" -gt 1000 ] && [ "$sent" -lt $((size / 4)) ]'
"$weir" inspect "$tmp/m.gguf" --all 2>/dev/null | grep -v "m\.gguf" >"$tmp/here"
"$weir" inspect "$base/ok/m.gguf" --all 2>"$tmp/err" | grep -v "m\.gguf" >"$tmp/there"
check "inspect too" '[ -s "$tmp/here" ] && cmp -s "$tmp/here" "$tmp/there"'
for how in "redirect/3/m.gguf" "pieces/m.gguf" "ok/m.gguf?download=true"; do
    $plan "$base/$how" >"$tmp/there" 2>"$tmp/err"
    check "plan of $how" '[ $? = 0 ] && same "$tmp/a" "$tmp/there"'
done
$plan "$tmp/files/hf" >"$tmp/here" 2>/dev/null
for how in "ok/hf/model.safetensors" "ok/hf"; do
    $plan "$base/$how" >"$tmp/there" 2>"$tmp/err"
    check "safetensors, $how" '[ $? = 0 ] && same "$tmp/here" "$tmp/there"'
done
"$weir" plan --formula "$base/ok/m.gguf" --ctx 512 --json >"$tmp/there" 2>"$tmp/err"
check "plan --formula of an address" '[ "$(field kv_bytes "$tmp/there")" = $((3 * 2 * 2 * 64 * 2 * 512)) ]'

# ---- what must be refused: how it is asked, status, message
refused() { # PATH PATTERN
    start=$(date +%s) pattern=$2
    $plan "$base/$1" >"$tmp/out" 2>"$tmp/err"
    rc=$? took=$(($(date +%s) - start))
    check "$1: exit 1, nothing on standard output, '$2'" '[ $rc = 1 ] && [ ! -s "$tmp/out" ] && grep -q "$pattern" "$tmp/err" && [ $took -lt 60 ]'
}
refused plain/m.gguf "no ranges"
refused ok/none.gguf "no such file (status 404)"
refused forbidden/m.gguf "wants a login or refuses (status 403)"
refused broken/m.gguf "status 500"
refused loop/m.gguf "redirects more than 5 times"
refused redirect/6/m.gguf "redirects more than 5 times"
refused away/m.gguf "redirects to an address that is not followed"
refused other/m.gguf "another range"
refused longer/m.gguf "another range"
refused unsaid/m.gguf "another range"
refused absurd/m.gguf "another range"
refused grows/m.gguf "changed between two requests"
refused tags/m.gguf "changed between two requests"
refused headers/m.gguf "headers are longer"
refused short/m.gguf "the network failed"
refused more/m.gguf "sends more than the"
refused silent/m.gguf "io.remote_timeout"
refused slow/m.gguf "io.remote_timeout"
refused ok/endless.gguf "incomplete"
refused huge/endless.gguf "goes on behind 256 MiB"
refused ok/hf/config.json "not a model"
for bad in "http://" "http://user:pw@127.0.0.1/m.gguf" "http://127.0.0.1/a b.gguf"; do
    "$weir" plan "$bad" --mem 6MiB >"$tmp/out" 2>"$tmp/err"
    check "the address '$bad': exit 2" '[ $? = 2 ] && [ -s "$tmp/err" ] && ! grep -q ":pw" "$tmp/err"'
done
"$weir" plan "$base/ok/m.gguf" --mem 6MiB --set io.remote_timeout=0 >/dev/null 2>"$tmp/err"
check "a timeout that is none: exit 2" '[ $? = 2 ] && grep -q "io.remote_timeout" "$tmp/err"'

# ---- https
# sign NAME SUBJECT_ALT_NAME [OPENSSL ARGS]: a key and a certificate of the authority
sign() {
    out=$tmp/$1
    printf 'subjectAltName = %s\n' "$2" >"$out.ext"
    shift 2
    openssl req -newkey rsa:2048 -nodes -keyout "$out.key" -subj /CN=server -out "$out.csr" 2>/dev/null &&
        openssl x509 -req -in "$out.csr" -CA "$tmp/ca.pem" -CAkey "$tmp/ca.key" -CAcreateserial -days 2 -extfile "$out.ext" "$@" -out "$out.pem" 2>/dev/null
}
if ! command -v openssl >/dev/null; then
    skip "models on an https server" "openssl is missing"
elif ! openssl req -x509 -newkey rsa:2048 -nodes -keyout "$tmp/ca.key" -subj "/CN=weir test" -days 2 -out "$tmp/ca.pem" 2>/dev/null ||
    ! sign good DNS:localhost || ! sign wrong DNS:elsewhere.invalid; then
    no "certificates could not be made"
else
    serve "$tmp/tls" "$tmp/good.pem" "$tmp/good.key"
    serve "$tmp/tls2" "$tmp/wrong.pem" "$tmp/wrong.key"
    plain=$base tls=$(cat "$tmp/tls") base=https://localhost:$(cat "$tmp/tls")
    refused ok/m.gguf "certificate is not trusted: .*the certificates of the system.*io.ca_file"
    bare=$plan plan="$plan --set io.ca_file=$tmp/ca.pem"
    for how in ok/m.gguf redirect/3/m.gguf pieces/m.gguf "jump/https/$tls/ok/m.gguf"; do
        $plan "$base/$how" >"$tmp/there" 2>"$tmp/err"
        check "https, plan of $how, its authority in io.ca_file" '[ $? = 0 ] && same "$tmp/a" "$tmp/there"'
    done
    SSL_CERT_FILE=$tmp/ca.pem $bare "$base/ok/m.gguf" >"$tmp/there" 2>"$tmp/err"
    check "https, its authority in SSL_CERT_FILE" '[ $? = 0 ] && same "$tmp/a" "$tmp/there"'
    WEIR_IO_CA_FILE=$tmp/ca.pem "$weir" plan --formula "$base/ok/m.gguf" --ctx 512 --json >"$tmp/there" 2>"$tmp/err"
    check "https, plan --formula" '[ "$(field kv_bytes "$tmp/there")" = $((3 * 2 * 2 * 64 * 2 * 512)) ]'
    $plan "$plain/jump/https/$tls/ok/m.gguf" >"$tmp/there" 2>"$tmp/err"
    check "a redirect from http to https is followed" '[ $? = 0 ] && same "$tmp/a" "$tmp/there"'
    refused "jump/http/${plain##*:}/ok/m.gguf" "redirects to an address that is not followed (from https only https is)"
    refused plain/m.gguf "no ranges"
    refused longer/m.gguf "another range"
    refused short/m.gguf "the network failed"
    refused more/m.gguf "sends more than the"
    refused silent/m.gguf "io.remote_timeout"
    base=https://127.0.0.1:$tls
    refused ok/m.gguf "certificate is not trusted: .*ca.pem"
    base=https://localhost:$(cat "$tmp/tls2")
    refused ok/m.gguf "certificate is not trusted: .*ca.pem"
    base=https://localhost:${plain##*:}
    refused ok/m.gguf "the network failed"
    base=http://localhost:$tls
    refused ok/m.gguf "network failed\|status"
    base=https://localhost:$tls
    for file in "$tmp/none.pem" "$tmp/m.gguf"; do
        $bare --set io.ca_file="$file" "$base/ok/m.gguf" >"$tmp/out" 2>"$tmp/err"
        rc=$?
        check "io.ca_file=${file##*/}, which holds no certificates: exit 1, named" '[ $rc = 1 ] && [ ! -s "$tmp/out" ] && grep -q "${file##*/} cannot be read.*io.ca_file" "$tmp/err"'
    done
    base=$plain plan=$bare
fi

# ---- weights stay where they are
for command in "run -p x -m" "bench" "verify" "pack"; do
    : >"$tmp/log"
    # shellcheck disable=SC2086
    "$weir" $command "$base/ok/m.gguf" $([ "$command" = pack ] && echo "$tmp/p.gguf") >"$tmp/out" 2>"$tmp/err" </dev/null
    rc=$? sent=$(awk '{ n += $1 } END { print n + 0 }' "$tmp/log")
    check "$command of an address: refused, only headers were read" '[ $rc != 0 ] && cat "$tmp/out" "$tmp/err" | grep -q "only headers are read" && [ "$sent" -lt $((size / 4)) ] && [ ! -e "$tmp/p.gguf" ]'
done
echo "1..$n"
