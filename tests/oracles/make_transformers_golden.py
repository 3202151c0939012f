"""Writes tests/golden/transformers_<case>.txt: the logits of tiny random models as Hugging Face's transformers computes them.

usage: python make_transformers_golden.py WEIR      (the built program; needs: pip install torch transformers)

The models are written by `weir synth` in F32 as Hugging Face folders (seeded: the tests write the same ones), and read by
AutoModelForCausalLM. Each file holds the synth command, the token ids, and for every position 24 logits spread over the
vocabulary, followed by the position's largest absolute logit."""
import os
import subprocess
import sys
import tempfile

import torch
import transformers

BASE = "--type F32 --hidden 64 --layers 3 --heads 4 --kv-heads 2 --ffn 160 --vocab 512 --ctx 256 --seed 7"
CASES = {
    "llama": BASE + " --arch llama",
    "llama_tied": BASE + " --arch llama --tied --kv-heads 4",
    "llama_linear": BASE + " --arch llama --rope-scaling linear",
    "llama_llama3": BASE + " --arch llama --rope-scaling llama3",
    "llama_yarn": BASE + " --arch llama --rope-scaling yarn",
    "qwen2": BASE + " --arch qwen2",
    "qwen3": BASE + " --arch qwen3 --head-dim 32",
    "gemma3": BASE + " --arch gemma3 --head-dim 32 --layers 7 --window 16 --kv-heads 1",
    "gemma3_softcap": BASE + " --arch gemma3 --head-dim 16 --layers 6 --window 16 --softcap 20",
}
N_TOKENS, N_LOGITS = 40, 24


def honour_attention_softcap():
    """Transformers' Gemma 3 reads attn_logit_softcapping but does not hand it to its attention; here it does."""
    from transformers.models.gemma3 import modeling_gemma3

    plain = modeling_gemma3.eager_attention_forward

    def capped(module, *args, **kwargs):
        return plain(module, *args, **{**kwargs, "softcap": module.attn_logit_softcapping})

    modeling_gemma3.eager_attention_forward = capped


def main():
    honour_attention_softcap()
    weir = sys.argv[1]
    golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")
    for name, options in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([weir, "synth", *options.split(), "--safetensors", "-o", folder], check=True)
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        vocab = model.config.vocab_size
        ids = [(i * 37 + 11) % vocab for i in range(N_TOKENS)]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double()
        with open(os.path.join(golden, f"transformers_{name}.txt"), "w") as f:
            print(f"# transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}; made by tests/oracles/make_transformers_golden.py", file=f)
            print("synth", options, file=f)
            print("ids", *ids, file=f)
            for row in logits:
                picks = [row[(j * vocab) // N_LOGITS].item() for j in range(N_LOGITS)]
                print("logits", *(f"{x:.7g}" for x in picks), f"{row.abs().max().item():.7g}", file=f)
        print(name, "largest logit", logits.abs().max().item())


main()
