"""Removal of secrets from what the server writes: logs, audit, labels of metrics.

Called by the sinks on every text, whatever its source; not by the code that has the secret. It
removes two kinds of text: values that were given to the server (keys, signed tokens, environment
variables), in the forms in which they travel, and every text that has the shape of a key. What
sandboxes print is their caller's and is not touched. The invariants: a known secret is kept as
keyed digests only, so this list of secrets contains none; a value that a tenant gave is taken out
of that tenant's texts alone, and never if it is a word of cellwall's own: otherwise a tenant could
edit other tenants' records by its choice of values.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

REDACTED = "[redacted]"
_SHORTEST = 8
"""Least characters of a secret; shorter values are words, and texts without those are
unreadable."""
_WINDOW = 6
_STRIDE = 3
"""Distance in characters between the windows that are looked up in a text. A window has `_WINDOW`
characters, so a secret is known by its first three windows."""
_LONGEST = 16_384
_CACHED = 1024
_CACHED_LENGTH = 128
_DEPTH = 6

# Every alternative begins with a letter or a literal: the engine then skips what cannot match.
_SHAPES = re.compile(
    r"cws?_[A-Za-z0-9_-]{20,}|e2b_[0-9a-f]{40,}"
    r"|[spr]k[-_](?:[a-z]+[-_])*[A-Za-z0-9_-]{16,}"
    r"|gh[opusr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abeprs]-[\w-]{10,}|A[KS]IA[A-Z0-9]{16}|AIza[\w-]{30,}"
    r"|(?:hf|npm|pypi|dop_v1|shpat|whsec)[_-][\w-]{24,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_PLACES = re.compile(
    r"([Bb]earer )[^\s\"',;]{8,}"
    r"|(/signed/)[\w.-]{16,}"
    r"|((?:token|password|passwd|secret|api_?key)=)[^\s&\"',;]{4,}"
    r"|(://)[^\s/@:\"']+:[^\s/@\"']+(?=@)"
)
"""Matches a typical prefix of a secret, which is kept, and the secret."""


_PLAIN = re.compile(r"[\w.~-]*", re.ASCII)
"""Matches a text that is written the same in addresses and in JSON."""


Group = tuple[str, str]
"""Owner of secrets: a tenant with its name, or the server with the secrets' kind."""
_OURS = "ours"
_TENANTS = "tenant's"


class _Form(NamedTuple):
    """One way to write a secret."""

    group: Group
    offset: int
    """Offset in the secret of the window by which it is found."""
    length: int
    digest: bytes
    """Keyed digest of the whole form."""


_Found = tuple[tuple[int, _Form], ...]


class Redactor:
    """Recognizes secrets without keeping them; used on the event loop and in the log's thread."""

    def __init__(self, most_groups: int = 256, most_in_group: int = 512) -> None:
        """Keep the newest `most_in_group` of each group, so that no group displaces another's."""
        self._most_groups = most_groups
        self._most_in_group = most_in_group
        self._key = secrets.token_bytes(32)
        self._groups: OrderedDict[Group, OrderedDict[bytes, _Found]] = OrderedDict()
        self._known: dict[int, tuple[_Form, ...]] = {}
        self._words = ""
        self._harmless: set[tuple[str, str | None]] = set()
        """Texts that were looked at and hold no secret: names of routes and tenants come often."""

    def reserve(self, words: Iterable[str]) -> None:
        """Take no value for a secret that is part of one of `words`, which are the server's own."""
        self._words = "\n".join((self._words, *words))

    def learn_ours(self, secret: str, kind: str) -> None:
        """Take `secret`, a key or token, out of everything from now on."""
        self._learn_line(secret[:_LONGEST], (_OURS, kind))

    def learn(self, secret: str, tenant: str) -> None:
        """Take `secret` out of everything about `tenant` from now on.

        Each line of a value of several lines is a secret.
        """
        for line in secret[:_LONGEST].splitlines():
            if len(line) >= _SHORTEST and line not in self._words:
                self._learn_line(line, (_TENANTS, tenant))

    def learn_all(self, values: Iterable[str], tenant: str) -> None:
        """Learn every one of `values`."""
        for value in values:
            self.learn(value, tenant)

    def _learn_line(self, secret: str, group: Group) -> None:
        members = self._groups.setdefault(group, OrderedDict())
        self._groups.move_to_end(group)
        name = self._digest(secret)
        if name in members:
            members.move_to_end(name)
            return
        members[name] = made = self._found_by(secret, group)
        for window, form in made:
            self._known[window] = (*self._known.get(window, ()), form)
        self._harmless = set()
        if len(members) > self._most_in_group:
            self._forget(members.popitem(last=False)[1])
        if len(self._groups) > self._most_groups:
            for found_by in self._groups.popitem(last=False)[1].values():
                self._forget(found_by)

    def _found_by(self, secret: str, group: Group) -> _Found:
        """Return hashed windows of every form of `secret`, each with the form to compare with."""
        made = []
        for form in _forms(secret):
            digest = self._digest(form)
            for offset in range(_STRIDE):
                window = hash(form[offset : offset + _WINDOW])
                made.append((window, _Form(group, offset, len(form), digest)))
        return tuple(made)

    def _forget(self, found_by: _Found) -> None:
        for window, form in found_by:
            kept = list(self._known[window])
            kept.remove(form)
            if kept:
                self._known[window] = tuple(kept)
            else:
                del self._known[window]

    def _digest(self, text: str) -> bytes:
        data = text.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(data, digest_size=16, key=self._key).digest()

    def clean(self, text: str, tenant: str | None = None) -> str:
        """Return `text` without secrets; `tenant` is its tenant, None for a text without one."""
        harmless = self._harmless
        if len(text) < _SHORTEST or (text, tenant) in harmless:
            return text
        cleaned = self._without_known(text, (_TENANTS, tenant or "")) if self._known else text
        cleaned = _SHAPES.sub(REDACTED, cleaned)
        cleaned = _PLACES.sub(lambda found: (found[found.lastindex or 0]) + REDACTED, cleaned)
        if len(text) <= _CACHED_LENGTH and cleaned == text:
            if len(harmless) >= _CACHED:
                # Ids of requests fill it; if it stayed full, names that come with every request
                # would be looked at each time. In place: `_learn_line` may have replaced the set.
                harmless.clear()
            harmless.add((text, tenant))
        return cleaned

    def _without_known(self, text: str, group: Group) -> str:
        known = self._known
        places = range(0, len(text) - _WINDOW + 1, _STRIDE)
        hits = [i for i in places if hash(text[i : i + _WINDOW]) in known]
        spans = sorted(span for hit in hits for span in self._spans(text, hit, group))
        parts, at = [], 0
        for start, end in spans:
            if start >= at:
                parts += [text[at:start], REDACTED]
            at = max(at, end)
        return "".join((*parts, text[at:]))

    def _spans(self, text: str, hit: int, group: Group) -> Iterator[tuple[int, int]]:
        """Yield begin and end of the server's and `group`'s secrets with a window at `hit`."""
        for form in self._known.get(hash(text[hit : hit + _WINDOW]), ()):
            if form.group[0] != _OURS and form.group != group:
                continue
            start = hit - form.offset
            end = start + form.length
            if start >= 0 and end <= len(text) and self._digest(text[start:end]) == form.digest:
                yield start, end

    def clean_all(
        self,
        value: Any,  # noqa: ANN401 - JSON-like
        tenant: str | None = None,
        depth: int = _DEPTH,
    ) -> Any:  # noqa: ANN401 - JSON-like
        """Return a JSON-like value without secrets in any of its texts, names included."""
        if isinstance(value, str):
            return self.clean(value, tenant)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if depth <= 0:
            return self.clean(str(value), tenant)
        if isinstance(value, Mapping):
            return {
                self.clean(str(name), tenant): self.clean_all(each, tenant, depth - 1)
                for name, each in value.items()
            }
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.clean_all(each, tenant, depth - 1) for each in value]
        return self.clean(str(value), tenant)


def _forms(secret: str) -> set[str]:
    """Return the ways to write `secret`: as it is, escaped, percent, hexadecimal, base64."""
    raw = secret.encode("utf-8", "surrogatepass")
    found = {secret, raw.hex(), raw.hex().upper(), *_base64(raw)}
    if not _PLAIN.fullmatch(secret):
        found |= _escaped(secret, raw)
    return {form for form in found if len(form) >= _SHORTEST}


def _escaped(secret: str, raw: bytes) -> set[str]:
    percent = {quote(raw, safe=""), quote(raw), quote_plus(raw)}
    return {
        *percent,
        *(re.sub(r"%[0-9A-F]{2}", lambda m: m[0].lower(), each) for each in percent),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
    }


def _base64(raw: bytes) -> Iterator[str]:
    """Yield what base64 of any text that contains `raw` has in common, for its three positions."""
    for before in range(3):
        whole = base64.b64encode(bytes(before) + raw).decode()
        first = (0, 2, 3)[before]
        last = len(whole) - (0, 3, 2)[(before + len(raw)) % 3]
        yield whole[first:last]
        yield whole[first:last].translate(_URL_SAFE)


_URL_SAFE = str.maketrans("+/", "-_")
