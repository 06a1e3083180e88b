-- What reaches Kafka beside domain events: records for retry topics, and dead letters mirrored to a topic. Such a
-- row has an id of its own, so that it stands beside the event's, and a text in `key` that gives it a slot; its
-- record is in the columns below and in `payload`, byte for byte.
ALTER TABLE outbox
    ADD COLUMN purpose       text    NOT NULL DEFAULT 'event' CHECK (purpose IN ('event', 'retry', 'dead_letter')),
    ADD COLUMN record_key    bytea,
    ADD COLUMN header_names  text[],
    ADD COLUMN header_values bytea[],
    ADD COLUMN tombstone     boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT outbox_record CHECK
        (purpose = 'event' OR coalesce(cardinality(header_names) = cardinality(header_values), false));
