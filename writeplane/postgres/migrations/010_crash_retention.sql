-- Retention finds reports by when they were received.
CREATE INDEX crash_events_received ON crash_events (received_at);
