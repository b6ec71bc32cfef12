-- Surveys, the responses to them, and what is on the way to becoming one.

CREATE TABLE surveys (
    id          text PRIMARY KEY,            -- psv_…
    project_id  uuid NOT NULL REFERENCES projects,
    slug        text NOT NULL,
    status      text NOT NULL CHECK (status IN ('draft', 'published', 'closed', 'archived')),
    bundle      json NOT NULL,               -- the survey whole, as clients fetch it
    display     json NOT NULL,               -- what the list has and the bundle has not
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,        -- rises by at least a millisecond with every save
    CONSTRAINT surveys_slug UNIQUE (project_id, slug)
);
CREATE INDEX surveys_of_project ON surveys (project_id, id);
GRANT SELECT, INSERT, UPDATE ON surveys TO skerry_app;

-- Every form in which a question was ever saved. An answer names the one that it was
-- given to, so an edited or removed question keeps its answers readable.
CREATE TABLE survey_questions (
    survey_id   text NOT NULL REFERENCES surveys,
    question_id text NOT NULL,
    digest      bytea NOT NULL,              -- of kind, prompt and config
    kind        text NOT NULL,
    prompt      text NOT NULL,
    config      json NOT NULL,
    PRIMARY KEY (survey_id, question_id, digest)
);
GRANT SELECT, INSERT ON survey_questions TO skerry_app;

-- Responses and answers have no foreign keys: each insert would lock the rows it
-- points to, and a busy survey is one row. Surveys are archived, never removed.
CREATE TABLE survey_responses (
    survey_id       text NOT NULL,
    id              text NOT NULL,           -- psr_…, in the order of receipt
    project_id      uuid NOT NULL,
    environment     text NOT NULL CHECK (environment IN ('live', 'test')),
    user_id         text,
    external_id     text,
    email           text,
    release_version text,
    device_model    text,
    os_version      text,
    distribution_id text,
    score           integer,
    submitted_at    timestamptz NOT NULL,
    received_at     timestamptz NOT NULL,
    PRIMARY KEY (survey_id, id)
);
GRANT SELECT, INSERT ON survey_responses TO skerry_app;

CREATE TABLE survey_answers (
    survey_id   text NOT NULL,
    response_id text NOT NULL,
    question_id text NOT NULL,
    order_index integer NOT NULL,
    kind        text NOT NULL,
    digest      bytea NOT NULL,              -- the question as it was: survey_questions
    value       json NOT NULL,
    PRIMARY KEY (survey_id, response_id, question_id)
);
GRANT SELECT, INSERT ON survey_answers TO skerry_app;

-- Responses of a project in a month, for its quota. Counted in the transaction that
-- stores them, so the limit is exact.
CREATE TABLE survey_usage (
    project_id uuid NOT NULL,
    month      date NOT NULL,                -- its first day, UTC
    responses  bigint NOT NULL,
    PRIMARY KEY (project_id, month)
) WITH (fillfactor = 50);
GRANT SELECT, INSERT, UPDATE ON survey_usage TO skerry_app;

-- First answers to submissions that carried an Idempotency-Key.
CREATE TABLE survey_idempotency (
    project_id  uuid NOT NULL,
    environment text NOT NULL,
    key         text NOT NULL,
    body_sha256 bytea NOT NULL,
    answer      bytea NOT NULL,              -- the body of the 201
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (project_id, environment, key)
);
CREATE INDEX survey_idempotency_by_age ON survey_idempotency (created_at);
GRANT SELECT, INSERT, UPDATE, DELETE ON survey_idempotency TO skerry_app;

CREATE TABLE survey_partials (
    project_id          uuid NOT NULL,
    environment         text NOT NULL,
    survey_id           text NOT NULL,
    external_id         text NOT NULL,
    answers             json NOT NULL,
    current_question_id text,
    expires_at          timestamptz NOT NULL,
    PRIMARY KEY (project_id, environment, survey_id, external_id)
);
CREATE INDEX survey_partials_by_expiry ON survey_partials (expires_at);
GRANT SELECT, INSERT, UPDATE, DELETE ON survey_partials TO skerry_app;

-- The analytics copy: one row per answer, nothing to join. Written behind the answer
-- to the client, as far as that succeeds; nothing of the service reads it.
CREATE TABLE survey_mirror (
    project_id      uuid NOT NULL,
    environment     text NOT NULL,
    survey_id       text NOT NULL,
    response_id     text NOT NULL,
    question_id     text NOT NULL,
    question_kind   text NOT NULL,
    prompt          text NOT NULL,
    value           json NOT NULL,
    score           integer,
    release_version text,
    distribution_id text,
    submitted_at    timestamptz NOT NULL,
    received_at     timestamptz NOT NULL
);
CREATE INDEX survey_mirror_by_time ON survey_mirror USING brin (received_at);
GRANT SELECT, INSERT ON survey_mirror TO skerry_app;
