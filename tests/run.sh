#!/bin/sh
# Runs test programs and scripts, each of which speaks TAP, and ends with one line: N passed, N failed, N skipped.
# usage: tests/run.sh PROGRAM...
# A program that dies or prints no result counts as one failure. A failure prints the command that replays it.
set -u
# Plans must not depend on what was measured on this machine before.
export WEIR_CACHE_FOLDER=off
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for t in "$@"; do
    start=$(date +%s)
    CMOCKA_MESSAGE_OUTPUT=TAP timeout "${WEIR_TEST_TIMEOUT:-900}" "$t" >"$log" 2>&1
    rc=$?
    p=$(grep -c '^ok ' "$log") f=$(grep -c '^not ok ' "$log") s=$(grep -ciE '^ok .*# skip' "$log")
    # cmocka counts a skipped test as "ok ... # SKIP" (1.1.6+) or "not ok ... # SKIP" (1.1.5)
    sf=$(grep -ciE '^not ok .*# skip' "$log")
    p=$((p - s)) f=$((f - sf)) s=$((s + sf))
    note=
    if [ "$f" -gt 0 ] || { [ "$rc" -ne 0 ] && [ "$rc" -ne "$sf" ]; } || [ $((p + f + s)) -eq 0 ]; then
        [ "$f" -eq 0 ] && f=1 && note=" (exit $rc without a result)"
        sed 's/^/    /' "$log"
        echo "    replay: CMOCKA_MESSAGE_OUTPUT=TAP $t"
    else
        grep -iE '^(not )?ok .*# skip' "$log" | sed 's/^/    /'
    fi
    printf '%-52s %4d passed %3d failed %3d skipped  %4d s%s\n' "$t" "$p" "$f" "$s" $(($(date +%s) - start)) "$note"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
