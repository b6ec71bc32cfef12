-- decisions
SELECT 1;
