-- What everything else stands on: tenants, and the state that goes down to edges.

-- The role under which the program works. Migrations and retention run as the
-- owner; the program itself may only do what the grants of each file allow, so a
-- fault in it (or SQL smuggled through it) cannot rewrite a log.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'skerry_app') THEN
        CREATE ROLE skerry_app NOLOGIN;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL; -- roles belong to the whole cluster: another database's migration was faster
END $$;

GRANT USAGE ON SCHEMA public TO skerry_app;

-- Secrets of the installation: cursor signing, URL signing, sealing of others.
CREATE TABLE installation (
    name  text PRIMARY KEY,
    value bytea NOT NULL
);
GRANT SELECT, INSERT ON installation TO skerry_app;

CREATE TABLE organizations (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    tier       text NOT NULL CHECK (tier IN ('hobby', 'pro', 'growth', 'enterprise')),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT, INSERT, UPDATE ON organizations TO skerry_app;

CREATE TABLE projects (
    id              uuid PRIMARY KEY,
    organization_id uuid NOT NULL REFERENCES organizations,
    name            text NOT NULL,
    modules         jsonb NOT NULL,
    allowlist       jsonb NOT NULL,
    rate_limits     jsonb NOT NULL,
    quotas          jsonb NOT NULL,
    audit_responses boolean NOT NULL DEFAULT false,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    deleted_at      timestamptz
);
CREATE INDEX projects_of_organization ON projects (organization_id, id);
GRANT SELECT, INSERT, UPDATE ON projects TO skerry_app;

-- Two lanes of one mechanism. `position` is the last one allotted; taking the row
-- lock to raise it is what makes position order commit order. `published` and
-- `published_seq` (the stream's own sequence) are the publisher's.
CREATE TABLE lanes (
    lane          smallint PRIMARY KEY,      -- 0 normal, 1 urgent
    position      bigint NOT NULL,
    published     bigint NOT NULL,
    published_seq bigint NOT NULL,
    epoch         uuid NOT NULL,
    timeline      text NOT NULL,             -- of the database when the epoch began
    floor         bigint NOT NULL DEFAULT 0  -- tombstones up to here are purged
) WITH (fillfactor = 50);
INSERT INTO lanes (lane, position, published, published_seq, epoch, timeline) VALUES
    (0, 0, 0, 0, gen_random_uuid(), ''), (1, 0, 0, 0, gen_random_uuid(), '');
GRANT SELECT, UPDATE ON lanes TO skerry_app;

CREATE TABLE documents (
    subject      text PRIMARY KEY,
    lane         smallint NOT NULL,
    position     bigint NOT NULL,
    tx_first     bigint NOT NULL,            -- first and last position of the
    tx_last      bigint NOT NULL,            -- transaction in this lane
    commit_token bytea NOT NULL,
    body         bytea,                      -- NULL is a tombstone
    changed_at   timestamptz NOT NULL
);
-- Not a constraint: renumbering for a new epoch moves all rows in one statement.
CREATE INDEX documents_in_order ON documents (lane, position);
GRANT SELECT, INSERT, UPDATE, DELETE ON documents TO skerry_app;

-- One row per transaction and lane: proves that a message in the stream comes from
-- this database's own history and not from one that a restore took back.
CREATE TABLE commits (
    lane     smallint NOT NULL,
    position bigint NOT NULL,                -- the transaction's last
    token    bytea NOT NULL,
    at       timestamptz NOT NULL,
    PRIMARY KEY (lane, position)
);
GRANT SELECT, INSERT, DELETE ON commits TO skerry_app;

CREATE TABLE leases (
    name       text PRIMARY KEY,
    holder     text NOT NULL,
    expires_at timestamptz NOT NULL
);
GRANT SELECT, INSERT, UPDATE, DELETE ON leases TO skerry_app;
