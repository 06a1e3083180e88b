-- Events on their way to Kafka. Any program in any language may insert rows; a relay sends them.
CREATE TABLE outbox (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slot           smallint    NOT NULL
                   GENERATED ALWAYS AS ((hashtextextended(key, 0) & 63)::smallint) STORED,
    event_id       uuid        NOT NULL,
    event_type     text        NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    topic          text        NOT NULL CHECK (topic <> ''),
    key            text        NOT NULL CHECK (key <> ''),
    payload        bytea       NOT NULL,
    headers        jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(headers) = 'object'),
    occurred_at    timestamptz NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    not_before     timestamptz,
    published_at   timestamptz,
    attempts       integer     NOT NULL DEFAULT 0,
    last_error     text,
    set_aside_at   timestamptz,
    UNIQUE (event_id, event_type)
) WITH (
    -- Each sent row leaves an entry behind in the indexes below; every claim walks over them until
    -- a vacuum. The default, a fifth of the table, comes too late for a table that is long.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 10000
);

-- By slot: for relays that share the slots (OBX-X3).
CREATE INDEX outbox_unpublished ON outbox (slot, id) WHERE published_at IS NULL;

-- By id: a claim over many slots reads as many entries as it returns, however long the backlog.
CREATE INDEX outbox_claim ON outbox (id) WHERE published_at IS NULL AND set_aside_at IS NULL;

-- Which relay may send which slot.
CREATE TABLE relay_lease (
    slot       smallint    PRIMARY KEY CHECK (slot BETWEEN 0 AND 63),
    owner      text        NOT NULL DEFAULT '',
    token      bigint      NOT NULL DEFAULT 0,
    expires_at timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO relay_lease (slot) SELECT generate_series(0, 63);

-- What each consumer has handled. Partitioned by the id itself, so that the key really
-- deduplicates and old rows go by dropping a partition. Never give it a DEFAULT partition.
CREATE TABLE IF NOT EXISTS processed_event (
    consumer_group text        NOT NULL,
    event_id       uuid        NOT NULL,
    processed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, event_id)
) PARTITION BY RANGE (event_id);

-- Records that a consumer gave up, byte for byte.
CREATE TABLE dead_letter (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer      text        NOT NULL,
    topic         text        NOT NULL,
    partition     integer     NOT NULL,
    record_offset bigint      NOT NULL,
    key           bytea,
    value         bytea,
    header_names  text[]      NOT NULL DEFAULT '{}',
    header_values bytea[]     NOT NULL DEFAULT '{}',
    event_id      uuid,
    event_type    text,
    reason        text        NOT NULL,
    path          text,
    error         text,
    attempts      integer     NOT NULL DEFAULT 0,
    first_seen    timestamptz NOT NULL DEFAULT now(),
    last_seen     timestamptz NOT NULL DEFAULT now(),
    UNIQUE (consumer, topic, partition, record_offset)
);
