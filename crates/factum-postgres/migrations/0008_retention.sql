-- What maintenance deletes, it finds by these indexes. Nobody waits for it: it takes a few rows at a time and passes
-- over those that are locked.
CREATE INDEX dead_letter_settled ON dead_letter (state_at) WHERE state <> 'open';
CREATE INDEX outbound_call_finished ON outbound_call (finished_at) WHERE state IN ('done', 'resolved');

-- A vacuum that finds few dead rows in a long table leaves the indexes as they are, and every claim would go on to walk
-- over the entries of what was sent.
ALTER TABLE outbox SET (vacuum_index_cleanup = on);

-- What consumers have handled whose ids say no time, by a policy of theirs: ids of foreign producers. A row goes when
-- its time is over.
CREATE TABLE processed_foreign_event (
    consumer_group text        NOT NULL,
    event_id       uuid        NOT NULL,
    processed_at   timestamptz NOT NULL DEFAULT now(),
    keep_until     timestamptz NOT NULL,
    PRIMARY KEY (consumer_group, event_id)
);
CREATE INDEX processed_foreign_event_over ON processed_foreign_event (keep_until);

-- For how long a consumer's events may come again: what its code says of retries, and of foreign ids.
ALTER TABLE event_reader
    ADD COLUMN retry_seconds bigint  NOT NULL DEFAULT 0,
    ADD COLUMN foreign_days  integer;

-- Who does the maintenance: what each service keeps for how long, and when it last looked.
CREATE TABLE maintenance (
    service  text        PRIMARY KEY,
    settings jsonb       NOT NULL DEFAULT '{}',
    ran_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Rows of the audit go by a retention that somebody has set, and in no other way.
CREATE OR REPLACE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $factum$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('factum.retention', true) = 'audit' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'the table audit takes new rows only';
END
$factum$;
