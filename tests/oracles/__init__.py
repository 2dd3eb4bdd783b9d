"""Outside truth: tiny random checkpoints and what transformers answers for them.

`cases` lists the configurations, `checkpoints` draws their weights with numpy alone, `generate` asks
transformers (needs the extra `[oracle]`) and freezes the answers, `fixtures` reads the frozen answers.
"""
