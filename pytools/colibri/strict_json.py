"""JSON that comes from outside: no key twice, fractions exact, and one sentence for what is wrong."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from .errors import ConvertError


def parse_json(text: bytes | str, subject: str, fraction: type = Decimal) -> Any:
    """The value of a JSON text; `subject` is what a sentence calls it."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in pairs:
            if key in made:
                raise ConvertError(
                    f"{subject}: {key!r} stands there twice; the file is damaged, fetch it again"
                )
            made[key] = value
        return made

    try:
        return json.loads(text, object_pairs_hook=unique, parse_float=fraction)
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{subject}: is not JSON ({error}); the file is damaged, fetch it again") from None
