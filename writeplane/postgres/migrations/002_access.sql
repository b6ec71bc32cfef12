-- access
SELECT 1;
