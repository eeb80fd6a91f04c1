"""Judge: submissions as executions in the background, judged at their end.

The invariants: a submission is answered for once its execution is on the server's disk, and it ends
however that ends, so that none waits for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from cellwall.apps.doors.judge0 import answers
from cellwall.apps.doors.judge0.submissions import DEFAULT_FIELDS, Submission, Submissions
from cellwall.apps.doors.judge0.tokens import new_token
from cellwall.apps.doors.stages import text_of
from cellwall.model.errors import CellwallError
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from cellwall.apps.doors.judge0.fields import Asked
    from cellwall.client.asynchronous import AsyncClient
    from cellwall.client.submitted import AsyncSubmitted
    from cellwall.server.executions.webhooks import Notices

_STOPPED = "the server has stopped"


class Judge:
    """Begins submissions and watches them to their end; see the module."""

    def __init__(self, submissions: Submissions, notices: Notices, node: str) -> None:
        """`submissions` are the door's; `notices` sends results to the URLs of callbacks.

        `node`: the server's name among several, with which tokens begin; empty: it has none.
        """
        self._submissions = submissions
        self._node = node
        self._notices = notices
        self._tasks = Tasks()

    async def begin(self, client: AsyncClient, owner: str, asked: Asked) -> Submission:
        """Return a submission that is accepted. Raises CapacityError, UsageError."""
        submission = Submission(owner, asked, token=new_token(self._node))
        self._submissions.add(submission)
        try:
            submission.submitted = await self._submit(client, asked)
        except BaseException:
            self._submissions.remove(submission)
            raise
        self._tasks.spawn(self._watch(submission, client))
        return submission

    @staticmethod
    async def _submit(client: AsyncClient, asked: Asked) -> AsyncSubmitted:
        return await client.submit(asked.values["source_code"], **asked.options)

    async def _watch(self, submission: Submission, client: AsyncClient) -> None:
        try:
            self._submissions.end(submission, await self._judged(submission, client))
        except (CellwallError, httpx.HTTPError, TimeoutError) as error:
            self._submissions.end(submission, answers.failure(str(error)))
        finally:
            if submission.result is None:
                self._submissions.end(submission, answers.failure(_STOPPED))
        url = submission.asked.values["callback_url"]
        if url:
            shown = await submission.shown(DEFAULT_FIELDS, is_base64=True)
            self._notices.put(submission.owner, url, shown)

    async def _judged(self, submission: Submission, client: AsyncClient) -> dict[str, Any]:
        values = submission.asked.values
        executions = []
        merged: str | None = None
        while submission.submitted is not None:
            if values["redirect_stderr_to_stdout"]:
                merged = await text_of(submission.submitted)
            executions.append(await submission.submitted.result())
            if not executions[-1].ok or len(executions) >= values["number_of_runs"]:
                break
            submission.submitted = await self._submit(client, submission.asked)
        return answers.result_of(executions, values["expected_output"], merged)

    async def aclose(self) -> None:
        """Watch no longer; the executions go on."""
        await self._tasks.cancel()
