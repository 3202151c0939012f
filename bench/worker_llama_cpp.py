"""llama.cpp as a worker of bench_peers.py (the protocol stands in worker_weir.c).

usage: python worker_llama_cpp.py MODEL THREADS CTX     needs: pip install llama-cpp-python (it builds llama.cpp)"""
import ctypes
import sys
import time

import llama_cpp as lc


class Worker:
    def __init__(self, path, threads, n_ctx):
        self.quiet = lc.llama_log_callback(lambda *a: None)  # must outlive all calls
        lc.llama_log_set(self.quiet, ctypes.c_void_p(0))
        lc.llama_backend_init()
        self.model = lc.llama_model_load_from_file(path.encode(), lc.llama_model_default_params())
        params = lc.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, 2048, 512
        params.n_threads = params.n_threads_batch = threads
        self.ctx = lc.llama_init_from_model(self.model, params)
        n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
        self.ids = [(i * 7919 + 13) % n_vocab for i in range(n_ctx)]
        self.position = 0

    def reset(self):
        lc.llama_memory_clear(lc.llama_get_memory(self.ctx), True)
        self.position = 0

    def append(self, n, at_once):
        while n > 0:
            tokens = self.ids[self.position : self.position + min(n, at_once)]
            array = (ctypes.c_int32 * len(tokens))(*tokens)
            if not tokens or lc.llama_decode(self.ctx, lc.llama_batch_get_one(array, len(tokens))) != 0:
                sys.exit("llama_decode failed")
            lc.llama_synchronize(self.ctx)
            self.position += len(tokens)
            n -= len(tokens)


def main():
    w = Worker(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    for line in sys.stdin:
        word, *n = line.split()
        start = time.perf_counter()
        if word == "reset":
            w.reset()
        else:
            w.append(int(n[0]), 2048 if word == "prefill" else 1)
        print(f"{time.perf_counter() - start:.9f}", flush=True)


main()
