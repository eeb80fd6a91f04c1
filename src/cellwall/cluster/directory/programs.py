"""Programs in the background, from their acceptance until their results are kept no longer.

A program is queued, or may have begun at one node, or has ended. One gateway at a time has it in
hand. The invariants: what was accepted is a row; a node is asked to begin a program only after its
row names that node, by the gateway that has it in hand; a row goes back to the queue only after it
is certain that nothing began, or ever will, at that node under that try.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.cluster.directory.claims import CLAIM, FIND_CLAIM, Claim
from cellwall.cluster.directory.group_commit import Statement
from cellwall.model.ids import GATEWAYS

if TYPE_CHECKING:
    from collections.abc import Collection

    from cellwall.cluster.directory.group_commit import GroupCommit

LARGE_BYTES = 256 * 1024
"""Bytes of a body or an answer beyond which it takes the connection for what is large."""
HAND_S = 10.0
"""Seconds after its last word for which a gateway has programs and notices in hand."""
_STEP = "background"
_ADD = """
INSERT INTO directory.programs (tenant, id, said, body, shown, webhook, made_at)
SELECT $1, {id}, $3, $4::bytea, $5, $6, clock_timestamp()
"""
_ACCEPT = Statement(
    40,
    _STEP,
    f"""
WITH made AS ({_ADD.format(id="$2")} RETURNING true)
SELECT EXISTS (SELECT FROM made)
""",  # noqa: S608 - of constants
)
_CLAIM_OF_KEY = CLAIM.text.replace("$4, $5", f"'{GATEWAYS}', $7").replace("$3", "$8")
_ACCEPT_WITH_KEY = Statement(
    41,
    _STEP,
    f"""
WITH claim AS ({_CLAIM_OF_KEY}),
made AS ({_ADD.format(id="$7")} FROM claim WHERE claim.offered = $7 RETURNING true)
SELECT digest, node, offered FROM claim
""",  # noqa: S608 - of constants
)
_WAITS = Statement(
    42,
    _STEP,
    """
SELECT count(*), coalesce(sum(octet_length(body)), 0)::bigint, (
  SELECT count(*) FROM (SELECT FROM directory.notices WHERE tenant = $1 LIMIT $4) AS n)
FROM (
  SELECT body FROM directory.programs
  WHERE tenant = $1 AND $2 = '' AND state = 'queued' LIMIT $3) AS q
""",
)
_KEEP_HAND = Statement(
    43,
    _STEP,
    f"""
WITH over AS (
  DELETE FROM directory.hands
  WHERE run <> $1 AND until < clock_timestamp() - interval '1 hour' RETURNING true),
mine AS (
  INSERT INTO directory.hands AS h (run, until)
  SELECT $1, clock_timestamp() + make_interval(secs => {HAND_S}) WHERE $2 = ''
  ON CONFLICT (run) DO UPDATE SET until = excluded.until RETURNING true)
SELECT EXISTS (SELECT FROM mine), EXISTS (SELECT FROM over)
""",  # noqa: S608 - of constants
)
_IS_FREE = """
CASE WHEN p.hand = $1 THEN NOT p.id = ANY ($4) ELSE NOT EXISTS (
  SELECT FROM directory.hands AS h WHERE h.run = p.hand AND h.until > clock_timestamp()) END
"""
_TAKE = Statement(
    44,
    _STEP,
    f"""
WITH RECURSIVE tenants (tenant) AS (
  (SELECT p.tenant FROM directory.programs AS p WHERE p.state = 'queued'
   ORDER BY p.tenant LIMIT 1)
  UNION ALL
  SELECT (SELECT p.tenant FROM directory.programs AS p
          WHERE p.state = 'queued' AND p.tenant > tenants.tenant ORDER BY p.tenant LIMIT 1)
  FROM tenants WHERE tenants.tenant IS NOT NULL),
next AS (
  SELECT found.id FROM tenants CROSS JOIN LATERAL (
    SELECT p.id FROM directory.programs AS p
    WHERE p.tenant = tenants.tenant AND p.state = 'queued' AND {_IS_FREE}
    ORDER BY p.made_at, p.id
    LIMIT greatest(0, $3 - (
      SELECT count(*) FROM directory.programs AS o
      WHERE o.tenant = tenants.tenant AND o.state = 'queued' AND o.id = ANY ($4)))
    FOR UPDATE SKIP LOCKED) AS found),
left_over AS (
  SELECT p.id FROM directory.programs AS p
  WHERE p.state = 'begun' AND $2 = '' AND {_IS_FREE} LIMIT 500 FOR UPDATE SKIP LOCKED),
taken AS (
  UPDATE directory.programs AS p SET hand = $1
  WHERE p.id IN (SELECT id FROM next UNION ALL SELECT id FROM left_over)
  RETURNING p.*)
SELECT coalesce(json_agg(json_build_array(
  id, tenant, said, shown, webhook, state, node, tries,
  coalesce(extract(epoch FROM clock_timestamp() - begun_at)::float8, 0),
  coalesce(octet_length(body), 0))
  ORDER BY made_at, id), '[]')
FROM taken
""",  # noqa: S608 - of constants
)
_BEGIN = Statement(
    45,
    _STEP,
    """
WITH mine AS (
  UPDATE directory.programs
  SET state = 'begun', node = $4, tries = tries + 1, begun_at = clock_timestamp()
  WHERE tenant = $1 AND id = $2 AND hand = $3 AND tries = $5 AND state <> 'done'
  RETURNING tries)
SELECT (SELECT tries FROM mine)
""",
)
_READ = Statement(
    54,
    _STEP,
    """
SELECT (SELECT json_build_array(
  id, tenant, said, shown, webhook, state, node, tries,
  coalesce(extract(epoch FROM clock_timestamp() - begun_at)::float8, 0),
  coalesce(octet_length(body), 0))
  FROM directory.programs WHERE tenant = $1 AND id = $2 AND hand = $3 AND state <> 'done')
""",
)
_BODY = Statement(
    55,
    _STEP,
    "SELECT (SELECT body FROM directory.programs WHERE tenant = $1 AND id = $2)",
)
_GIVE_UP = Statement(
    46,
    _STEP,
    """
WITH mine AS (
  UPDATE directory.programs SET state = 'queued', node = '', begun_at = NULL
  WHERE tenant = $1 AND id = $2 AND hand = $3 AND state = 'begun' AND tries = $4 RETURNING true)
SELECT EXISTS (SELECT FROM mine)
""",
)
_TELL = """
told AS (
  INSERT INTO directory.notices (id, tenant, url, body, due_at)
  SELECT $5, $1, ended.webhook, $6, clock_timestamp() FROM ended WHERE ended.webhook <> ''
  ON CONFLICT (id) DO NOTHING RETURNING true)
SELECT EXISTS (SELECT FROM ended), EXISTS (SELECT FROM told)
"""
_END = Statement(
    47,
    _STEP,
    f"""
WITH ended AS (
  UPDATE directory.programs
  SET state = 'done', answer = $4, body = NULL, done_at = clock_timestamp()
  WHERE tenant = $1 AND id = $2 AND hand = $3 AND state <> 'done' RETURNING webhook),
{_TELL}""",  # noqa: S608 - of constants
)
_CANCEL = Statement(
    48,
    _STEP,
    f"""
WITH ended AS (
  UPDATE directory.programs
  SET state = 'done', answer = $4, body = NULL, done_at = clock_timestamp()
  WHERE tenant = $1 AND id = $2 AND $3 = '' AND state = 'queued' RETURNING webhook),
{_TELL}""",  # noqa: S608 - of constants
)
_FIND = Statement(
    49,
    _STEP,
    """
SELECT (SELECT json_build_array(state, node, shown, answer)
        FROM directory.programs WHERE tenant = $1 AND id = $2)
""",
)
_SWEEP = Statement(
    50,
    _STEP,
    """
WITH old AS (
  SELECT id FROM directory.programs
  WHERE state = 'done' AND $1 = $2 AND done_at < clock_timestamp() - make_interval(secs => $3)
  ORDER BY done_at LIMIT 1000 FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM directory.programs AS p USING old WHERE p.id = old.id RETURNING true)
SELECT count(*) FROM gone
""",
)


class Accepted(NamedTuple):
    """What is kept of a program that waits."""

    id: str
    said: str
    """Who asked, and how, as JSON."""
    body: bytes
    shown: str
    """Its object while it waits, as JSON."""
    webhook: str
    """What is told of its end; empty: nothing."""


class Waits(NamedTuple):
    """What of a tenant waits."""

    programs: int
    bytes: int
    """Of their bodies."""
    notices: int
    """Of ends, that no receiver has taken."""


class Taken(NamedTuple):
    """One program that a gateway has in hand from now on."""

    id: str
    tenant: str
    said: str
    shown: str
    webhook: str
    state: str
    """`queued` or `begun`."""
    node: str
    """Where it may have begun; empty: nowhere."""
    tries: int
    """How often a node was asked to begin it."""
    age_s: float
    """Seconds since the latest of these."""
    body_bytes: int


class Seen(NamedTuple):
    """A tenant's program."""

    state: str
    node: str
    shown: str
    answer: str | None
    """Its object after its end, as JSON; None: its node has it."""


class Programs:
    """The programs, as one run of a gateway sees to them. All raise StoreBusy."""

    def __init__(self, commits: GroupCommit, run: str, bodies: GroupCommit | None = None) -> None:
        """`commits` has to be under way; `run` differs for each run of a gateway.

        `bodies`: a connection for what is large, on which no other request waits.
        """
        self._commits = commits
        self._bodies = commits if bodies is None else bodies
        self.run = run

    def _way(self, size_bytes: int) -> GroupCommit:
        return self._bodies if size_bytes > LARGE_BYTES else self._commits

    async def accept(self, tenant: str, wanted: Accepted) -> None:
        """Keep a program that waits from now on."""
        await self._way(len(wanted.body)).do(
            _ACCEPT,
            tenant,
            wanted.id,
            wanted.said,
            wanted.body,
            wanted.shown,
            wanted.webhook,
            size_bytes=len(wanted.body),
        )

    async def accept_with_key(
        self, tenant: str, key: str, digest: bytes, wanted: Accepted
    ) -> Claim:
        """Keep a program under an idempotency key; return the claim that holds.

        It is another's if the key was used before, and then nothing is kept.
        """
        row = await self._way(len(wanted.body)).do(
            _ACCEPT_WITH_KEY,
            tenant,
            key,
            wanted.said,
            wanted.body,
            wanted.shown,
            wanted.webhook,
            wanted.id,
            digest,
            size_bytes=len(wanted.body),
        )
        return Claim(*row)

    async def claim_of(self, tenant: str, key: str) -> Claim | None:
        """Return the claim of a tenant's idempotency key; None: it is unused."""
        row = await self._commits.do(FIND_CLAIM, tenant, key)
        return None if row[0] is None else Claim(*row)

    async def waits(self, tenant: str, most: int, most_notices: int) -> Waits:
        """Return what of a tenant waits; at most so many programs and notices are counted."""
        return Waits(*await self._commits.do(_WAITS, tenant, "", most, most_notices))

    async def keep_hand(self) -> None:
        """Have in hand for a while longer what this gateway has."""
        await self._commits.do(_KEEP_HAND, self.run, "")

    async def take(self, most_of_tenant: int, known: Collection[str]) -> list[Taken]:
        """Take programs in hand that no other gateway has, the oldest of each tenant first.

        Of those that wait, this gateway has at most `most_of_tenant` of each tenant. `known`: ids
        of what it sees to; others that are in its hand were taken when the directory went away.
        """
        row = await self._commits.do(_TAKE, self.run, "", most_of_tenant, list(known))
        return [Taken(*each) for each in _read(row[0])]

    async def read(self, tenant: str, program_id: str) -> Taken | None:
        """Return a program that this gateway has in hand; None: not any more, or it has ended."""
        row = await self._commits.do(_READ, tenant, program_id, self.run)
        return None if row[0] is None else Taken(*_read(row[0]))

    async def body(self, tenant: str, program_id: str, size_bytes: int) -> bytes | None:
        """Return the body of a program, which has so many bytes; None: it has ended."""
        way = self._way(size_bytes)
        row = await way.do(_BODY, tenant, program_id, size_bytes=size_bytes)
        return None if row[0] is None else bytes(row[0])

    async def begin(self, tenant: str, program_id: str, node: str, tries: int) -> int | None:
        """Note that a node is about to be asked; return the number of the try.

        `tries`: those so far, of which certainly none begins.
        None: this gateway has it in hand no longer, or it was cancelled.
        """
        row = await self._commits.do(_BEGIN, tenant, program_id, self.run, node, tries)
        return None if row[0] is None else int(row[0])

    async def give_up(self, tenant: str, program_id: str, tries: int) -> bool:
        """Have a program wait again, of which certainly nothing begins by that try."""
        row = await self._commits.do(_GIVE_UP, tenant, program_id, self.run, tries)
        return bool(row[0])

    async def end(
        self, tenant: str, program_id: str, answer: str | None, notice: tuple[str, str]
    ) -> bool:
        """Note a program's end, with the id and the body of the notice that tells of it.

        False: another gateway has it in hand, or it had ended.
        """
        size_bytes = len(answer or "") + len(notice[1])
        row = await self._way(size_bytes).do(
            _END, tenant, program_id, self.run, answer, *notice, size_bytes=size_bytes
        )
        return bool(row[0])

    async def cancel(
        self, tenant: str, program_id: str, answer: str, notice: tuple[str, str]
    ) -> bool:
        """Note the end of a program that waits; False: it does not."""
        return bool((await self._commits.do(_CANCEL, tenant, program_id, "", answer, *notice))[0])

    async def find(self, tenant: str, program_id: str) -> Seen | None:
        """Return a tenant's program; None: it has none of that id."""
        row = await self._commits.do(_FIND, tenant, program_id)
        return None if row[0] is None else Seen(*_read(row[0]))

    async def sweep(self, kept_s: float) -> int:
        """Remove a thousand programs that ended longer than `kept_s` ago; return their number."""
        return int((await self._commits.do(_SWEEP, "", "", kept_s))[0])


def _read(text: str) -> list[Any]:
    return list(json.loads(text))
