-- Outbound webhooks: who wants to hear what, what was said, and how it went.

CREATE TABLE webhook_subscriptions (
    id                    uuid PRIMARY KEY,
    organization_id       uuid NOT NULL REFERENCES organizations,
    project_id            uuid REFERENCES projects,   -- NULL: all of the organization
    environment           text CHECK (environment IN ('live', 'test')),
    url                   text NOT NULL,
    events                text[] NOT NULL,
    description           text NOT NULL,
    enabled               boolean NOT NULL,
    rate_limit_per_second integer,
    disabled_reason       text,                       -- why the program disabled it
    secret                bytea NOT NULL,             -- sealed
    previous_secret       bytea,                      -- sealed; valid until previous_until
    previous_until        timestamptz,
    created_at            timestamptz NOT NULL,
    updated_at            timestamptz NOT NULL,
    deleted_at            timestamptz
);
CREATE INDEX webhook_subscriptions_of_organization ON webhook_subscriptions (organization_id, id) WHERE deleted_at IS NULL;
GRANT SELECT, INSERT, UPDATE ON webhook_subscriptions TO skerry_app;

-- What changes with every attempt, apart from what people change. Its row lock is
-- what lets several processes share the limits of one subscription.
CREATE TABLE webhook_pace (
    subscription_id uuid PRIMARY KEY REFERENCES webhook_subscriptions,
    tokens          double precision NOT NULL DEFAULT 1,
    tokens_at       timestamptz NOT NULL DEFAULT now(),
    proven          boolean NOT NULL DEFAULT false,   -- the newest attempt succeeded
    failing_since   timestamptz                       -- start of nothing but failures
) WITH (fillfactor = 50);
GRANT SELECT, INSERT, UPDATE ON webhook_pace TO skerry_app;

CREATE TABLE webhook_messages (
    id              uuid PRIMARY KEY,                 -- the webhook-id
    organization_id uuid NOT NULL,
    event           text NOT NULL,
    body            bytea NOT NULL,                   -- the envelope, as signed
    created_at      timestamptz NOT NULL
);
CREATE INDEX webhook_messages_by_age ON webhook_messages USING brin (created_at);
GRANT SELECT, INSERT, DELETE ON webhook_messages TO skerry_app;

-- Ids sort by time, as everywhere; here they are made in SQL, one per matching row.
CREATE FUNCTION uuid_v7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
        52, 1), 53, 1), 'hex')::uuid
$$;

CREATE TABLE webhook_deliveries (
    id               uuid PRIMARY KEY DEFAULT uuid_v7(),
    message_id       uuid NOT NULL REFERENCES webhook_messages,
    subscription_id  uuid NOT NULL REFERENCES webhook_subscriptions,
    event            text NOT NULL,
    status           text NOT NULL CHECK (status IN ('pending', 'delivered', 'failed', 'dead')),
    attempts         integer NOT NULL DEFAULT 0,
    first_attempt_at timestamptz,
    -- While an attempt is in flight this is the end of its lease: when the process
    -- that made it has died, the delivery is due again by itself.
    next_attempt_at  timestamptz,                     -- NULL once delivered or dead
    in_flight        boolean NOT NULL DEFAULT false,
    last_status_code integer,
    last_error       text,
    response_head    text,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (subscription_id, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;
CREATE INDEX webhook_deliveries_in_flight ON webhook_deliveries (subscription_id) WHERE in_flight;
CREATE INDEX webhook_deliveries_listed ON webhook_deliveries (subscription_id, id);
CREATE INDEX webhook_deliveries_dead ON webhook_deliveries (id) WHERE status = 'dead';
CREATE INDEX webhook_deliveries_of_message ON webhook_deliveries (message_id);
GRANT SELECT, INSERT, UPDATE, DELETE ON webhook_deliveries TO skerry_app;
