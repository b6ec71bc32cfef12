-- surveys
SELECT 1;
