-- usage
SELECT 1;
