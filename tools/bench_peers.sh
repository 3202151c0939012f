#!/bin/sh
# Whole models against llama.cpp, as `make bench` runs it: makes a Python environment with llama-cpp-python (which builds llama.cpp,
# about ten minutes, once), synthetic models of 1.2 B parameters, and calls bench/bench_peers.py.
# usage: tools/bench_peers.sh [BUILD]       PEERS: further peers, as bench_peers.py takes them (--peer NAME=COMMAND); BENCH_ARGS: its options
set -eu

build=${1:-build}
dir=$build/peers
python=$dir/venv/bin/python
weir=$build/weir
models=${WEIR_MODELS:-$HOME/.cache/weir/models}
tools/install_deps.sh build test
tools/get_models.sh smollm2 gemma3
mkdir -p "$dir"

if ! "$python" -c 'import llama_cpp' 2>/dev/null; then
    python3 -m venv "$dir/venv"
    # Without AMX: some virtual machines announce it and stop at its first instruction.
    flags="-DGGML_NATIVE=OFF"
    for f in avx avx2 fma f16c bmi2 avx512f:AVX512 avx512vbmi:AVX512_VBMI avx512_vnni avx512_bf16; do
        grep -qw "${f%%:*}" /proc/cpuinfo && flags="$flags -DGGML_$(echo "${f##*:}" | tr a-z A-Z)=ON"
    done
    CMAKE_ARGS="$flags -DLLAMA_BUILD_TOOLS=OFF" "$python" -m pip install -q --no-binary llama-cpp-python llama-cpp-python==0.3.36
fi

set -- "$models/SmolLM2-135M-Instruct.Q4_1.gguf" "$models/gemma3-270m-q4_k_m.gguf"
for type in Q4_0 Q4_K_M Q8_0 F16; do
    file=$dir/synthetic-1.2B-$type.gguf
    [ -f "$file" ] || "$weir" synth --arch llama --type $type --hidden 2048 --layers 22 --heads 32 --kv-heads 4 --ffn 5632 --vocab 50256 --seed 1 --ctx 16384 -o "$file"
    set -- "$@" "$file"
done
# shellcheck disable=SC2086
exec "$python" bench/bench_peers.py "$@" --weir "$build/bench/worker_weir" --peer "llama.cpp=$python bench/worker_llama_cpp.py" ${PEERS:-} ${BENCH_ARGS:-}
