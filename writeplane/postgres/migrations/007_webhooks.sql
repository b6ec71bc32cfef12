-- webhooks
SELECT 1;
