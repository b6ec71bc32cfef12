-- ingest
SELECT 1;
