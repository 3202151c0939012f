#!/bin/sh
# The house rules that a machine can check. Prints each breach; exit 1 when there is one.
#   layers      a folder includes only what stands above it, and of another folder only its one public header
#   lengths     files up to 1,000 lines, functions up to 100
#   banned      raw allocation, files, exit and printing outside their folders
#   names       file names unique in the tree
#   format      clang-format
#   cppcheck    static analysis
set -u
cd "$(dirname "$0")/.."
bad=$(mktemp)
trap 'rm -f "$bad"' EXIT

sources() { git ls-files -co --exclude-standard -- 'src/*.[ch]' 'include/*.h' 'tests/*.[ch]' 'bench/*.[ch]' 'examples/*.[ch]' | while read -r f; do [ -f "$f" ] && echo "$f"; done; }

# ---- layers: folder, level, public header
layers="base:0:base/base.h formats:1:formats/formats.h kernels:1:kernels/kernels.h devices:2:devices/device.h memory:3:memory/memory.h
graph:4:graph/graph.h engines:5:engines/lm/lm.h runtime:6:- cli:7:- server:7:-"
git ls-files -co --exclude-standard -- 'src/*.[ch]' | while read -r f; do [ -f "$f" ] && grep -nE '^#include "' "$f" | sed "s|^|$f:|"; done |
    awk -v table="$layers" -F: '
    BEGIN { n = split(table, t, /[ \n]+/); for (i = 1; i <= n; i++) { split(t[i], e, ":"); level[e[1]] = e[2]; header[e[3]] = e[1] } 
            allow["graph"]="base devices memory"; allow["devices"]="base kernels"; allow["memory"]="base devices"; allow["formats"]="base"; allow["kernels"]="base"; allow["base"]="" }
    {
        split($1, part, "/"); from = part[2]; inc = $3; sub(/^#include "/, "", inc); sub(/".*/, "", inc)
        if (inc ~ /^weir\//) { if (from != "base" && from != "runtime" && from != "cli" && from != "server" && inc != "weir/status.h" && inc != "weir/kernel.h") print $1 ":" $2 ": layer: only runtime and programs include " inc; next }
        if (inc !~ /\//) next
        split(inc, p2, "/"); to = p2[1]
        if (to == from) next
        if (!(to in level)) next
        if (from == "cli" || from == "server") { print $1 ":" $2 ": layer: programs include only weir/ headers, not " inc; next }
        if (header[inc] == "") { print $1 ":" $2 ": layer: " inc " is not the public header of " to; next }
        if (level[to] >= level[from]) { print $1 ":" $2 ": layer: " from " (level " level[from] ") must not include " inc; next }
        if (from in allow && index(" " allow[from] " ", " " to " ") == 0) print $1 ":" $2 ": layer: " from " may include only: " allow[from]
    }' >>"$bad"

# ---- lengths (the format puts a function braces alone in column 1)
sources | while read -r f; do
    awk -v f="$f" '
        /^{/ { start = NR } /^}/ { if (start && NR - start > 100) print f ":" start ": function of " NR - start " lines (100 at most)"; start = 0 }
        END { if (NR > 1000) print f ": file of " NR " lines (1,000 at most)" }' "$f"
done >>"$bad"

# ---- banned calls; an exception carries "check: allow" in a comment on its line
calls() { # PATTERN  WHERE-ALLOWED  TEXT
    git ls-files -co --exclude-standard -- 'src/*.[ch]' | grep -vE "$2" | while read -r f; do [ -f "$f" ] && grep -nE "(^|[^a-zA-Z0-9_.>])($1)[[:space:]]*\(" "$f" |
        grep -v 'check: allow' | grep -vE '^[0-9]+:[[:space:]]*(\*|/\*|//)' | sed "s|^|$f:|;s|\$|  <- banned: $3|"; done
}
calls 'malloc|calloc|realloc|free|strdup|strndup|aligned_alloc|posix_memalign|mmap|munmap' '^src/(base|cli)/' 'use base_alloc' >>"$bad"
calls 'fopen|open|openat|read|pread|mkstemp|fread|fgets' '^src/(base|cli)/' 'use base_file' >>"$bad"
calls 'exit|_exit|abort|assert' '^src/cli/' 'the library never exits' >>"$bad"
calls 'printf|puts|putchar|perror|fprintf|vprintf' '^src/cli/' 'the library never prints' >>"$bad"
calls 'getenv|secure_getenv' '^src/base/base_settings.c|^src/cli/' 'settings only' >>"$bad"
calls 'strcpy|strcat|sprintf|vsprintf|gets|strtok|atoi|atol|atof' '^$' 'unsafe' >>"$bad"

# ---- names
sources | sed 's|.*/||' | sort | uniq -d | sed 's/$/: file name used twice/' >>"$bad"

# ---- format
if command -v clang-format >/dev/null; then
    sources | xargs clang-format --dry-run 2>&1 | grep -E 'warning:' | cut -d: -f1 | sort | uniq -c | awk '{ print $2 ": not formatted (" $1 " places): clang-format -i" }' >>"$bad"
else
    echo "check: clang-format is missing" >>"$bad"
fi

# ---- static analysis
if [ "${1:-}" != --quick ]; then
    cppcheck --quiet --template='{file}:{line}: cppcheck {id}: {message}' --std=c11 --enable=warning,portability --inline-suppr --suppress=missingIncludeSystem --suppress=invalidPointerCast --suppress=checkersReport \
        --suppress=normalCheckLevelMaxBranches -D__x86_64__ -j2 -Isrc -Iinclude --error-exitcode=1 src 2>>"$bad" || true
fi

if [ -s "$bad" ]; then
    cat "$bad"
    echo "check: $(grep -c . "$bad") lines to mend"
    exit 1
fi
echo "check: layers, lengths, banned calls, names, format, cppcheck: fine"
