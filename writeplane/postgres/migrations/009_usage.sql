-- What projects have used in a month (UTC).

-- What each edge has accepted: `counted` here, in the transaction that takes its events;
-- `reported` by itself, cumulative over its disk's life, with `base` for former disks.
-- Both mean the same events, so the higher one is right: a report comes sooner, and a
-- lost disk takes back nothing that was counted. One row per edge: edges do not wait
-- for each other.
CREATE TABLE usage_counts (
    project_id uuid NOT NULL,
    month      date NOT NULL,                -- its first day
    metric     text NOT NULL CHECK (metric IN ('events', 'handshakes')),
    edge       text COLLATE "C" NOT NULL,
    counted    bigint NOT NULL DEFAULT 0,
    base       bigint NOT NULL DEFAULT 0,
    reported   bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (project_id, month, metric, edge)
) WITH (fillfactor = 50);
CREATE INDEX usage_counts_by_month ON usage_counts (month);
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
