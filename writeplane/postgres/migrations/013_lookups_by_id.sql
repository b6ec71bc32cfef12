-- An alias, or a canonical id, is always looked up whole. With the project in front each
-- index could also be read for all of a project, and the planner did so for every single
-- id while its statistics did not know the project yet.
ALTER TABLE aliases
    DROP CONSTRAINT aliases_pkey,
    ADD PRIMARY KEY (alias_id, project_id, environment);
DROP INDEX aliases_of_canonical;
CREATE INDEX aliases_of_canonical ON aliases (canonical_id, project_id, environment);
