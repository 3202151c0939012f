#!/usr/bin/env python3
"""Writes tests/golden/dequant_<TYPE>.bin: random blocks of every weight type and their values by the `gguf` package.

Run from the root with a Python that has gguf and numpy. The seed is fixed, so the files come out the same each time.
Layout, little-endian: "WDQ1", u32 type id, u32 number of blocks, u32 number of elements, the blocks, the floats.
"""
import struct
import sys
import warnings
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

SEED = 20240611
# Where each type keeps its half-precision scales.
SCALES = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "IQ4_NL": [0], "MXFP4": [],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_XS": [0],
}
# Zeros, subnormals, smallest normal, ones, largest, infinities, NaN.
EDGES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00]


def blocks_of(name, rng):
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    count = 2 * len(EDGES) + 6 if elements == 32 else len(EDGES) + 5
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    blocks[-1] = 0
    blocks[-2] = 255
    for b in range(count - 2):
        for i, at in enumerate(SCALES[name]):
            half = int(rng.integers(0x1000, 0x4000)) | int(rng.integers(0, 2)) << 15
            if b < len(EDGES):  # each edge meets another one in the second scale
                half = EDGES[(b + 5 * i) % len(EDGES)]
            blocks[b, at : at + 2] = np.frombuffer(struct.pack("<H", half), dtype=np.uint8)
        if name == "MXFP4":
            blocks[b, 0] = [0, 1, 2, 3, 126, 127, 128, 252, 253, 254, 255][b] if b < 11 else rng.integers(90, 140)
    return blocks


def floats_of(name, rng):
    if name == "F16":
        return np.concatenate([np.array(EDGES, dtype=np.uint16), rng.integers(0, 65536, 499, dtype=np.uint16)])
    if name == "BF16":
        edges = np.array([0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0], dtype=np.uint16)
        return np.concatenate([edges, rng.integers(0, 65536, 501, dtype=np.uint16)])
    edges = np.array([0, 0x80000000, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000], dtype=np.uint32)
    return np.concatenate([edges, rng.integers(0, 1 << 32, 248, dtype=np.uint32)])


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden")
    warnings.simplefilter("ignore")  # infinity times zero is meant
    for name in ["F32", "F16", "BF16", *SCALES]:
        rng = np.random.default_rng([SEED, GGMLQuantizationType[name].value])
        data = (floats_of if name in ("F32", "F16", "BF16") else blocks_of)(name, rng)
        raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
        values = dequantize(raw.copy(), GGMLQuantizationType[name]).astype(np.float32).reshape(-1)
        head = b"WDQ1" + struct.pack("<III", GGMLQuantizationType[name].value, raw.size // size, values.size)
        assert values.size == raw.size // size * elements
        (folder / f"dequant_{name}.bin").write_bytes(head + raw.tobytes() + values.tobytes())
        print(f"{name}: {raw.size // size} blocks, {values.size} values")


main()
