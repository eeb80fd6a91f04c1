"""Judge0's door: submissions, alone and in batches, languages, statuses and facts about the server.

Keys come as `X-Auth-Token`. As in release 1.13.1, texts are base64 only if the query says
`base64_encoded=true`. The invariant: a submission is looked up among those of the caller's tenant.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from cellwall.apps.doors import exchange
from cellwall.apps.doors.door import PublicRoute, Route, Visit
from cellwall.apps.doors.installed import InstalledTools
from cellwall.apps.doors.judge0.configuration import configuration
from cellwall.apps.doors.judge0.fields import Invalid, asked_of
from cellwall.apps.doors.judge0.judge import Judge
from cellwall.apps.doors.judge0.languages import STATUSES, JudgeLanguage, served, status_of
from cellwall.apps.doors.judge0.refusals import refusal
from cellwall.apps.doors.judge0.submissions import (
    ALL_FIELDS,
    DEFAULT_FIELDS,
    Submission,
    Submissions,
    Unencodable,
)
from cellwall.apps.doors.options import check_none
from cellwall.apps.doors.refusal import send
from cellwall.model.errors import CapacityError, NotFound, UsageError
from cellwall.server.core.errors import HttpError
from cellwall.server.http.face import bearer_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cellwall.languages.registry import Installed
    from cellwall.server.auth.keys import Principal
    from cellwall.server.core.request import Request
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.executions.webhooks import Notices
    from cellwall.server.http.face import Find
    from cellwall.server.state import State

MOST_IN_BATCH = 20
MOST_SHOWN_CHARS = 32 * 1024 * 1024
"""Characters of the texts in one answer about several submissions."""
VERSION = "1.13.1"
_PER_PAGE = 20
_QUICK_CHARS = 64 * 1024
"""Maximum characters of a submission's texts that are decoded at once."""


class Judge0:
    """The door; see the module."""

    def __init__(
        self, settings: ServerSettings, notices: Notices, tools: InstalledTools, node: str
    ) -> None:
        """Judge nothing yet; `notices` sends callbacks, `tools` are those that this host has.

        `node`: as `Judge` has it.
        """
        self._settings = settings
        self._notices = notices
        self._submissions = Submissions(settings.retention_s)
        self._judge = Judge(self._submissions, notices, node)
        self._tools = tools
        self._known: tuple[Mapping[str, Installed], Mapping[int, JudgeLanguage]] = ({}, {})
        """The tools that were found last, and the languages that they make."""
        self.routes = (
            Route("POST", "/submissions", self._create),
            Route("GET", "/submissions", self._list),
            Route("POST", "/submissions/batch", self._create_batch),
            Route("GET", "/submissions/batch", self._show_batch),
            Route("GET", "/submissions/{token}", self._show),
            Route("DELETE", "/submissions/{token}", self._delete),
            Route("POST", "/authenticate", _authenticate),
            Route("POST", "/authorize", _authorize),
            PublicRoute("GET", "/languages", self._show_languages),
            PublicRoute("GET", "/languages/all", self._show_all_languages),
            PublicRoute("GET", "/languages/{number}", self._show_language),
            PublicRoute("GET", "/statuses", _show_statuses),
            PublicRoute("GET", "/config_info", self._show_configuration),
            PublicRoute("GET", "/about", _show_about),
            PublicRoute("GET", "/version", _show_version),
        )

    def principal(self, request: Request, find: Find) -> Principal | None:
        """Return who asks, by `X-Auth-Token` or `Authorization: Bearer`."""
        presented = request.headers.get("x-auth-token") or bearer_of(request.headers)
        return None if not presented else find(presented)

    async def refuse(self, request: Request, error: Exception) -> None:
        """Answer with an error; one without a key gets no body."""
        await send(request, refusal(error))

    async def aclose(self) -> None:
        """Watch no submission any longer."""
        await self._judge.aclose()

    # -- submissions -----------------------------------------------------------------------

    async def _create(self, visit: Visit) -> None:
        query = _query(visit.request)
        fields, is_base64 = _fields(query), _is_base64(query)
        submission = await self._begun(visit, await _body(visit.request), is_base64)
        if query.get("wait") != "true":
            await exchange.answer(visit.request, {"token": submission.token}, 201)
            return
        await visit.request.wait(submission.ended)
        try:
            shown = await submission.shown(fields, is_base64=is_base64)
        except Unencodable as error:
            shown = {"error": str(error), "token": submission.token}
        await exchange.answer(visit.request, shown, 201)

    async def _begun(self, visit: Visit, body: object, is_base64: bool) -> Submission:
        languages = await self._known_languages()
        most = visit.request.settings.most
        read = partial(asked_of, body, languages, most, is_base64=is_base64)
        asked = read() if _is_quickly_read(body) else await asyncio.to_thread(read)
        self._check_callback(asked.values["callback_url"])
        try:
            return await self._judge.begin(visit.client, visit.request.owner, asked)
        except UsageError as error:
            raise Invalid({"base": [str(error)]}) from None

    def _check_callback(self, url: str | None) -> None:
        if not url:
            return
        if not self._settings.webhooks:
            raise Invalid({"callback_url": ["callbacks are not allowed"]})
        try:
            self._notices.check(url)
        except UsageError as error:
            raise Invalid({"callback_url": [str(error)]}) from None

    async def _create_batch(self, visit: Visit) -> None:
        is_base64 = _is_base64(_query(visit.request))
        body = await _body(visit.request)
        asked = body.get("submissions") if isinstance(body, dict) else None
        items = asked if isinstance(asked, list) else []
        _check_batch(len(items))
        made: list[dict[str, Any]] = []
        for each in items:
            try:
                made.append({"token": (await self._begun(visit, each, is_base64)).token})
            except Invalid as error:
                made.append(dict(error.faults))
            except CapacityError:
                if not any("token" in other for other in made):
                    raise
                made.append({"error": "queue is full"})
        is_one_valid = any("token" in each for each in made)
        await exchange.answer(visit.request, made, 201 if is_one_valid else 422)

    async def _show_batch(self, visit: Visit) -> None:
        query = _query(visit.request)
        tokens = [each for each in query.get("tokens", "").split(",") if each]
        _check_batch(len(tokens))
        found: list[Submission | None] = []
        for token in tokens:
            try:
                found.append(self._submissions.find(visit.request.owner, token))
            except NotFound:
                found.append(None)
        await exchange.answer(visit.request, {"submissions": await all_shown(found, query)})

    async def _show(self, visit: Visit) -> None:
        query = _query(visit.request)
        found = self._submissions.find(visit.request.owner, visit.request.params["token"])
        shown = await found.shown(_fields(query), is_base64=_is_base64(query))
        await exchange.answer(visit.request, shown)

    async def _delete(self, visit: Visit) -> None:
        query = _query(visit.request)
        found = self._submissions.find(visit.request.owner, visit.request.params["token"])
        if found.result is None:
            raise UsageError("submission cannot be deleted before it has ended")
        shown = await found.shown(_fields(query), is_base64=_is_base64(query))
        self._submissions.remove(found)
        await exchange.answer(visit.request, shown)

    async def _list(self, visit: Visit) -> None:
        query = _query(visit.request)
        page, per_page = (_whole(query, name, usual) for name, usual in _PAGING.items())
        found = self._submissions.all(visit.request.owner)
        pages = -(-len(found) // per_page)
        part = found[(page - 1) * per_page : page * per_page]
        meta = {
            "current_page": page,
            "next_page": page + 1 if page < pages else None,
            "prev_page": page - 1 if page > 1 else None,
            "total_pages": pages,
            "total_count": len(found),
        }
        shown = await all_shown(part, query)
        await exchange.answer(visit.request, {"submissions": shown, "meta": meta})

    # -- facts -----------------------------------------------------------------------------

    async def _known_languages(self) -> Mapping[int, JudgeLanguage]:
        tools = await self._tools.all()
        if tools is not self._known[0]:
            self._known = (tools, served(tools))
        return self._known[1]

    async def _show_languages(self, request: Request) -> None:
        found = await self._known_languages()
        await exchange.answer(request, [each.as_json() for each in found.values()])

    async def _show_all_languages(self, request: Request) -> None:
        found = await self._known_languages()
        shown = [{**each.as_json(), "is_archived": False} for each in found.values()]
        await exchange.answer(request, shown)

    async def _show_language(self, request: Request) -> None:
        text = request.params["number"]
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
        found = (await self._known_languages()).get(number)
        if found is None:
            raise NotFound(f"language with id {text[:20]} doesn't exist")
        await exchange.answer(request, found.in_full())

    async def _show_configuration(self, request: Request) -> None:
        await exchange.answer(request, configuration(self._settings, MOST_IN_BATCH))


_PAGING = {"page": 1, "per_page": _PER_PAGE}


def make_door(state: State, options: Mapping[str, Any]) -> Judge0:
    """Make the door."""
    check_none("judge0", options)
    node = state.engine.settings.node
    return Judge0(state.settings, state.notices, InstalledTools(state.tasks), node)


def _query(request: Request) -> dict[str, str]:
    raw = request.scope.get("query_string", b"").decode("latin-1")
    try:
        return dict(parse_qsl(raw, keep_blank_values=True, max_num_fields=64))
    except ValueError:
        raise UsageError("the query has too many fields") from None


async def all_shown(
    found: Sequence[Submission | None], query: Mapping[str, str]
) -> list[dict[str, Any] | None]:
    """Return the submissions as the query asks for them; `UsageError` if they are too large."""
    fields, is_base64 = _fields(query), _is_base64(query)
    shown: list[dict[str, Any] | None] = []
    left = MOST_SHOWN_CHARS
    for each in found:
        one = None if each is None else await each.shown(fields, is_base64=is_base64)
        left -= sum(len(text) for text in (one or {}).values() if isinstance(text, str))
        if left < 0:
            raise UsageError(
                f"submissions: their texts have more than {MOST_SHOWN_CHARS} characters",
                remedy="ask for fewer submissions, or with `fields` for less of each",
            )
        shown.append(one)
    return shown


def _is_base64(query: Mapping[str, str]) -> bool:
    return query.get("base64_encoded") == "true"


def _fields(query: Mapping[str, str]) -> tuple[str, ...]:
    """Return the fields that a query names; raises `UsageError` for unknown ones."""
    names = tuple(each for each in query.get("fields", "").split(",") if each)
    if "*" in names:
        return ALL_FIELDS
    unknown = [each[:40] for each in names if each not in ALL_FIELDS]
    if unknown:
        raise UsageError(f"invalid fields: [{', '.join(unknown[:10])}]")
    return names or DEFAULT_FIELDS


def _whole(query: Mapping[str, str], name: str, usual: int) -> int:
    text = query.get(name, str(usual))
    if not (text.isascii() and text.isdecimal() and 1 <= len(text) <= 6 and int(text) > 0):
        raise UsageError(f"invalid {name}: {text[:20]}")
    return min(int(text), 1000) if name == "per_page" else int(text)


def _check_batch(count: int) -> None:
    if count == 0:
        raise UsageError("there should be at least one submission in a batch")
    if count > MOST_IN_BATCH:
        raise UsageError(
            f"number of submissions in a batch should be less than or equal to {MOST_IN_BATCH}"
        )


def _is_quickly_read(body: object) -> bool:
    """Report whether reading a submission would not keep other requests waiting."""
    if not isinstance(body, dict) or body.get("additional_files"):
        return False  # an archive may be much larger than it looks
    return sum(len(each) for each in body.values() if isinstance(each, str)) <= _QUICK_CHARS


async def _body(request: Request) -> Any:  # noqa: ANN401 - JSON
    data = await exchange.body_of(request)
    try:
        return exchange.decoded(data or b"{}")
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {error}"[:300]) from None


async def _authenticate(visit: Visit) -> None:
    await visit.request.answer_bytes(b"", "application/json")


async def _authorize(visit: Visit) -> None:
    if not visit.request.caller.may("admin"):
        raise HttpError(403, "forbidden", "key: its scope is not admin")
    await visit.request.answer_bytes(b"", "application/json")


async def _show_statuses(request: Request) -> None:
    await exchange.answer(request, [status_of(number) for number in STATUSES])


async def _show_about(request: Request) -> None:
    await exchange.answer(request, {"version": VERSION, "answered_by": "cellwall"})


async def _show_version(request: Request) -> None:
    await request.answer_bytes(VERSION.encode(), "text/plain")
