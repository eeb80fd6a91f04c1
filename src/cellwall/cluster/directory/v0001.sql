-- Version 1 of the directory. This file is frozen: a later change is a version of its own.
-- The clock is always that of this server, so no gateway's own clock matters.

CREATE SCHEMA directory;

CREATE TABLE directory.version (
    number integer NOT NULL
);

-- A gateway writes its row about once a second, and removes it when it is stopped.
CREATE TABLE directory.gateways (
    name    text PRIMARY KEY,
    run     text NOT NULL,          -- differs for each run of that gateway
    seen_at timestamptz NOT NULL
);

CREATE TABLE directory.nodes (
    name     text PRIMARY KEY,
    address  text NOT NULL,
    heard_at timestamptz NOT NULL,  -- when any gateway last noted that it had heard it
    lost_at  timestamptz,           -- never taken back
    why      text NOT NULL DEFAULT ''
);
CREATE INDEX nodes_by_loss ON directory.nodes (lost_at);

-- Where the request of an idempotency key went.
CREATE TABLE directory.replays (
    tenant  text NOT NULL,
    key     text NOT NULL,
    digest  bytea NOT NULL,         -- of method, target and body; empty: the body was too long
    node    text NOT NULL,
    offered text NOT NULL,          -- the id under which the node was asked to begin it
    repeats integer NOT NULL,       -- how often it was asked for again
    made_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX replays_by_age ON directory.replays (made_at);

-- The sums of a tenant's rows of `sandboxes` and `shares`, which quotas are compared with.
CREATE TABLE directory.tenants (
    tenant    text PRIMARY KEY,
    sandboxes integer NOT NULL DEFAULT 0 CHECK (sandboxes >= 0),
    running   integer NOT NULL DEFAULT 0 CHECK (running >= 0)
);

CREATE TABLE directory.sandboxes (
    id      text PRIMARY KEY,
    tenant  text NOT NULL,
    node    text NOT NULL,
    made_at timestamptz NOT NULL
);
CREATE INDEX sandboxes_by_node ON directory.sandboxes (node, tenant);
CREATE INDEX sandboxes_by_tenant ON directory.sandboxes (tenant);

-- How many programs of a tenant a gateway may have under way at once.
CREATE TABLE directory.shares (
    tenant  text NOT NULL,
    gateway text NOT NULL,          -- one run of it
    running integer NOT NULL CHECK (running >= 0),
    until   timestamptz NOT NULL,
    PRIMARY KEY (tenant, gateway)
);

INSERT INTO directory.version VALUES (1);
