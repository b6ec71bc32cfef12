-- Decisions: config items with their version log, flags, cohorts with their members.
-- Serialized values, rules and variants are kept as the texts that the API shows, so
-- that numbers keep their digits.

-- A log that nobody can change: the program's role has no right to, and a trigger
-- stands in the way of every other role as well.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE TABLE config_items (
    id              uuid PRIMARY KEY,
    project_id      uuid NOT NULL REFERENCES projects,
    environment     text NOT NULL CHECK (environment IN ('live', 'test')),
    key             text NOT NULL,
    type            text NOT NULL CHECK (type IN ('bool', 'int', 'float', 'string', 'json')),
    default_value   text NOT NULL,
    description     text NOT NULL,
    rule            text,
    salt            text,                    -- of rollouts; set once, outlives the rule
    is_archived     boolean NOT NULL DEFAULT false,
    current_version bigint NOT NULL,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    UNIQUE (project_id, environment, key)
);
CREATE INDEX config_items_in_order ON config_items (project_id, key, id);
GRANT SELECT, INSERT, UPDATE ON config_items TO skerry_app;

CREATE TABLE config_versions (
    id             uuid PRIMARY KEY,
    item_id        uuid NOT NULL REFERENCES config_items,
    version_number bigint NOT NULL,
    action         text NOT NULL CHECK (action IN ('created', 'changed', 'rolled_back')),
    value_snapshot text NOT NULL,
    rule_snapshot  text,
    actor_id       text NOT NULL,
    actor_email    text,
    note           text,
    created_at     timestamptz NOT NULL,
    UNIQUE (item_id, version_number)
);
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON config_versions
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON config_versions
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
GRANT SELECT, INSERT ON config_versions TO skerry_app;

CREATE TABLE flags (
    id              uuid PRIMARY KEY,
    project_id      uuid NOT NULL REFERENCES projects,
    environment     text NOT NULL CHECK (environment IN ('live', 'test')),
    key             text NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('boolean', 'string', 'number', 'json')),
    description     text NOT NULL,
    default_value   text NOT NULL,
    default_variant text NOT NULL,
    variants        text NOT NULL,           -- JSON: [{"key","value"}]
    enabled         boolean NOT NULL,
    rule            text,
    salt            text,
    is_archived     boolean NOT NULL DEFAULT false,
    current_version bigint NOT NULL,
    halted_at       timestamptz,
    halt_reason     text,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    UNIQUE (project_id, environment, key)
);
CREATE INDEX flags_in_order ON flags (project_id, key, id);
GRANT SELECT, INSERT, UPDATE ON flags TO skerry_app;

CREATE TABLE cohorts (
    id            uuid PRIMARY KEY,
    project_id    uuid NOT NULL REFERENCES projects,
    name          text NOT NULL,
    predicate     text,
    shards        integer NOT NULL,          -- documents that hold the members; a power of two or 0
    member_count  bigint NOT NULL,
    member_bytes  bigint NOT NULL,           -- what the members take in documents
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    UNIQUE (project_id, name)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON cohorts TO skerry_app;

-- In order of hash, so that a shard is one stretch of the index.
CREATE TABLE cohort_members (
    cohort_id uuid NOT NULL REFERENCES cohorts ON DELETE CASCADE,
    hash      bigint NOT NULL,               -- unsigned 32 bits
    member    text COLLATE "C" NOT NULL,
    PRIMARY KEY (cohort_id, hash, member)
);
GRANT SELECT, INSERT, DELETE ON cohort_members TO skerry_app;
