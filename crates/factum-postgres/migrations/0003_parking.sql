-- Keys whose events wait, because the first of them failed: the state of the first one's retries.
CREATE TABLE parked_key (
    consumer        text        NOT NULL,
    topic           text        NOT NULL,
    key             bytea       NOT NULL,
    attempts        integer     NOT NULL DEFAULT 0,
    -- How many the consumer's policy allows.
    max_attempts    integer     NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL,
    held_at         timestamptz,
    parked_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_failed_at  timestamptz,
    error           text,
    PRIMARY KEY (consumer, topic, key)
);
CREATE INDEX parked_key_due ON parked_key (consumer, next_attempt_at) WHERE held_at IS NULL;

-- The events of those keys, byte for byte, in the order of their ids.
CREATE TABLE parked_event (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer        text        NOT NULL,
    topic           text        NOT NULL,
    key             bytea       NOT NULL,
    -- The record itself had no key: it waits under its aggregate's id.
    keyless         boolean     NOT NULL DEFAULT false,
    partition       integer     NOT NULL,
    record_offset   bigint      NOT NULL,
    value           bytea       NOT NULL,
    header_names    text[]      NOT NULL DEFAULT '{}',
    header_values   bytea[]     NOT NULL DEFAULT '{}',
    event_id        uuid        NOT NULL,
    event_type      text        NOT NULL,
    first_failed_at timestamptz,
    parked_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- In this order it serves no search by key: without statistics it would look as good as the index below, and
    -- walk over every parked event of the topic.
    UNIQUE (partition, record_offset, topic, consumer)
);
CREATE INDEX parked_event_queue ON parked_event (consumer, topic, key, id);
