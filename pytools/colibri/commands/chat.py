"""`colibri chat`: talk with a model, line by line."""

from __future__ import annotations

import argparse
import sys

from .. import placement
from .. import saved as saves
from ..engine import Model, Session
from ..errors import InputError, UsageError
from ..generation import Request, generate
from ..output import Output
from ..text import encode
from .common import (
    IN_PLACE,
    blob_argument,
    describe,
    limit_options,
    limits_of,
    natural,
    sampling_of,
    sampling_options,
    save_options,
    store_options,
)
from .run import chat_text

EXAMPLES = ("colibri chat model.colibri", "echo 'Who are you?' | colibri chat model.colibri --temperature 0")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    blob_argument(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    parser.add_argument(
        "-n", "--count", type=natural, default=512, metavar="N", help="most tokens of one answer"
    )
    sampling_options(parser)
    limit_options(parser)
    save_options(parser)
    store_options(parser)


def run(options: argparse.Namespace, output: Output) -> int:
    """Read a line, answer, until the input ends."""
    model = Model.open(options.blob)
    info, blob = model.info(), describe(model)
    if not info.tokenizer_bytes or not blob.chat_template():
        raise InputError(f"{options.blob}: the file has no tokenizer or no chat template; use `colibri run`")
    defaults = {
        "repetition_penalty" if name == "repetition" else name: value
        for name, value in blob.generation().items()
        if name not in ("end", "bos")
    }
    sampling = sampling_of(options, defaults)
    ends = [*model.end_tokens(), *options.end]
    context = limits_of(options, info).context
    limits = limits_of(options, info, 16 * context, rewind=context, logit_rows=1, **IN_PLACE)
    messages = [{"role": "system", "content": options.system}] if options.system is not None else []
    cached: list[int] = []
    answers = []
    place = placement.one_place("linux", options.store, options.slots, options.ram, options.look_ahead)
    limits = placement.limits_at(place, model, limits, options.slots, options.ram, options.look_ahead)
    with Session(model, limits, storage=place.storage) as session:
        if options.restore:
            messages, cached = restored(options, session)
        while (line := ask(output)) is not None:
            messages.append({"role": "user", "content": line})
            ids = encode(session, chat_text(model, blob, messages), special=True)
            keep = common_prefix(cached, ids[:-1])
            session.rewind(keep)
            request = Request(ids, options.count, sampling, ends, options.stop, digest=False, cached=keep)
            answer = generate(session, request, output.piece)
            cached = [*ids, *answer.tokens][: session.length()]
            messages.append({"role": "assistant", "content": answer.text})
            answers.append({"user": line, "text": answer.text, "finish": answer.finish})
            output.piece("\n")
            if answer.finish == "context":
                output.note("the context is full; start again, with more --context")
                break
        if options.save:
            size = saves.write_file(options.save, session, cached, messages)
            output.note(f"{options.save}: {len(messages)} messages, {len(cached)} tokens in {size:,} bytes")
    output.document({"model": info.identity, "messages": messages, "answers": answers})
    return 0


def restored(options: argparse.Namespace, session: Session) -> tuple[list[dict[str, str]], list[int]]:
    """--restore: the messages so far, and the ids in the cache."""
    if options.system is not None:
        raise UsageError("--system begins a chat; leave it out with --restore, which goes on with one")
    found = saves.restore_file(options.restore, session)
    if not found.messages:
        raise InputError(f"{options.restore}: has no messages; go on with `colibri run --restore`")
    return found.messages, found.ids[: session.length()]


def ask(output: Output) -> str | None:
    """The next line of the user, None at the end of the input."""
    if sys.stdin.isatty():
        output.piece("\n> ")
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def common_prefix(a: list[int], b: list[int]) -> int:
    """How many tokens two lists share at their beginning."""
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count
