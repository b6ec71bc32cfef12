-- symbols
SELECT 1;
