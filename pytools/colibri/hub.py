"""Checkpoints of a model hub, without keeping them: small files through huggingface_hub, weights by range.

huggingface_hub says what a revision holds, who may read it and where a file lies; its settings (HF_ENDPOINT,
HF_TOKEN, HF_HOME, HF_HUB_OFFLINE, proxies) hold here as everywhere. Weights are read in ranges from the place
it names; a cut connection is taken up again at the byte where it broke. Files in its cache are read there.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub as hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, disable_progress_bars, get_session, logging

from .errors import ColibriError, ConvertError, DoesNotFit, InputError, Unreachable
from .library import version
from .source import ByteFile, Folder, LocalFile, Source
from .unfinished import NO_ROOM

# What its HTTP library raises when a connection fails; which library that is differs between its versions.
NETWORK: tuple[type[BaseException], ...] = (HfHubHTTPError.__bases__[0], OSError)
ATTEMPTS = 6  # that bring no byte, until a server is given up
FIRST_WAIT, LONGEST_WAIT = 0.25, 30.0  # seconds before the next attempt; doubles
BUSY = (408, 425, 429, 500, 502, 503, 504)
BEGINNING = 1 << 15  # bytes that are read at once where a header is expected
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
LOGIN = "log in (`hf auth login`), set HF_TOKEN or give --token"
GO_ON = "run the same command again to go on"


class GatedRepository(ConvertError):
    """The model's owner wants to know who reads it."""


class MissingRepository(ConvertError):
    """No such model, or none for this token."""


class MissingRevision(ConvertError):
    """The model has no such branch, tag or commit."""


class MissingFile(ConvertError):
    """The revision lacks a file."""


def endpoint_host() -> str:
    """The hub that is asked."""
    return urlsplit(constants.ENDPOINT).netloc


def short(error: BaseException) -> str:
    """The first line of somebody else's error."""
    lines = str(error).strip().splitlines()
    return lines[0].strip()[:200] if lines else type(error).__name__


@contextmanager
def plainly(name: str, revision: str | None, file: str = "") -> Iterator[None]:
    """The errors of huggingface_hub as ours, one sentence each."""
    place = f"{name}@{revision}" if revision else name
    try:
        yield
    except GatedRepoError:
        raise GatedRepository(
            f"{name}: is gated: its owner grants access by name; ask for it on the model's page, then {LOGIN}"
        ) from None
    except RevisionNotFoundError:
        raise MissingRevision(
            f"{place}: the model has no revision {revision!r}; give a branch, a tag or a whole commit id"
        ) from None
    except RepositoryNotFoundError:
        raise MissingRepository(
            f"{name}: {endpoint_host()} has no such model, or it is private; check the name, or {LOGIN}"
        ) from None
    except EntryNotFoundError:
        raise MissingFile(f"{place}/{file}: the revision has no such file") from None
    except HFValidationError as error:
        raise ConvertError(f"{name}: is no model id ({short(error)}); expected org/name[@revision]") from None
    except HfHubHTTPError as error:
        code = error.response.status_code if error.response is not None else 0
        if code in (401, 403):
            raise GatedRepository(
                f"{place}: {endpoint_host()} refuses access (status {code}); {LOGIN}"
            ) from None
        raise Unreachable(
            f"{place}: {endpoint_host()} answered with status {code}; try again later"
        ) from None
    except NETWORK as error:
        if isinstance(error, OSError) and (error.filename or error.errno in NO_ROOM):
            kind = DoesNotFit if error.errno in NO_ROOM else InputError
            raise kind(
                f"{constants.HF_HUB_CACHE}: the hub's cache cannot be used ({error.strerror}); make room, or "
                "set HF_HOME to another folder"
            ) from None
        raise Unreachable(
            f"{place}: {endpoint_host()} cannot be reached ({short(error)}); check the network and "
            "HF_ENDPOINT, or give --offline if the hub's cache holds the model"
        ) from None


class HubFile:
    """A file of weights on a hub, read by byte range."""

    def __init__(self, owner: Hub, name: str, size: int | None) -> None:
        self.name, self._owner = name, owner
        self._lock = threading.Lock()
        self._beginning = b""
        self._location = ""
        listed, self.size = size, self._locate()
        if listed is not None and self.size != listed:
            raise self._wrong_length(listed, self.size)

    def __str__(self) -> str:
        return self._owner.subject(self.name)

    def _wrong_length(self, listed: int, found: int) -> ConvertError:
        return ConvertError(
            f"{self}: the hub lists {listed} bytes, its server has {found}; the two do not belong together: "
            "try again later or ask the hub's owner"
        )

    def _locate(self) -> int:
        """Ask where the bytes lie; such places expire. Returns the size."""
        owner = self._owner
        url = hub.hf_hub_url(owner.name, self.name, revision=owner.revision)
        with plainly(owner.name, owner.revision, self.name):
            found = hub.get_hf_file_metadata(url, token=owner.token)
        self._location = found.location
        if found.size is None:
            raise ConvertError(
                f"{self}: the server does not say how long the file is; download the model first"
            )
        return found.size

    def read(self, offset: int, size: int) -> bytes:
        """See ByteFile."""
        end = offset + size
        if end > self.size:
            raise ConvertError(f"{self}: ends at byte {self.size}, byte {end} was asked for")
        if end > BEGINNING:
            return self._fetch(offset, size)
        with self._lock:
            if not self._beginning:
                self._beginning = self._fetch(0, min(BEGINNING, self.size))
            return self._beginning[offset:end]

    def _fetch(self, offset: int, size: int) -> bytes:
        """These bytes, whatever it takes: every attempt begins behind the last byte that came."""
        data, attempt, moved = bytearray(), 0, False
        while len(data) < size:
            before, reason, wait = len(data), "the connection was closed", 0.0
            try:
                status, wait = self._attempt(data, offset, size)
                if status in (401, 403, 404, 410) and not moved:
                    moved = True  # the place expired: ask for the new one
                    self._locate()
                    continue
                if status:
                    reason = f"status {status}"
                    if status not in BUSY:
                        raise ConvertError(f"{self}: the server answered with {reason}; try again later")
            except NETWORK as error:
                reason = short(error)
            attempt, moved = (1, False) if len(data) > before else (attempt + 1, moved)
            if attempt >= ATTEMPTS:
                raise Unreachable(
                    f"{self}: the connection broke at byte {offset + len(data)} and {attempt} attempts "
                    f"brought no more ({reason}); {GO_ON}"
                )
            if len(data) < size:
                time.sleep(max(wait, min(LONGEST_WAIT, FIRST_WAIT * 2 ** (attempt - 1))))
        return bytes(data)

    def _attempt(self, data: bytearray, offset: int, size: int) -> tuple[int, float]:
        """Append what one request brings. Returns a status that is no success, or 0, and a wait."""
        first, last = offset + len(data), offset + size - 1
        headers = {**self._owner.headers_for(self._location), "Range": f"bytes={first}-{last}"}
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", self._location, headers=headers, timeout=timeout) as answer:
            if answer.status_code == 416:
                raise self._wrong_length(self.size, self._told_size(answer.headers))
            if answer.status_code not in (200, 206):
                wait = answer.headers.get("Retry-After", "")
                return answer.status_code, min(float(wait), LONGEST_WAIT) if wait.isdigit() else 0.0
            self._check_range(answer, first, last)
            for chunk in answer.iter_raw():  # as it comes: larger chunks would be lost with the connection
                if len(data) + len(chunk) > size:
                    raise ConvertError(
                        f"{self}: the server sent more bytes than were asked for; download it first"
                    )
                data += chunk
        return 0, 0.0

    @staticmethod
    def _told_size(headers: Mapping[str, str]) -> int:
        told = headers.get("Content-Range", "").rpartition("/")[2]
        return int(told) if told.isdigit() else 0

    def _check_range(self, answer: Any, first: int, last: int) -> None:
        if answer.status_code == 200:
            raise ConvertError(
                f"{self}: {urlsplit(self._location).netloc} serves no byte ranges (status 200 to a Range "
                f"request); download the model (`hf download {self._owner.name}`) and give --offline"
            )
        text = answer.headers.get("Content-Range", "")
        found = CONTENT_RANGE.fullmatch(text)
        if found and int(found[3]) != self.size:
            raise self._wrong_length(self.size, int(found[3]))
        if not found or (int(found[1]), int(found[2])) != (first, last):
            raise ConvertError(
                f"{self}: bytes {first}-{last} were asked for, the server sent {text!r}; "
                "download the model first"
            )

    def close(self) -> None:
        """See ByteFile; connections belong to huggingface_hub."""


class Hub(Source):
    """One revision of a model on a hub."""

    def __init__(self, name: str, revision: str | None = None, token: str | None = None) -> None:
        super().__init__()
        disable_progress_bars()
        logging.set_verbosity_error()
        self.name, self.token = name, token
        api = hub.HfApi(token=token, library_name="colibri", library_version=version())
        with plainly(name, revision):
            info = api.model_info(name, revision=revision, files_metadata=True, timeout=30)
        if not info.sha or not re.fullmatch("[0-9a-f]{40}", info.sha):
            raise ConvertError(f"{name}: {endpoint_host()} names no commit for it; try again later")
        self.revision = info.sha
        self._sizes = {file.rfilename: file.size for file in info.siblings or []}

    def __str__(self) -> str:
        return f"{self.name}@{self.revision[:12]}"

    def subject(self, file: str) -> str:
        """See Source."""
        return f"{self}/{file}"

    def names(self) -> list[str]:
        """See Source."""
        return sorted(name for name in self._sizes if "/" not in name)

    def small(self, file: str) -> bytes | None:
        """See Source; it stays in the hub's cache."""
        if file not in self._sizes:
            return None
        with plainly(self.name, self.revision, file):
            return Path(
                hub.hf_hub_download(self.name, file, revision=self.revision, token=self.token)
            ).read_bytes()

    def _open(self, file: str) -> ByteFile:
        cached = hub.try_to_load_from_cache(self.name, file, revision=self.revision)
        if isinstance(cached, str):
            return LocalFile(Path(cached))
        return HubFile(self, file, self._sizes.get(file))

    def headers_for(self, url: str) -> dict[str, str]:
        """The token goes to the hub, and to nobody it sends us to."""
        same = urlsplit(url)[:2] == urlsplit(constants.ENDPOINT)[:2]
        headers = build_hf_headers(
            token=self.token if same else False, library_name="colibri", library_version=version()
        )
        return {**headers, "Accept-Encoding": "identity"}

    def content(self, files: Iterable[str]) -> str:
        """See Source; a commit says it all."""
        return self.revision


class CachedHub(Folder):
    """A model in the hub's cache, used without a network."""

    partial = True

    def __init__(self, name: str, revision: str | None = None) -> None:
        config = hub.try_to_load_from_cache(name, "config.json", revision=revision)
        self._place = f"{name}@{revision}" if revision else name
        if not isinstance(config, str):
            raise self._not_cached("config.json")
        folder = Path(config).parent
        super().__init__(folder, name, folder.name)

    def _not_cached(self, file: str) -> Unreachable:
        return Unreachable(
            f"{self._place}/{file}: is not in the hub's cache; run once without --offline and "
            f"HF_HUB_OFFLINE, or `hf download {self._place.partition('@')[0]}` where there is a network"
        )

    def missing(self, file: str) -> ColibriError:
        """See Source."""
        return self._not_cached(file)

    def content(self, files: Iterable[str]) -> str:
        """See Source."""
        return self.revision

    def stamp(self, files: Iterable[str]) -> str:
        """See Source; cached files do not change."""
        return ""


def hub_source(name: str, revision: str | None, token: str | None, offline: bool) -> Source:
    """A model of the hub, from the network or from the cache alone."""
    if offline or constants.HF_HUB_OFFLINE:
        return CachedHub(name, revision)
    return Hub(name, revision, token)
