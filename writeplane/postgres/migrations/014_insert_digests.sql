-- An insert_id is remembered by the first half of its SHA-256, with its project and its
-- environment: 16 bytes where three columns took 60 and more, in the table and in its
-- index alike, of which every event with an insert_id costs one row.
ALTER TABLE insert_ids RENAME TO insert_texts;
ALTER TABLE insert_texts RENAME CONSTRAINT insert_ids_pkey TO insert_texts_pkey;
DROP INDEX insert_ids_by_age;

CREATE TABLE insert_ids (
    digest      uuid PRIMARY KEY,
    received_at timestamptz NOT NULL
);
INSERT INTO insert_ids (digest, received_at)
SELECT encode(substring(sha256(uuid_send(project_id) || set_byte('\x00', 0, environment) || convert_to(insert_id, 'UTF8')) FOR 16), 'hex')::uuid,
       received_at
FROM insert_texts;
CREATE INDEX insert_ids_by_age ON insert_ids USING brin (received_at) WITH (pages_per_range = 32);
GRANT SELECT, INSERT, UPDATE, DELETE ON insert_ids TO skerry_app;
DROP TABLE insert_texts;
