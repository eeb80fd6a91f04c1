-- Version 4 of the directory. This file is frozen: a later change is a version of its own.
-- Programs in the background, from their acceptance until their results are kept no longer, and
-- the notices of their ends. A value of a secret is in no row: bodies name secrets.

CREATE TABLE directory.programs (
    id       text PRIMARY KEY,
    tenant   text NOT NULL,
    said     text NOT NULL,          -- who asked, and how, as JSON
    body     bytea,                  -- until it has ended
    shown    text NOT NULL,          -- its object while it waits, as JSON
    webhook  text NOT NULL,          -- what is told of its end; empty: nothing
    state    text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'begun', 'done')),
    node     text NOT NULL DEFAULT '', -- where it may have begun
    tries    integer NOT NULL DEFAULT 0, -- how often a node was asked to begin it
    hand     text NOT NULL DEFAULT '', -- the run of the gateway that sees to it
    answer   text,                   -- its object after its end, as JSON; null: the node has it
    made_at  timestamptz NOT NULL,
    begun_at timestamptz,
    done_at  timestamptz
);
CREATE INDEX programs_by_turn ON directory.programs (tenant, made_at, id) WHERE state = 'queued';
CREATE INDEX programs_by_hand ON directory.programs (hand) WHERE state = 'begun';
CREATE INDEX programs_by_end ON directory.programs (done_at) WHERE state = 'done';

-- The gateways that see to programs and notices: each for as long as it renews its row.
CREATE TABLE directory.hands (
    run   text PRIMARY KEY,
    until timestamptz NOT NULL
);

CREATE TABLE directory.notices (
    id      text PRIMARY KEY,        -- the same in each attempt
    tenant  text NOT NULL,
    url     text NOT NULL,
    body    text NOT NULL,
    tries   integer NOT NULL DEFAULT 0,
    due_at  timestamptz NOT NULL
);
CREATE INDEX notices_by_turn ON directory.notices (tenant, due_at);

UPDATE directory.version SET number = 4;
