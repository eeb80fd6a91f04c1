"""Substitution: values of secrets for their placeholders in requests, and back in answers.

Pure; it belongs to one connection's destination. A value goes into a request to a host that the
secret is bound to, in the places that the secret names, and nowhere else: never into a body. In
answers of such hosts the value is replaced by the placeholder, because a server may repeat it. The
invariant: nothing here puts a value into a text that is logged or raised.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from cellwall.model.secret import Secret

Fields = list[tuple[bytes, bytes]]
_BASIC = b"basic "
_CONNECTIONS = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection"})
"""Header fields that no value goes into: they say where a request goes and where it ends."""
_ASKED_FOR_PARTS = frozenset({b"accept-encoding", b"range", b"if-range"})
"""Fields that a request does not keep whose answer is searched: what is compressed, or a part of a
text, cannot be searched for a value."""


class Substitution:
    """Substitution in requests to one server, and in its answers."""

    def __init__(self, given: Sequence[Secret], others: Sequence[Secret]) -> None:
        """`given` are the secrets that the server gets, `others` those that it does not."""
        self._given = given
        self._all = (*given, *others)
        self.used: set[str] = set()
        """Names of the secrets whose value was put in."""
        self.withheld: set[str] = set()
        """Names of the secrets whose placeholder went out as it was."""
        self._pairs: list[tuple[bytes, bytes]] = []
        """Forms in which a value may come back, each with what replaces it; the longest first."""
        for secret in given:
            for form in _forms(secret.reveal()):
                self._note(form, secret.placeholder.encode())

    def request(self, target: bytes, fields: Fields) -> tuple[bytes, Fields]:
        """Return a request's target and header fields with the values in them."""
        path, mark, query = target.partition(b"?")
        target = path + mark + self._replaced(query, "query")
        done = [(name, self._field(name, value)) for name, value in fields]
        self._note_withheld(target, done)
        if self.searches:
            done = [each for each in done if each[0].lower() not in _ASKED_FOR_PARTS]
            done.append((b"Accept-Encoding", b"identity"))
        return target, done

    def _note_withheld(self, target: bytes, fields: Fields) -> None:
        values = [value for _, value in fields]
        texts = (target, *values, *(_decoded(value) or b"" for value in values))
        for secret in self._all:
            if any(secret.placeholder.encode() in text for text in texts):
                self.withheld.add(secret.name)

    def _field(self, name: bytes, value: bytes) -> bytes:
        if name.lower() in _CONNECTIONS:
            return value
        plain = _decoded(value) if name.lower() == b"authorization" else None
        if plain is None:
            return self._replaced(value, "header")
        done = self._replaced(plain, "basic")
        if done == plain:
            return value
        encoded = base64.b64encode(done)
        self._note(encoded, base64.b64encode(plain))
        return value[: len(_BASIC)] + encoded

    def _replaced(self, text: bytes, place: str) -> bytes:
        for secret in self._given:
            placeholder = secret.placeholder.encode()
            if place not in secret.places or placeholder not in text:
                continue
            value = secret.reveal()
            put = quote(value, safe="") if place == "query" else value
            text = text.replace(placeholder, put.encode())
            self.used.add(secret.name)
        return text

    def _note(self, form: bytes, instead: bytes) -> None:
        if (form, instead) not in self._pairs:
            self._pairs.append((form, instead))
            self._pairs.sort(key=lambda pair: -len(pair[0]))

    # -- answers ---------------------------------------------------------------------------

    @property
    def searches(self) -> bool:
        """Whether answers are searched: also one to a request without a value may have it."""
        return bool(self._pairs)

    @property
    def keeps_length(self) -> bool:
        """Whether an answer is as long after its search as before."""
        return all(len(form) == len(instead) for form, instead in self._pairs)

    def hidden(self, text: bytes) -> bytes:
        """Return a whole text with placeholders for the values."""
        for form, instead in self._pairs:
            text = text.replace(form, instead)
        return text

    def fields(self, fields: Fields) -> Fields:
        """Return an answer's header fields with placeholders for the values."""
        return [(name, self.hidden(value)) for name, value in fields]

    def body(self) -> Search:
        """Return the search of one answer's body."""
        return Search(self._pairs)


class Search:
    """Search of a body that comes in pieces, for values that may be cut in two."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """`pairs`: forms of values, and what replaces each; the longest first."""
        self._pairs = list(pairs)
        self._kept = b""

    def feed(self, data: bytes) -> bytes:
        """Return what can be passed on, now that `data` has come."""
        text = self._kept + data
        for form, instead in self._pairs:
            text = text.replace(form, instead)
        keep = max((_begun(text, form) for form, _ in self._pairs), default=0)
        self._kept = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> bytes:
        """Return what was kept back, at the end of the body."""
        kept, self._kept = self._kept, b""
        return kept


def _begun(text: bytes, form: bytes) -> int:
    """Return how many last bytes of a text are the beginning of a form."""
    for size in range(min(len(text), len(form) - 1), 0, -1):
        if form.startswith(text[-size:]):
            return size
    return 0


def _forms(value: str) -> set[bytes]:
    """Return the forms in which servers repeat a value: as it is, in a URL, and in JSON."""
    return {
        value.encode(),
        quote(value, safe="").encode(),
        quote(value).encode(),
        json.dumps(value)[1:-1].encode(),
    }


def _decoded(value: bytes) -> bytes | None:
    """Return user and password of `Authorization: Basic`; None if it is not that."""
    if value[: len(_BASIC)].lower() != _BASIC:
        return None
    try:
        return base64.b64decode(value[len(_BASIC) :].strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
