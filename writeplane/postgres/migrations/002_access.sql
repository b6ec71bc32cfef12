-- Who may call: API keys of projects, members of organizations, their tokens, and
-- the keys that tokens are signed with. Rows are ended, not removed, so that lists
-- can show what was revoked and by then the audit log can be read beside them.

CREATE TABLE api_keys (
    id           uuid PRIMARY KEY,
    project_id   uuid NOT NULL REFERENCES projects,
    environment  text NOT NULL CHECK (environment IN ('live', 'test')),
    name         text NOT NULL,
    prefix       text NOT NULL,              -- first characters of the newest secret, for display
    created_at   timestamptz NOT NULL,
    rotated_at   timestamptz,
    last_used_at timestamptz,
    revoked_at   timestamptz
);
CREATE INDEX api_keys_of_project ON api_keys (project_id, id);
GRANT SELECT, INSERT, UPDATE ON api_keys TO skerry_app;

-- What opens a key: the newest secret, and rotated ones until their grace ends.
CREATE TABLE api_key_secrets (
    hash       bytea PRIMARY KEY CHECK (length(hash) = 32), -- SHA-256 of the secret
    key_id     uuid NOT NULL REFERENCES api_keys,
    expires_at timestamptz                                  -- NULL: until the key is revoked
);
CREATE INDEX api_key_secrets_of_key ON api_key_secrets (key_id);
GRANT SELECT, INSERT, UPDATE, DELETE ON api_key_secrets TO skerry_app;

CREATE TABLE members (
    id              uuid PRIMARY KEY,        -- the user id: `sub` of tokens, actor of audit entries
    organization_id uuid NOT NULL REFERENCES organizations,
    email           text NOT NULL,
    role            text NOT NULL CHECK (role IN ('viewer', 'editor', 'project_admin', 'org_admin', 'owner')),
    project_ids     uuid[] NOT NULL,         -- what a member below org_admin is bound to
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    removed_at      timestamptz
);
CREATE UNIQUE INDEX members_by_email ON members (organization_id, lower(email)) WHERE removed_at IS NULL;
CREATE INDEX members_of_organization ON members (organization_id, id);
GRANT SELECT, INSERT, UPDATE ON members TO skerry_app;

-- One row for each token that was signed. A token without its row is worth nothing.
CREATE TABLE api_tokens (
    id              uuid PRIMARY KEY,        -- jti
    organization_id uuid NOT NULL REFERENCES organizations,
    member_id       uuid NOT NULL REFERENCES members, -- whom it acts for
    project_id      uuid REFERENCES projects,         -- NULL: every project the member may see
    name            text NOT NULL,
    role            text NOT NULL CHECK (role IN ('viewer', 'editor', 'project_admin', 'org_admin', 'owner')),
    created_at      timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL,
    revoked_at      timestamptz
);
CREATE INDEX api_tokens_of_project ON api_tokens (project_id, id);
GRANT SELECT, INSERT, UPDATE ON api_tokens TO skerry_app;

-- Ed25519 pairs. The newest signs, all verify.
CREATE TABLE signing_keys (
    kid        text PRIMARY KEY,
    sealed     bytea NOT NULL,               -- the private seed, sealed
    public     bytea NOT NULL,
    created_at timestamptz NOT NULL
);
GRANT SELECT, INSERT ON signing_keys TO skerry_app;
