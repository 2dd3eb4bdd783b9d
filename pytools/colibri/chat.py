"""Chat messages to prompt text: the checkpoint's own Jinja template, in a sandbox.

A template is untrusted code from the model file. The environment behaves as the one checkpoints are written
for (blocks trimmed, loop controls, `raise_exception`, `tojson` without HTML escapes, `strftime_now`, a
`generation` block that prints its body).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from .errors import InputError, MissingTool

Message = Mapping[str, str]


@lru_cache(maxsize=8)
def compiled(template: str) -> Any:
    """The template, ready to render."""
    try:
        import jinja2
        from jinja2 import ext, nodes, sandbox
    except ImportError:
        raise MissingTool(
            "chat templates need jinja2, which is not here: pip install 'jinja2>=3.1.6'"
        ) from None

    class Generation(ext.Extension):
        """{% generation %} ... {% endgeneration %} marks the assistant's words in training; here it prints
        them."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            """The block's body in a scope of its own, as the call block of the original gives it."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller: Any) -> str:
            return str(caller())

    def fail(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    made = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = fail
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return made.from_string(template)


def render(
    template: str, messages: Sequence[Message], tokens: Mapping[str, str], where: str, reply: bool = True
) -> str:
    """The prompt text. tokens: bos_token and so on; reply: end with the assistant's opening."""
    if not template:
        raise InputError(
            f"{where}: the file has no chat template; use -p without --chat, or convert a checkpoint "
            "that has one"
        )
    import jinja2

    try:
        return str(
            compiled(template).render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=reply,
                **tokens,
            )
        )
    except jinja2.TemplateError as error:
        raise InputError(f"{where}: its chat template refused the messages: {error}") from None
    except Exception as error:  # whatever untrusted code can raise: a division by zero, a deep recursion
        raise InputError(
            f"{where}: its chat template failed ({type(error).__name__}: {error}); convert the checkpoint "
            "with another chat_template"
        ) from None


def special_ids(section: bytes) -> dict[str, int]:
    """bos, eos, unk and pad of a tokenizer section, without those it does not have."""
    from .tokenizer import layout

    ffi, _ = layout()
    if len(section) < ffi.sizeof("colibri_tokenizer_header"):
        return {}
    head = ffi.from_buffer("colibri_tokenizer_header *", section[: ffi.sizeof("colibri_tokenizer_header")])
    ids = {name: int(getattr(head, name)) for name in ("bos", "eos", "unk", "pad")}
    return {name: value for name, value in ids.items() if value < int(head.vocab)}


def special_tokens(session: Any, section: bytes) -> dict[str, str]:
    """The texts of the special tokens under the names templates use: bos_token, eos_token, ..."""
    from .text import decode

    return {
        f"{name}_token": decode(session, [number], special=True)
        for name, number in special_ids(section).items()
    }
