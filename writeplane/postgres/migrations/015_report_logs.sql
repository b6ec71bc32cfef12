-- Which log of an edge a report is of. A new disk counts from 0, which was known only by a
-- count that fell; it need not when the centre was away for long. Null: the edge has not
-- said so yet.
ALTER TABLE ingest_reports ADD COLUMN log text COLLATE "C";
