-- audit
SELECT 1;
