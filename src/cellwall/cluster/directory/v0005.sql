-- Version 5 of the directory. This file is frozen: a later change is a version of its own.
-- What each node may hold of a tenant's quotas of memory, CPUs and files; which change each key had
-- last; and the times by which rows of what is over end.

ALTER TABLE directory.tenants ADD COLUMN change bigint NOT NULL DEFAULT 0;
-- Of `grants`: a larger number with each change of one of the tenant's rows there.

CREATE TABLE directory.grants (
    tenant    text NOT NULL,
    node      text NOT NULL,
    memory_mb bigint NOT NULL CHECK (memory_mb >= 0),
    cpus_m    bigint NOT NULL CHECK (cpus_m >= 0),   -- thousandths of a CPU
    file_mb   bigint NOT NULL CHECK (file_mb >= 0),
    PRIMARY KEY (tenant, node)
);
CREATE INDEX grants_by_node ON directory.grants (node);

ALTER TABLE directory.keys ADD COLUMN change bigint NOT NULL DEFAULT 0;
CREATE INDEX keys_by_change ON directory.keys (change);
CREATE INDEX keys_by_end ON directory.keys (least(expires_at, revoked_at));

UPDATE directory.version SET number = 5;
