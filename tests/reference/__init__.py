"""The independent model of docs/NUMERICS.md: slow, plain numpy, written from that page alone.

It shares no line, table or constant file with the C core, on purpose: when both give the same SHA-256
over the logits, two people have read the page the same way. Every float operation is one rounded float32
operation in the order of the page; whole arrays are used only across rows, heads and lanes, where no
order exists.

    quant.py      formats: 16-bit scales, f16, q8, q4, activation quantization (tiles re-exported)
    tiles.py      the byte layout of a weight matrix (16-row tiles) and its inverse
    vecmath.py    sum16, RMSNorm, exp, sigmoid, silu, rotation by an integer phase
    rope.py       fractions of a turn with 70 digits, scaling laws, exact rounding to float32
    matrix.py     one weight matrix of any kind and its product with activations
    attention.py  KV cache and attention
    model.py      the description of a model and the forward pass; the entry point

Each file lists at its head what the page left open and the reading taken here.
"""
