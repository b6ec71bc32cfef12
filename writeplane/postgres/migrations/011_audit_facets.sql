-- Which kinds of entries there are in which month: what filters name, without the
-- entries themselves. A list asks here first, so that a filter that matches little or
-- nothing does not walk through all that it does not match.

CREATE TABLE audit_facets (
    organization_id uuid NOT NULL,
    retention       text NOT NULL,           -- with the month: the partition
    month           date NOT NULL,           -- its first day, UTC
    project_id      uuid,
    actor_id        text NOT NULL,
    action          text COLLATE "C" NOT NULL,
    resource_type   text COLLATE "C" NOT NULL
);
CREATE UNIQUE INDEX audit_facets_once ON audit_facets (organization_id, month, action, actor_id, resource_type,
    coalesce(project_id, '00000000-0000-0000-0000-000000000000'), retention);
CREATE INDEX audit_facets_of_actor ON audit_facets (organization_id, actor_id, month);
CREATE INDEX audit_facets_of_type ON audit_facets (organization_id, resource_type, month);
CREATE INDEX audit_facets_of_month ON audit_facets (retention, month);
GRANT SELECT, INSERT ON audit_facets TO skerry_app;

-- A trigger and no part of the program's statement: an entry without its facet would
-- be in the log and in no list, whoever wrote it.
CREATE FUNCTION audit_note_facets() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit_facets (organization_id, retention, month, project_id, actor_id, action, resource_type)
    SELECT DISTINCT organization_id, retention, date_trunc('month', created_at AT TIME ZONE 'UTC')::date, project_id, actor_id, action, resource_type
    FROM added
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER audit_facets_noted AFTER INSERT ON audit_entries
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION audit_note_facets();

-- Entries from before.
LOCK TABLE audit_entries IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO audit_facets (organization_id, retention, month, project_id, actor_id, action, resource_type)
SELECT DISTINCT organization_id, retention, date_trunc('month', created_at AT TIME ZONE 'UTC')::date, project_id, actor_id, action, resource_type
FROM audit_entries
ON CONFLICT DO NOTHING;
