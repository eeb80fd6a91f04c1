-- Version 3 of the directory. This file is frozen: a later change is a version of its own.
-- Where things lie that are named without their node; a node alone says whether one is there.

CREATE TABLE directory.places (
    tenant  text NOT NULL,
    thing   text NOT NULL,          -- its kind and its name, as volume:data
    node    text NOT NULL,          -- may be lost since
    uses    integer NOT NULL,       -- how often the name was claimed again
    made_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, thing)
);

UPDATE directory.version SET number = 3;
