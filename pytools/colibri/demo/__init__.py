"""The demo model: its corpus, its held-out split, its training and its evaluation.

Nothing in here is needed to run the demo; it exists so that the shipped model can be made again and judged.
The corpus modules need only the standard library; `train`, `model` and `quantize` need torch and
transformers.
"""
