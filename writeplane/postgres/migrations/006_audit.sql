-- The audit log: one chain per organization, in partitions by retention class and
-- month, so that retention drops tables and never deletes a row.

-- The head of each organization's chain. Its row lock orders the organization's
-- mutations; a chain that is shorter than its head has lost its tail.
CREATE TABLE audit_chains (
    organization_id uuid PRIMARY KEY REFERENCES organizations,
    seq             bigint NOT NULL,
    hash            bytea NOT NULL,
    at              timestamptz NOT NULL,    -- of the newest entry: times never fall along a chain
    begun_at        timestamptz NOT NULL,    -- of the first entry, and
    classes         text[] NOT NULL          -- the retention classes there are: what a reader need not look beyond
) WITH (fillfactor = 50);
GRANT SELECT, INSERT, UPDATE ON audit_chains TO skerry_app;

CREATE TABLE audit_entries (
    organization_id uuid NOT NULL,
    seq             bigint NOT NULL,
    id              uuid NOT NULL,           -- UUIDv7 of created_at, so an id tells its month
    project_id      uuid,
    actor_id        text NOT NULL,
    actor_email     text,
    action          text COLLATE "C" NOT NULL,
    resource_type   text COLLATE "C" NOT NULL,
    resource_id     text NOT NULL,
    before          json,                    -- canonical text, kept as it is
    after           json,
    metadata        json NOT NULL,
    created_at      timestamptz NOT NULL,    -- whole milliseconds, as shown
    retention       text NOT NULL,           -- the organization's tier when it was written
    hash            bytea NOT NULL
) PARTITION BY LIST (retention);

CREATE TABLE audit_entries_hobby PARTITION OF audit_entries FOR VALUES IN ('hobby') PARTITION BY RANGE (created_at);
CREATE TABLE audit_entries_pro PARTITION OF audit_entries FOR VALUES IN ('pro') PARTITION BY RANGE (created_at);
CREATE TABLE audit_entries_growth PARTITION OF audit_entries FOR VALUES IN ('growth') PARTITION BY RANGE (created_at);
CREATE TABLE audit_entries_enterprise PARTITION OF audit_entries FOR VALUES IN ('enterprise') PARTITION BY RANGE (created_at);

-- Along a chain times never fall, so (created_at, seq) is the chain's order, and an
-- index by it serves a range of time and the pages within it alike.
CREATE INDEX ON audit_entries (organization_id, created_at, seq);
CREATE INDEX ON audit_entries (organization_id, project_id, created_at, seq);
CREATE INDEX ON audit_entries (organization_id, actor_id, created_at, seq);
CREATE INDEX ON audit_entries (organization_id, action, created_at, seq);
CREATE INDEX ON audit_entries (organization_id, resource_type, created_at, seq);
CREATE INDEX ON audit_entries (id);
-- No UPDATE, no DELETE: what is logged stays as it was logged.
GRANT SELECT, INSERT ON audit_entries TO skerry_app;

-- Makes the partitions of every class for the month of `at`; the owner calls it ahead of time.
CREATE FUNCTION audit_make_month(at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    class text;
    first date := date_trunc('month', at AT TIME ZONE 'UTC')::date;
    name  text;
BEGIN
    FOREACH class IN ARRAY ARRAY['hobby', 'pro', 'growth', 'enterprise'] LOOP
        name := format('audit_entries_%s_%s', class, to_char(first, 'YYYYMM'));
        IF to_regclass(name) IS NULL THEN
            EXECUTE format('CREATE TABLE IF NOT EXISTS %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)',
                name, 'audit_entries_' || class,
                first::timestamp AT TIME ZONE 'UTC', (first + interval '1 month') AT TIME ZONE 'UTC');
        END IF;
    END LOOP;
END $$;
SELECT audit_make_month(now() + n * interval '1 month') FROM generate_series(0, 2) AS n;

-- What retention took: a run of entries of one chain, and the hash that the next one
-- builds upon.
CREATE TABLE audit_anchors (
    organization_id uuid NOT NULL REFERENCES organizations,
    first_seq       bigint NOT NULL,
    last_seq        bigint NOT NULL,
    last_hash       bytea NOT NULL,
    dropped_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, first_seq)
);
GRANT SELECT ON audit_anchors TO skerry_app;

-- How far each chain has been copied to the query mirror: everything up to there is in it.
CREATE TABLE audit_mirrored (
    organization_id uuid PRIMARY KEY REFERENCES organizations,
    seq             bigint NOT NULL,
    at              timestamptz NOT NULL     -- of the entry with that seq
) WITH (fillfactor = 50);
GRANT SELECT, INSERT, UPDATE ON audit_mirrored TO skerry_app;

CREATE TABLE audit_exports (
    id              uuid PRIMARY KEY,
    organization_id uuid NOT NULL REFERENCES organizations,
    filters         jsonb NOT NULL,          -- what to export, sight included
    status          text NOT NULL CHECK (status IN ('pending', 'running', 'ready', 'failed')),
    row_count       bigint,
    size_bytes      bigint,
    object          text,                    -- its name in the blob store; NULL before and after its time
    error           text,
    requested_by    text NOT NULL,
    requested_email text,
    schedule_id     uuid,
    delivery        jsonb,                   -- of a scheduled export
    attempts        integer NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL,
    queued_at       timestamptz NOT NULL,    -- when its job was last inserted
    finished_at     timestamptz
);
CREATE INDEX audit_exports_of_organization ON audit_exports (organization_id, id);
CREATE INDEX audit_exports_open ON audit_exports (queued_at) WHERE status IN ('pending', 'running');
CREATE INDEX audit_exports_kept ON audit_exports (finished_at) WHERE object IS NOT NULL;
GRANT SELECT, INSERT, UPDATE ON audit_exports TO skerry_app;

CREATE TABLE audit_export_schedules (
    id              uuid PRIMARY KEY,
    organization_id uuid NOT NULL REFERENCES organizations,
    filters         jsonb NOT NULL,
    frequency       text NOT NULL CHECK (frequency IN ('daily', 'weekly', 'monthly')),
    delivery        jsonb NOT NULL,
    created_by      text NOT NULL,
    created_email   text,
    created_at      timestamptz NOT NULL,
    next_at         timestamptz NOT NULL,    -- end of the next period to export, and when
    deleted_at      timestamptz
);
CREATE INDEX audit_export_schedules_due ON audit_export_schedules (next_at) WHERE deleted_at IS NULL;
CREATE INDEX audit_export_schedules_of_organization ON audit_export_schedules (organization_id, id);
GRANT SELECT, INSERT, UPDATE ON audit_export_schedules TO skerry_app;
