"""What stands beside a checkpoint's weights and travels with them: tokenizer, chat template, defaults."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from .description import record
from .errors import ConvertError
from .library import values
from .source import Source
from .tables import pack_struct


def _tokenizer(source: Source, settings: dict[str, Any], vocab: int) -> bytes:
    from .tokenizer import build_tokenizer_section

    path = source.subject("tokenizer.json")
    document = source.document("tokenizer.json", needed=False, fraction=float)
    if not document:
        raise ConvertError(
            f"{path}: is missing; fetch it, or give --no-tokenizer for a blob that takes token ids only"
        )
    entries = document.get("model", {}).get("vocab", {})
    ids = list(entries.values()) if isinstance(entries, dict) else list(range(len(entries)))
    ids += [token.get("id") for token in document.get("added_tokens") or []]
    highest = max((i for i in ids if isinstance(i, int)), default=-1)
    if highest >= vocab:
        raise ConvertError(
            f"{path}: has a token with id {highest}, config.json says vocab_size {vocab}; tokenizer and "
            "weights do not belong together"
        )
    return build_tokenizer_section(document, settings)


def _chat_template(source: Source, settings: dict[str, Any]) -> str:
    """chat_template.jinja, else the (default) template of tokenizer_config.json."""
    if (own := source.small("chat_template.jinja")) is not None:
        try:
            return own.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConvertError(
                f"{source.subject('chat_template.jinja')}: is not UTF-8 ({error.reason} at byte "
                f"{error.start}); fetch it again"
            ) from None
    template = settings.get("chat_template") or ""
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default") or ""
    if not isinstance(template, str):
        raise ConvertError(
            f"{source.subject('tokenizer_config.json')}: chat_template is neither a text nor a list with a "
            "default; fetch it again"
        )
    return template


def _ids(document: dict[str, Any], key: str, vocab: int, subject: str) -> list[int]:
    value = document.get(key)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    for one in listed:
        if not isinstance(one, int) or isinstance(one, bool) or not 0 <= one < vocab:
            raise ConvertError(f"{subject}: {key} is {one!r}; expected a token id below {vocab}")
    return listed


_SAMPLING = {
    "temperature": ("TEMPERATURE", 0, None),
    "top_k": ("TOP_K", 0, None),
    "top_p": ("TOP_P", 0, 1),
    "min_p": ("MIN_P", 0, 1),
    "repetition_penalty": ("REPETITION", 0, None),
}


def generation_records(source: Source, config: dict[str, Any], vocab: int) -> bytes:
    """End ids of both files; sampling defaults only where generation_config.json says that it samples."""
    path, main = source.subject("generation_config.json"), source.subject("config.json")
    settings = source.document("generation_config.json", needed=False)
    pairs: list[tuple[str, Any]] = []
    ends = set(_ids(settings, "eos_token_id", vocab, path))
    ends |= set(_ids(config, "eos_token_id", vocab, main))
    pairs += [("END", end) for end in sorted(ends)]
    begins = _ids(settings, "bos_token_id", vocab, path) or _ids(config, "bos_token_id", vocab, main)
    pairs += [("BOS", begin) for begin in begins[:1]]
    for name, (key, low, high) in _SAMPLING.items() if settings.get("do_sample") is True else ():
        value = settings.get(name)
        if value is None:
            continue
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, Decimal))
            or value < low
            or (high and value > high)
        ):
            raise ConvertError(
                f"{path}: {name} is {value!r}; expected a number from {low}"
                + (f" to {high}" if high else " on")
            )
        pairs.append((key, int(value) if key == "TOP_K" else float(value)))
    order = values("colibri_generation_key")
    rows = [
        record("colibri_generation_key", key, value)
        for key, value in sorted(pairs, key=lambda p: order[p[0]])
    ]
    return b"".join(pack_struct("record", **row) for row in rows)


def texts_of(source: Source, config: dict[str, Any], tokenizer: bool, vocab: int) -> dict[str, bytes]:
    """The small sections of a blob by name."""
    texts = {"GENERATION": generation_records(source, config, vocab)}
    if tokenizer:
        settings = source.document("tokenizer_config.json", needed=False, fraction=float)
        texts["TOKENIZER"] = _tokenizer(source, settings, vocab)
        texts["CHAT_TEMPLATE"] = _chat_template(source, settings).encode()
    return texts
