"""`colibri run`: continue a text, a chat message or a list of token ids."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import placement, targets
from .. import saved as saves
from ..blobfile import BlobFile
from ..chat import render, special_tokens
from ..engine import Info, Limits, Model, Sampling, Session
from ..errors import InputError, InternalError, UsageError
from ..generation import Request, generate
from ..jobs import Job, JobResult, fetched
from ..limits import HINT_NAMES
from ..output import Output
from ..text import decode, encode
from ..trace import Trace, expert_layers, feed_of
from ..written import write_whole
from .common import (
    IN_PLACE,
    blob_argument,
    describe,
    limit_options,
    limits_of,
    natural,
    positive,
    read_text,
    sampling_of,
    sampling_options,
    save_options,
    store_options,
    token_file,
)
from .run_experts import expert_options, keep_records, recorded, use_profile

Swaps = list[tuple[int, int, Model]]  # layer, expert, the file that has another
EXAMPLES = (
    "colibri run model.colibri -p 'Once upon a time' -n 60 --ram 900MB",
    "colibri run model.colibri --chat -p 'What is the capital of France?' --target wasm --json",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    blob_argument(parser)
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt")
    prompt.add_argument("--prompt-file", type=Path, metavar="FILE", help="the prompt as a file")
    prompt.add_argument(
        "--tokens",
        type=Path,
        metavar="FILE",
        help="the prompt as a JSON list of token ids, or a document of `run --json` to replay",
    )
    parser.add_argument(
        "--chat", action="store_true", help="the prompt is a message: use the model's chat template"
    )
    parser.add_argument("--system", metavar="TEXT", help="with --chat: a system message before it")
    parser.add_argument(
        "-n",
        "--count",
        type=natural,
        default=128,
        metavar="N",
        help="most tokens to generate; 0: only feed the prompt (default 128)",
    )
    sampling_options(parser)
    limit_options(parser)
    expert_options(parser)
    parser.add_argument(
        "--no-digest", action="store_true", help="do not hash the logits: a faster prompt and a smaller pool"
    )
    parser.add_argument(
        "--log-routing",
        type=Path,
        metavar="FILE",
        help="write the chosen experts of every position and layer, one JSON line each",
    )
    parser.add_argument(
        "--swap",
        action="append",
        default=[],
        metavar="L:E=FILE",
        help="replace expert E of layer L by that of another .colibri file before the run; may be repeated. The "
        "identity in the answer is that of the changed model",
    )
    parser.add_argument(
        "--swap-log", type=Path, metavar="FILE", help="write what was replaced, one JSON line each"
    )
    parser.add_argument(
        "--time-limit",
        type=positive,
        default=int(targets.TIME_LIMIT),
        metavar="SECONDS",
        help="of a run on another target than linux (default %(default)s)",
    )
    save_options(parser)
    parser.add_argument(
        "--target", default="linux", metavar="NAME", help="where it runs; `colibri targets` lists them"
    )
    store_options(parser)


def run(options: argparse.Namespace, output: Output) -> int:
    """Prepare the prompt, run it here or on a target, print."""
    model = Model.open(options.blob)
    info, blob = model.info(), describe(model)
    if options.chat and options.tokens:
        raise UsageError("--chat needs a text: give -p or --prompt-file instead of --tokens")
    if options.system is not None and not options.chat:
        raise UsageError("--system is a chat message: add --chat")
    if options.chat and options.restore:
        raise UsageError("--chat begins a conversation: go on with one by `colibri chat --restore`")
    if not info.tokenizer_bytes and not options.tokens:
        raise InputError(f"{options.blob}: the file has no tokenizer; give token ids with --tokens")
    target = targets.pick([options.target])
    if len(target) != 1:
        raise UsageError("--target all: run answers on one target; `colibri verify` compares them")
    place = placement.one_place(options.target, options.store, options.slots, options.ram, options.look_ahead)
    text = "" if options.tokens else prompt_text(options, model, blob)
    tokens = token_file(options.tokens, info.vocab) if options.tokens else []
    limits = limits_of(
        options,
        info,
        len(text.encode("utf-8", "surrogateescape")),
        logit_rows=1 if options.no_digest else options.batch,
        top_k=options.experts_per_token,
        skip_below=options.skip_below,
        **IN_PLACE,
    )
    swaps = swaps_of(options.swap)
    if swaps and options.target != "linux":
        raise UsageError(f"--swap works on target linux; `colibri verify` compares a whole file on {options.target}")
    limits = replace(limits, swaps=len(swaps))
    ends = [*model.end_tokens(), *options.end]
    sampling = sampling_of(options)
    if options.target == "linux":
        document = run_here(options, model, limits, place, (text, tokens), ends, sampling, output, swaps)
    else:
        document = run_there(options, target[0], model, limits, place, (text, tokens), ends, sampling, output)
    answer_of = {"model": info.identity, "lossy": limits.lossy or None, "target": options.target}
    document = {**answer_of, **document}
    write_routes(options, document.pop("routes"), output)
    write_lines(options.swap_log, document.get("swaps", []), "experts replaced", output)
    output.document(document)
    tell(document, info, output)
    return 0


def prompt_text(options: argparse.Namespace, model: Model, blob: Any) -> str:
    """The text to encode: as given, or through the chat template."""
    text = options.prompt if options.prompt is not None else read_text(options.prompt_file)
    if not options.chat:
        return text
    messages = [{"role": "system", "content": options.system}] if options.system is not None else []
    messages.append({"role": "user", "content": text})
    return chat_text(model, blob, messages)


def chat_text(model: Model, blob: Any, messages: list[dict[str, str]]) -> str:
    """Messages through the model's template. The special tokens' texts come from the core's decoder."""
    with Session(model, Limits(context=1, batch=1, text_bytes=64)) as session:
        tokens = special_tokens(session, blob.section("TOKENIZER"))
    return render(blob.chat_template(), messages, tokens, str(model.path))


def run_here(
    options: argparse.Namespace,
    model: Model,
    limits: Limits,
    place: placement.Place,
    prompt: tuple[str, list[int]],
    ends: list[int],
    sampling: Sampling,
    output: Output,
    swaps: Swaps,
) -> dict[str, Any]:
    """In this process, with text as it comes."""
    text, tokens = prompt
    limits = placement.limits_at(place, model, limits, options.slots, options.ram, options.look_ahead)
    layers = expert_layers(BlobFile(model.path), limits.top_k)
    trace = Trace(model.info().identity, layers) if recorded(options) else None
    with Session(model, limits, storage=place.storage) as session:
        for layer, expert, source in swaps:
            session.swaps.put(layer, expert, source)
        identity = limits.identity(session.swaps.identity())
        before = use_profile(options, session, trace, output)
        earlier = saves.restore_file(options.restore, session).ids if options.restore else []
        cached = session.length()
        ids = earlier + (tokens or encode(session, text, special=True, bos=not (options.chat or earlier)))
        if len(ids) == cached:
            raise UsageError("nothing to feed: the prompt is empty, and all that was saved has been fed")
        request = Request(
            ids, options.count, sampling, ends, options.stop, not options.no_digest, bool(options.log_routing),
            cached=cached,
        )
        if trace:
            request.watch = lambda rows: trace.feeds.append(feed_of(session, trace.layers, rows))
        answer = generate(session, request, output.piece)
        stats = session.stats()
        if options.save:
            size = saves.write_file(options.save, session, ids + answer.tokens, [])
            output.note(f"{options.save}: {len(ids) + len(answer.tokens)} tokens in {size:,} bytes")
        output.piece("\n" if answer.text and not answer.text.endswith("\n") else "")
    keep_records(options, trace, before, output)
    return {
        "identity": identity,
        "swaps": session.swaps.document(),
        "text": answer.text,
        "tokens": answer.tokens,
        "digest": answer.digest or None,
        "prompt_tokens": len(ids),
        "prompt_ids": ids,
        "restored": cached,
        "finish": answer.finish,
        "seconds_prefill": answer.seconds_prefill,
        "seconds_decode": answer.seconds_decode,
        "kernel": session.kernel,
        "threads": limits.workers,
        "planned_bytes": session.plan.pool_bytes,
        "used_bytes": stats.pool_used,
        "store": session.store.kind if session.store else place.name,
        "slots": session.plan.slots,
        "routes": answer.routes,
        "experts": {
            "hits": stats.expert_hits,
            "misses": stats.expert_misses,
            "bytes_read": stats.expert_bytes_fetched,
            **{name: getattr(stats, name) for name in HINT_NAMES},
        },
    }


def run_there(
    options: argparse.Namespace,
    target: targets.Target,
    model: Model,
    limits: Limits,
    place: placement.Place,
    prompt: tuple[str, list[int]],
    ends: list[int],
    sampling: Sampling,
    output: Output,
) -> dict[str, Any]:
    """As a job on another target; the text comes when it is finished."""
    for name in ("trace", "profile", "save", "restore"):
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')} works on target linux; leave it out on {target.name}")
    if options.stop:
        raise UsageError(f"--stop works on target linux; on {target.name} end the text with --end ID or -n")
    text, tokens = prompt
    reader, apart = limits, place.streamed and not target.name.startswith("linux")
    if apart:  # texts lie behind the experts: they stay with the file, here
        limits = replace(limits, text_bytes=0)
        tokens = tokens or read_here(model, reader, text, not options.chat)
    limits = placement.limits_at(place, model, limits, options.slots, options.ram, options.look_ahead)
    job = Job(
        f"run {options.blob.name}",
        limits,
        tokens,
        text,
        options.count,
        sampling,
        ends,
        special=True,
        bos=not options.chat,
        digest=not options.no_digest,
        routing=bool(options.log_routing),
        **place.job(),
    )
    output.detail(f"{target.name}: {job.name}")
    result = target.run(job, model, options.time_limit)
    if result.error:
        raise result.error
    for sentence in result.bad_checks():
        output.note(sentence)
    if apart and reader.text_bytes:
        result.text = write_here(model, reader, [token for token in result.tokens.get(0, []) if token not in ends])
    output.piece(result.text + ("\n" if result.text and not result.text.endswith("\n") else ""))
    for layer, expert, offset in result.again:
        output.note(f"{fetched(layer, expert, offset)} could not be had, and were asked for again")
    identity = result.identity or model.info().identity
    if identity != limits.identity(model.info().identity):
        raise InternalError(f"target {target.name}: it answered as {identity}, not as what was asked for")
    return {"identity": identity, **document_of(result), "store": place.name, "slots": limits.slots}


def text_limits(limits: Limits) -> Limits:
    """Of a session that reads and writes text, and never runs."""
    return Limits(context=limits.context, batch=1, text_bytes=limits.text_bytes)


def read_here(model: Model, limits: Limits, text: str, bos: bool) -> list[int]:
    """A prompt's ids."""
    with Session(model, text_limits(limits)) as session:
        return encode(session, text, special=True, bos=bos)


def write_here(model: Model, limits: Limits, tokens: list[int]) -> str:
    """An answer's text."""
    with Session(model, text_limits(limits)) as session:
        return decode(session, tokens)


def document_of(result: JobResult) -> dict[str, Any]:
    """A job's result as run's document."""
    return {
        "text": result.text,
        "tokens": result.tokens.get(0, []),
        "digest": result.digest or None,
        "prompt_tokens": len(result.prompt),
        "prompt_ids": result.prompt,
        "finish": result.finish.get(0, ""),
        "seconds_prefill": result.seconds_prefill,
        "seconds_decode": result.seconds_decode,
        "kernel": result.kernel,
        "threads": result.threads,
        "planned_bytes": result.planned_bytes,
        "used_bytes": result.used_bytes,
        "routes": result.routes,
        "experts": {
            "hits": result.stats.get("expert_hits", 0),
            "misses": result.stats.get("expert_misses", 0),
            "bytes_read": result.stats.get("expert_bytes_fetched", 0),
            **{name: result.stats.get(name, 0) for name in HINT_NAMES},
        },
    }


def write_routes(options: argparse.Namespace, routes: list[dict[str, Any]], output: Output) -> None:
    """--log-routing."""
    plain = [{key: value for key, value in route.items() if key != "lane"} for route in routes]
    write_lines(options.log_routing, plain, "choices of experts", output)


def write_lines(path: Path | None, entries: list[dict[str, Any]], what: str, output: Output) -> None:
    """A list as JSON lines, where that is wanted."""
    if path is None:
        return
    write_whole(path, [json.dumps(entry).encode() + b"\n" for entry in entries])
    output.note(f"{path}: {len(entries)} {what}")


def swaps_of(words: list[str]) -> Swaps:
    """--swap: layer, expert and the file that has another."""
    found = []
    for word in words:
        place, _, path = word.partition("=")
        layer, _, expert = place.partition(":")
        if not (layer.isdecimal() and expert.isdecimal() and path):
            raise UsageError(f"--swap {word}: expected LAYER:EXPERT=FILE such as 3:0=other.colibri")
        found.append((int(layer), int(expert), Model.open(path)))
    return found


def tell(document: dict[str, Any], info: Info, output: Output) -> None:
    """Numbers on the side."""
    if document["lossy"]:
        output.result(f"[not the model's own answer: {document['lossy']}; identity {document['identity']}]")
    made, seconds = len(document["tokens"]), document["seconds_decode"]
    prefill = "" if document["seconds_prefill"] is None else f" in {document['seconds_prefill']:.2f} s"
    decoding = "" if seconds is None else f" in {seconds:.2f} s"
    rate = f", {(made - 1) / seconds:.1f} tokens per second" if made > 1 and seconds else ""
    output.note(
        f"{document['prompt_tokens']} prompt tokens{prefill}, {made} tokens{decoding}{rate}; finish "
        f"{document['finish']}; kernel {document['kernel']}, {document['threads']} thread(s); "
        f"pool {document['used_bytes']:,} bytes"
    )
    if document["digest"]:
        lossy = f" ({document['lossy']})" if document["lossy"] else ""
        output.note(f"digest {document['digest']}{lossy}")
