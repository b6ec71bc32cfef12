-- Crash symbols and crash events (specification, Symbol artifact; supplement §6).

CREATE TABLE symbol_artifacts (
    id            uuid PRIMARY KEY,
    project_id    uuid NOT NULL REFERENCES projects,
    environment   text NOT NULL CHECK (environment IN ('live', 'test')),
    kind          text NOT NULL,
    release       text NOT NULL,             -- '' when none was given
    match_key     text NOT NULL,
    size_bytes    bigint NOT NULL,
    sha256        text NOT NULL,
    uploaded_at   timestamptz NOT NULL,
    storage_path  text NOT NULL,
    original_name text NOT NULL,
    commit_sha    text,
    debug_ids     text[] NOT NULL,           -- lower case
    warnings      text[] NOT NULL,
    deleted_at    timestamptz,
    purged_at     timestamptz,               -- the files are gone too

    -- The lookup form, made by the indexer. Both NULL: not yet made.
    index_path    text,
    index_sha256  text,
    index_reason  text,                      -- why there is none: malformed, limit
    index_text    text,
    index_tries   integer NOT NULL DEFAULT 0,
    index_after   timestamptz NOT NULL DEFAULT '-infinity' -- taken, or to be tried again, until then
);
CREATE INDEX symbol_artifacts_listed ON symbol_artifacts (project_id, environment, uploaded_at DESC, id DESC)
    WHERE deleted_at IS NULL;
CREATE INDEX symbol_artifacts_of_release ON symbol_artifacts (project_id, environment, release) WHERE deleted_at IS NULL;
CREATE INDEX symbol_artifacts_by_debug_id ON symbol_artifacts USING gin (debug_ids) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX symbol_artifacts_once ON symbol_artifacts
    (project_id, environment, kind, release, match_key, sha256) WHERE deleted_at IS NULL;
CREATE INDEX symbol_artifacts_to_index ON symbol_artifacts (uploaded_at)
    WHERE deleted_at IS NULL AND index_path IS NULL AND index_reason IS NULL;
CREATE INDEX symbol_artifacts_by_path ON symbol_artifacts (storage_path);
CREATE INDEX symbol_artifacts_to_purge ON symbol_artifacts (deleted_at) WHERE deleted_at IS NOT NULL AND purged_at IS NULL;
GRANT SELECT, INSERT, UPDATE ON symbol_artifacts TO skerry_app;

CREATE TABLE releases (
    project_id  uuid NOT NULL REFERENCES projects,
    environment text NOT NULL,
    release     text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    deleted_at  timestamptz,
    PRIMARY KEY (project_id, environment, release)
);
GRANT SELECT, INSERT, UPDATE ON releases TO skerry_app;

CREATE TABLE crash_events (
    id           uuid PRIMARY KEY,
    project_id   uuid NOT NULL REFERENCES projects,
    environment  text NOT NULL,
    release      text NOT NULL,
    platform     text NOT NULL,
    distinct_id  text NOT NULL,
    "timestamp"  timestamptz NOT NULL,
    received_at  timestamptz NOT NULL,
    debug_ids    text[] NOT NULL,            -- of its frames, lower case
    record       bytea NOT NULL,             -- the report as sent: bytes, because jsonb and text refuse some of it
    answers      bytea,                      -- what became of its frames; NULL: not yet looked at
    settled      boolean NOT NULL DEFAULT false, -- no upload could improve the answers
    pending      boolean NOT NULL DEFAULT true,
    wanted       integer NOT NULL DEFAULT 1, -- rises with each request to look again
    taken_until  timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 80);
CREATE INDEX crash_events_listed ON crash_events (project_id, environment, "timestamp" DESC, id DESC);
CREATE INDEX crash_events_pending ON crash_events (received_at) WHERE pending;
CREATE INDEX crash_events_open ON crash_events (project_id, environment, release, received_at) WHERE NOT settled;
CREATE INDEX crash_events_open_by_debug_id ON crash_events USING gin (debug_ids) WHERE NOT settled;
GRANT SELECT, INSERT, UPDATE ON crash_events TO skerry_app;
