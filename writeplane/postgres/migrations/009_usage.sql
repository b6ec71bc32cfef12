-- What projects have used in a month (UTC).

-- What edges have counted, by their own cumulative counters. A source is an edge's store:
-- its counters only rise, and a lost disk begins a new source.
CREATE TABLE usage_counts (
    project_id uuid NOT NULL,
    month      date NOT NULL,                -- its first day
    metric     text NOT NULL CHECK (metric IN ('events', 'handshakes')),
    source     text COLLATE "C" NOT NULL,
    value      bigint NOT NULL,
    PRIMARY KEY (project_id, month, metric, source)
) WITH (fillfactor = 50);
GRANT SELECT, INSERT, UPDATE ON usage_counts TO skerry_app;

-- What edges were told last.
CREATE TABLE usage_sent (
    project_id uuid PRIMARY KEY,
    month      date NOT NULL,
    events     bigint NOT NULL,
    handshakes bigint NOT NULL,
    sent_at    timestamptz NOT NULL
);
GRANT SELECT, INSERT, UPDATE ON usage_sent TO skerry_app;

-- Each level is warned of once a month.
CREATE TABLE quota_warnings (
    project_id uuid NOT NULL,
    month      date NOT NULL,
    metric     text NOT NULL,
    level      smallint NOT NULL,            -- percent
    warned_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, month, metric, level)
);
GRANT SELECT, INSERT ON quota_warnings TO skerry_app;
