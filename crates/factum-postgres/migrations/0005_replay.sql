-- What a person needs to judge a dead letter, and what became of it.
ALTER TABLE dead_letter
    ADD COLUMN state         text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'replayed', 'discarded')),
    ADD COLUMN state_at      timestamptz,
    ADD COLUMN payload_bytes bigint NOT NULL DEFAULT 0,
    -- The path with its indices taken out: items[].price.
    ADD COLUMN path_group    text NOT NULL DEFAULT '',
    ADD COLUMN build         text NOT NULL DEFAULT '';
UPDATE dead_letter
   SET payload_bytes = coalesce(length(value), 0),
       path_group = coalesce(regexp_replace(path, '\[\d+\]', '[]', 'g'), '');
CREATE INDEX dead_letter_open ON dead_letter (consumer, reason, path_group, id) WHERE state = 'open';

-- How many letters stand open by consumer, reason, path and type. Triggers add a delta for each statement that changes
-- that, whoever runs it, so that no row is hot; maintenance folds the deltas. The exact count is a group's own plus its
-- deltas. A consumer has 10,000 groups at most; what comes after them counts as type '', reason 'other', path 'other'.
CREATE TABLE dead_letter_group (
    consumer   text        NOT NULL,
    event_type text        NOT NULL,
    reason     text        NOT NULL,
    path_group text        NOT NULL,
    open       bigint      NOT NULL DEFAULT 0,
    replayed   bigint      NOT NULL DEFAULT 0,
    discarded  bigint      NOT NULL DEFAULT 0,
    first_at   timestamptz NOT NULL,
    last_at    timestamptz NOT NULL,
    PRIMARY KEY (consumer, event_type, reason, path_group)
);
CREATE TABLE dead_letter_delta (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer   text        NOT NULL,
    event_type text        NOT NULL,
    reason     text        NOT NULL,
    path_group text        NOT NULL,
    open       integer     NOT NULL DEFAULT 0,
    replayed   integer     NOT NULL DEFAULT 0,
    discarded  integer     NOT NULL DEFAULT 0,
    -- When letters of it were first and last seen.
    first_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    at         timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO dead_letter_group (consumer, event_type, reason, path_group, open, first_at, last_at)
SELECT consumer, coalesce(event_type, ''), reason, path_group, count(*), min(first_seen), max(last_seen)
  FROM dead_letter GROUP BY 1, 2, 3, 4;

-- What a statement makes of the letters' states, summed by group. A letter seen again adds a row without a change:
-- it moves the time at which its group was last seen. The triggers know rows before and after under their locks, so
-- that two writers of one letter count once.
CREATE FUNCTION dead_letter_count() RETURNS trigger LANGUAGE plpgsql AS $factum$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO dead_letter_delta (consumer, event_type, reason, path_group, open, replayed, discarded, first_at, at)
        SELECT consumer, coalesce(event_type, ''), reason, path_group,
               count(*) FILTER (WHERE state = 'open'), count(*) FILTER (WHERE state = 'replayed'),
               count(*) FILTER (WHERE state = 'discarded'), min(first_seen), max(last_seen)
          FROM after GROUP BY 1, 2, 3, 4;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO dead_letter_delta (consumer, event_type, reason, path_group, open, replayed, discarded, first_at, at)
        SELECT consumer, coalesce(event_type, ''), reason, path_group,
               -count(*) FILTER (WHERE state = 'open'), -count(*) FILTER (WHERE state = 'replayed'),
               -count(*) FILTER (WHERE state = 'discarded'), min(first_seen), max(last_seen)
          FROM before GROUP BY 1, 2, 3, 4;
    ELSE
        INSERT INTO dead_letter_delta (consumer, event_type, reason, path_group, open, replayed, discarded, first_at, at)
        SELECT consumer, coalesce(event_type, ''), reason, path_group,
               coalesce(sum(n) FILTER (WHERE state = 'open'), 0), coalesce(sum(n) FILTER (WHERE state = 'replayed'), 0),
               coalesce(sum(n) FILTER (WHERE state = 'discarded'), 0), min(first_seen), max(last_seen)
          FROM (SELECT 1 AS n, * FROM after UNION ALL SELECT -1, * FROM before) AS changed
         GROUP BY 1, 2, 3, 4
        HAVING sum(n) FILTER (WHERE state = 'open') <> 0 OR sum(n) FILTER (WHERE state = 'replayed') <> 0
            OR sum(n) FILTER (WHERE state = 'discarded') <> 0
            OR max(last_seen) FILTER (WHERE n = 1) > max(last_seen) FILTER (WHERE n = -1);
    END IF;
    RETURN NULL;
END
$factum$;
CREATE TRIGGER dead_letter_count_insert AFTER INSERT ON dead_letter
    REFERENCING NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION dead_letter_count();
CREATE TRIGGER dead_letter_count_update AFTER UPDATE ON dead_letter
    REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION dead_letter_count();
CREATE TRIGGER dead_letter_count_delete AFTER DELETE ON dead_letter
    REFERENCING OLD TABLE AS before FOR EACH STATEMENT EXECUTE FUNCTION dead_letter_count();

-- Each process of a service, every 5 s. Who hasn't written for 20 s isn't there any more.
CREATE TABLE instance (
    id         uuid        PRIMARY KEY,
    service    text        NOT NULL,
    build      text        NOT NULL,
    host       text        NOT NULL,
    process_id integer     NOT NULL,
    consumers  text[]      NOT NULL DEFAULT '{}',
    -- What each part says of itself, for the console: lanes, slots, breakers.
    state      jsonb       NOT NULL DEFAULT '{}',
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX instance_seen ON instance (seen_at);

-- A replay: a fixed list of dead letters, first as a plan, which the consumer's own service checks and carries out.
CREATE TABLE replay_run (
    id                    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer              text        NOT NULL,
    state                 text        NOT NULL DEFAULT 'checking' CHECK (state IN
                          ('checking', 'planned', 'running', 'paused', 'stopped', 'done')),
    filter                jsonb       NOT NULL DEFAULT '{}',
    rate                  integer     NOT NULL DEFAULT 100 CHECK (rate > 0),
    accept_outside_window boolean     NOT NULL DEFAULT false,
    -- Carry out so many items and then pause; null for all. Counts down.
    first                 integer,
    created_by            text        NOT NULL,
    created_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    good_until            timestamptz NOT NULL,
    started_by            text,
    started_at            timestamptz,
    reason                text,
    stop_cause            text,
    ended_at              timestamptz,
    failures_in_a_row     integer     NOT NULL DEFAULT 0,
    -- The process that carries it out, and when it last finished an item. Another one goes on if it falls silent.
    runner                uuid,
    runner_at             timestamptz
);
-- One run at a time for each consumer.
CREATE UNIQUE INDEX replay_run_live ON replay_run (consumer) WHERE state IN ('running', 'paused');
-- What a service looks for each second.
CREATE INDEX replay_run_due ON replay_run (consumer) WHERE state IN ('checking', 'running');

CREATE TABLE replay_item (
    run_id         bigint      NOT NULL REFERENCES replay_run ON DELETE CASCADE,
    dead_letter_id bigint      NOT NULL,
    key            bytea,
    topic          text        NOT NULL,
    partition      integer     NOT NULL,
    record_offset  bigint      NOT NULL,
    -- What the check of the plan says, then what became of it.
    state          text        NOT NULL DEFAULT 'unchecked' CHECK (state IN
                   ('unchecked', 'ready', 'duplicate', 'undecodable', 'out_of_window', 'gone',
                    'handled', 'was_duplicate', 'failed')),
    detail         text,
    at             timestamptz,
    PRIMARY KEY (run_id, dead_letter_id)
);
CREATE INDEX replay_item_next ON replay_item (run_id, topic, partition, record_offset)
    WHERE state IN ('unchecked', 'ready', 'duplicate', 'out_of_window');

-- Who did what, and why. Rows are only ever added.
CREATE TABLE audit (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor    text        NOT NULL,
    via      text        NOT NULL,
    action   text        NOT NULL,
    consumer text        NOT NULL DEFAULT '',
    subject  text        NOT NULL DEFAULT '',
    events   bigint      NOT NULL DEFAULT 0,
    reason   text        NOT NULL DEFAULT ''
);
CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $factum$
BEGIN
    RAISE EXCEPTION 'the table audit takes new rows only';
END
$factum$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only();
