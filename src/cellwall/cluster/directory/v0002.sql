-- Version 2 of the directory. This file is frozen: a later change is a version of its own.
-- Keys of callers, and secrets of tenants as gateways have sealed them: nothing here opens anything.

CREATE TABLE directory.keys (
    id         text PRIMARY KEY,     -- the first 12 digits of the digest
    digest     text NOT NULL UNIQUE, -- SHA-256 of the key, which is kept nowhere
    tenant     text NOT NULL,
    scope      text NOT NULL,
    name       text,
    made_at    timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz
);

-- Grows with each change of the keys, so that gateways see that there was one.
CREATE TABLE directory.changes (
    what   text PRIMARY KEY,
    number bigint NOT NULL
);
INSERT INTO directory.changes VALUES ('keys', 0);

CREATE TABLE directory.secrets (
    tenant     text NOT NULL,
    name       text NOT NULL,
    facts      text NOT NULL,        -- hosts and places, as JSON
    sealed     bytea NOT NULL,       -- under a key that gateways alone have
    changed_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, name)
);

UPDATE directory.version SET number = 2;
