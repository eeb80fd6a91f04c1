"""Protocol: the tools behind the official SDK, in one protocol server for all requests.

It is no transport (`stdio`, `http`) and does not implement tools (`tools`). The invariant: a tool's
failure is an answer that the model can read; a protocol error is only for requests that cannot be
served.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    ResourceTemplate,
)

import cellwall
from cellwall.apps.mcp import direct
from cellwall.apps.mcp.tools import addresses, answers, arguments, resources, tools
from cellwall.model.errors import CellwallError, UsageError
from cellwall.model.for_model import error_for_model

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from cellwall.apps.mcp.session import Session
    from cellwall.apps.mcp.tools.catalog import Catalog
    from cellwall.apps.mcp.tools.progress import Report

    Context = ServerRequestContext[Any, Any]
    SessionOf = Callable[[Context], Session]

_log = logging.getLogger("cellwall.mcp")

INSTRUCTIONS = (
    "Runs code in isolated sandboxes on this machine. Use run_code for a single program. For work "
    "in several steps use create_sandbox, then execute and run_command with its id: variables and "
    "files stay until destroy_sandbox. Every answer says how the program ended; when it did not "
    "end well, the last line says which limit it met and what to try next."
)


def make_server(catalog: Catalog, session_of: SessionOf) -> Server[Any]:
    """Return a protocol server; `session_of` finds a request's session or raises an error."""

    async def list_tools(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=catalog.tools())

    async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
        try:
            session = session_of(context)
            session.spoken = direct.spoken(context.protocol_version, context.params)
            given = params.arguments or {}
            return await session.perform(called(session, params.name, given, _report_of(context)))
        except CellwallError as error:
            return answers.failure(error)

    async def list_resources(
        context: Context, _: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        session = _session(session_of, context)
        return ListResourcesResult(resources=await session.perform(resources.listed(session)))

    async def list_templates(
        _: Context, __: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        template = ResourceTemplate(
            uri_template=addresses.TEMPLATE,
            name="file of a sandbox",
            description="A path relative to /home/user; an absolute one begins with a slash.",
        )
        return ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        context: Context, params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        session = _session(session_of, context)
        try:
            contents = await session.perform(resources.read(session, params.uri))
        except CellwallError as error:
            raise MCPError(INVALID_PARAMS, error_for_model(error)) from None
        return ReadResourceResult(contents=[contents])

    server: Server[Any] = Server(
        "cellwall",
        version=cellwall.__version__,
        title="cellwall sandboxes",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )
    server.middleware.clear()  # remove the SDK's own spans; cellwall traces a tool's work itself
    return server


def _session(session_of: SessionOf, context: Context) -> Session:
    try:
        return session_of(context)
    except CellwallError as error:
        raise MCPError(INVALID_PARAMS, error_for_model(error)) from None


async def called(
    session: Session, tool: str, given: dict[str, Any], report: Report | None = None
) -> CallToolResult:
    """Return the answer of a tool, also for every error; runs as work of the session."""
    try:
        work = tools.BY_NAME.get(tool)
        if work is None:
            raise UsageError(
                f"tool: there is no {tool[:60]!r}",
                remedy=f"there are {', '.join(tools.BY_NAME)}",
            )
        return await work(session, arguments.checked(tool, given), report)
    except CellwallError as error:
        return answers.failure(error)
    except Exception as error:  # noqa: BLE001 - an answer, so that the session goes on
        _log.exception("tool %s failed", tool[:60])
        return answers.failure(error)


def _report_of(context: Context) -> Report | None:
    """Return the progress callback, if the client asked for progress."""
    if not context.meta or context.meta.get("progress_token") is None:
        return None

    async def report(seconds: float, sentence: str) -> None:
        await context.session.report_progress(seconds, None, sentence)

    return report
