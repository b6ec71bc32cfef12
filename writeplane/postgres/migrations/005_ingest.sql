-- What edges have sent: events, people, aliases; how far each edge's lanes have come;
-- what could not be stored.
--
-- Environments are 1 (live) and 2 (test), lanes 1 (alias) to 4 (crash), as on the wire.
-- Identifiers compare by bytes: they are no language's words.

-- One row per event, by day of receipt at the edge: days are made ahead, and dropped
-- whole. Properties are kept as they were sent: jsonb would change them, and some
-- harmless-looking numbers make it swell when it is read.
--
-- There is no unique key: on a partitioned table it would have to contain the time of
-- receipt. That an event is stored once is the cursors' promise (ingest_cursors).
CREATE TABLE events (
    received_at        timestamptz NOT NULL,
    timestamp          timestamptz NOT NULL,
    id                 uuid NOT NULL,        -- follows from edge, incarnation and number
    project_id         uuid NOT NULL,
    number             bigint NOT NULL,      -- in the edge's lane and incarnation
    environment        smallint NOT NULL,
    rewritten          boolean NOT NULL,     -- distinct_id is not what was sent; anon_id is
    edge               text COLLATE "C" NOT NULL,
    event_name         text COLLATE "C" NOT NULL,
    distinct_id        text COLLATE "C" NOT NULL,
    anon_id            text COLLATE "C",
    sent_anon_id       text COLLATE "C",
    insert_id          text COLLATE "C",
    lib_version        text COLLATE "C",
    properties         json,
    default_properties json
) PARTITION BY RANGE (received_at);
CREATE INDEX events_of_person ON events (project_id, environment, distinct_id);
CREATE INDEX events_in_time ON events USING brin (timestamp, received_at) WITH (pages_per_range = 32);
-- What no day is made for: a clock far off, or a day that could not be made just now.
CREATE TABLE events_default PARTITION OF events DEFAULT;
GRANT SELECT, INSERT, UPDATE, DELETE ON events, events_default TO skerry_app;

-- How far a lane has come. The row's lock is what makes storing happen once: a
-- transaction takes it first, skips what is not past last_number, and moves it last.
-- stored + duplicate + erased + dead is all that was ever taken.
CREATE TABLE ingest_cursors (
    edge        text COLLATE "C" NOT NULL,
    lane        smallint NOT NULL,
    incarnation uuid NOT NULL,
    ordinal     bigint NOT NULL,
    last_number bigint NOT NULL DEFAULT 0,
    stored      bigint NOT NULL DEFAULT 0,
    duplicate   bigint NOT NULL DEFAULT 0,
    erased      bigint NOT NULL DEFAULT 0,
    dead        bigint NOT NULL DEFAULT 0,
    gaps        boolean NOT NULL DEFAULT false, -- ingest_gaps has rows that may still be filled
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (edge, lane, incarnation)
) WITH (fillfactor = 50);
GRANT SELECT, INSERT, UPDATE ON ingest_cursors TO skerry_app;

-- Numbers that a lane passed over: of a retired edge (they may still come, should it
-- return), or such as an edge has freed and this database, restored, has forgotten.
CREATE TABLE ingest_gaps (
    edge         text COLLATE "C" NOT NULL,
    lane         smallint NOT NULL,
    incarnation  uuid NOT NULL,
    first_number bigint NOT NULL,
    last_number  bigint NOT NULL,
    may_return   boolean NOT NULL,
    noted_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (edge, lane, incarnation, first_number)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON ingest_gaps TO skerry_app;

CREATE TABLE ingest_retired (
    edge       text COLLATE "C" PRIMARY KEY,
    retired_at timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT, INSERT, DELETE ON ingest_retired TO skerry_app;

-- What an edge last said of its log. base is what was taken from former logs of the
-- same edge: a new disk counts from 0 again.
CREATE TABLE ingest_reports (
    edge          text COLLATE "C" NOT NULL,
    lane          smallint NOT NULL,
    base          bigint NOT NULL DEFAULT 0,
    received      bigint NOT NULL,
    pending       bigint NOT NULL,
    pending_bytes bigint NOT NULL,
    oldest_at     timestamptz,
    reported_at   timestamptz NOT NULL,
    PRIMARY KEY (edge, lane)
) WITH (fillfactor = 50);
GRANT SELECT, INSERT, UPDATE, DELETE ON ingest_reports TO skerry_app;

-- The insert_ids of the last days. Rows are inserted sorted, so that two lanes cannot
-- wait for each other.
CREATE TABLE insert_ids (
    project_id  uuid NOT NULL,
    environment smallint NOT NULL,
    insert_id   text COLLATE "C" NOT NULL,
    received_at timestamptz NOT NULL,
    PRIMARY KEY (project_id, environment, insert_id)
);
CREATE INDEX insert_ids_by_age ON insert_ids USING brin (received_at) WITH (pages_per_range = 32);
GRANT SELECT, INSERT, UPDATE, DELETE ON insert_ids TO skerry_app;

-- What was accepted and cannot be stored, with its bytes: in payload, or in the blob.
CREATE TABLE dead_letters (
    id          uuid PRIMARY KEY,
    project_id  uuid NOT NULL,
    environment smallint NOT NULL,
    lane        smallint NOT NULL,
    edge        text COLLATE "C" NOT NULL,
    incarnation uuid NOT NULL,
    number      bigint NOT NULL,
    reason      text NOT NULL,
    distinct_id text COLLATE "C",
    payload     bytea,
    blob_key    text,
    blob_bytes  bigint,
    extra       bytea,                       -- what the payload does not say: the crash's id
    received_at timestamptz NOT NULL,
    replayed_at timestamptz,
    created_at  timestamptz NOT NULL DEFAULT now(),
    CHECK ((payload IS NULL) <> (blob_key IS NULL))
);
CREATE INDEX dead_letters_of_project ON dead_letters (project_id, environment, received_at DESC, id DESC);
CREATE INDEX dead_letters_of_person ON dead_letters (project_id, environment, distinct_id);
GRANT SELECT, INSERT, UPDATE, DELETE ON dead_letters TO skerry_app;

-- alias → canonical id, at depth one: no canonical id of one row is the alias of another.
CREATE TABLE aliases (
    project_id   uuid NOT NULL,
    environment  smallint NOT NULL,
    alias_id     text COLLATE "C" NOT NULL,
    canonical_id text COLLATE "C" NOT NULL,
    aliased_at   timestamptz NOT NULL,       -- the payload's own timestamp
    received_at  timestamptz NOT NULL,
    PRIMARY KEY (project_id, environment, alias_id)
);
CREATE INDEX aliases_of_canonical ON aliases (project_id, environment, canonical_id);
GRANT SELECT, INSERT, UPDATE, DELETE ON aliases TO skerry_app;

-- Which environments have aliases at all: most lookups end here.
CREATE TABLE alias_heads (
    project_id  uuid NOT NULL,
    environment smallint NOT NULL,
    PRIMARY KEY (project_id, environment)
);
GRANT SELECT, INSERT ON alias_heads TO skerry_app;

-- An alias that was claimed for a second person: the first keeps it.
CREATE TABLE identity_conflicts (
    project_id          uuid NOT NULL,
    environment         smallint NOT NULL,
    alias_id            text COLLATE "C" NOT NULL,
    kept_distinct_id    text COLLATE "C" NOT NULL,
    refused_distinct_id text COLLATE "C" NOT NULL,
    received_at         timestamptz NOT NULL,
    PRIMARY KEY (project_id, environment, alias_id, refused_distinct_id)
);
CREATE INDEX identity_conflicts_refused ON identity_conflicts (project_id, environment, refused_distinct_id);
GRANT SELECT, INSERT, DELETE ON identity_conflicts TO skerry_app;

-- Aliases whose older events still have to be rewritten.
CREATE TABLE rewrites (
    project_id  uuid NOT NULL,
    environment smallint NOT NULL,
    alias_id    text COLLATE "C" NOT NULL,
    queued_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, environment, alias_id)
);
CREATE INDEX rewrites_in_order ON rewrites (queued_at);
GRANT SELECT, INSERT, UPDATE, DELETE ON rewrites TO skerry_app;

CREATE TABLE profiles (
    project_id  uuid NOT NULL,
    environment smallint NOT NULL,
    distinct_id text COLLATE "C" NOT NULL,
    first_seen  timestamptz NOT NULL,
    last_seen   timestamptz NOT NULL,
    PRIMARY KEY (project_id, environment, distinct_id)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON profiles TO skerry_app;

-- One row per trait of a person. A stamp is (received_at, edge, number) as bytes that
-- sort: the newest writer of `value` wins whenever it is stored; a NULL value is a
-- removal. `once` is the oldest $set_once that is newer than that writer.
CREATE TABLE profile_values (
    project_id  uuid NOT NULL,
    environment smallint NOT NULL,
    distinct_id text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    value       json,
    stamp       bytea NOT NULL DEFAULT '',   -- empty: never set nor removed
    once        json,
    once_stamp  bytea,
    PRIMARY KEY (project_id, environment, distinct_id, name)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON profile_values TO skerry_app;

-- Erased identifiers, by their SHA-256: what was received before is dropped. Until
-- done_at is set, rows of theirs may still be there and are not shown.
CREATE TABLE erasures (
    project_id  uuid NOT NULL,
    environment smallint NOT NULL,
    id_hash     bytea NOT NULL,
    erased_at   timestamptz NOT NULL,
    done_at     timestamptz,
    distinct_id text COLLATE "C",            -- until done
    PRIMARY KEY (project_id, environment, id_hash)
);
CREATE INDEX erasures_by_age ON erasures (erased_at);
CREATE INDEX erasures_open ON erasures (erased_at) WHERE done_at IS NULL;
GRANT SELECT, INSERT, UPDATE ON erasures TO skerry_app;
