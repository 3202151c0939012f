#!/bin/sh
# docs/requirements-tests.md says which test covers which requirement: each is there, runs, and cites the number in its own comment or
# in the head of its file.
. "$(dirname "$0")/tap.inc"
source=${WEIR_SOURCE_DIR:-.}
table=$source/docs/requirements-tests.md

# cites FILE TEST NUMBER: the comment before the test, the head of the file, or a comment inside has the number
cites() {
    awk -v test="$2" -v number="$3" '
        BEGIN { re = number; gsub(/\./, "\\.", re); re = "(^|[^0-9A-Z.])" re "([^0-9]|$)" }
        NR == 1 { head = 1 }
        /^\/\*/ { incomment = 1; held = "" }
        incomment { held = held " " $0 }
        /\*\/$/ { if (incomment) { incomment = 0; if (head) first = held; head = 0 } }
        $0 ~ "^static void " test "\\(" { in_test = 1; found = held " " first }
        in_test { found = found " " $0 }
        in_test && /^}/ { in_test = 0 }
        /^}/ { held = "" }
        END { exit found ~ re ? 0 : 1 }' "$1"
}

rows=0
named=0
while IFS='|' read -r _ what sim cl _; do
    number=$(echo "$what" | grep -oE '(R[0-9]+\.[0-9]+|X[0-9])' | head -n 1)
    tests=$(echo "$sim $cl" | grep -oE 'tests/[a-z]+/[a-z_]+\.c:[a-z_]+')
    [ -n "$tests" ] || continue
    rows=$((rows + 1))
    bad=
    for t in $tests; do
        file=$source/${t%%:*} name=${t#*:}
        named=$((named + 1))
        if ! grep -q "^static void $name(" "$file" 2>/dev/null || ! grep -qE "cmocka_unit_test[a-z_]*\($name[,)]" "$file"; then
            bad="$bad $t is gone;"
        elif [ -n "$number" ] && ! cites "$file" "$name" "$number"; then
            bad="$bad $t does not cite $number;"
        fi
    done
    [ -z "$bad" ] || no "$(echo $what):$bad"
done <"$table"
[ "$rows" -gt 50 ] && [ "$named" -gt 90 ] && ok "$named tests cover $rows rows" || no "the table has $rows rows and $named tests"
# Every number of the manager's requirements has a row.
missing=
for r in 2.1 2.2 2.3 2.4 2.5 3.1 3.2 3.3 3.4 3.5 3.6 3.7 4.1 4.2 4.3 4.4 4.5 4.6 5.1 5.2 5.3 5.4 5.5 5.6 5.7 5.8 6.1 6.2 6.3 6.4 6.5 \
    7.1 7.2 7.3 7.4 7.5 7.6 8.1 8.2 8.3 8.4 9.1 9.2 9.3 11.1 11.2 12.1 12.2 15.2 15.3; do
    grep -qE "R$(echo $r | sed 's/\./\\./')([^0-9]|\$)" "$table" || missing="$missing R$r"
done
[ -z "$missing" ] && ok "each requirement is in the table" || no "not in the table:$missing"
echo "1..$n"
