-- Calls to other systems, decided in a handler's transaction and sent outside of any, with the same key and the
-- same bytes each time.
CREATE TABLE outbound_call (
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- Who sends it: a service with this name that declares the endpoint.
    service          text        NOT NULL,
    consumer         text        NOT NULL,
    event_id         uuid        NOT NULL,
    event_type       text        NOT NULL,
    step             text        NOT NULL DEFAULT '',
    endpoint         text        NOT NULL,
    method           text        NOT NULL,
    path             text        NOT NULL,
    header_names     text[]      NOT NULL DEFAULT '{}',
    header_values    bytea[]     NOT NULL DEFAULT '{}',
    body             bytea       NOT NULL DEFAULT '',
    -- The header's value, as it goes over the wire.
    idempotency_key  text        NOT NULL,
    traceparent      text,
    aggregate_id     text        NOT NULL,
    -- The aggregate's id again, where the calls of one aggregate keep their order: those of one consumer to one
    -- endpoint then leave one after the other. Null for no order.
    order_key        text,
    state            text        NOT NULL DEFAULT 'pending' CHECK (state IN
                     ('pending', 'answered', 'done', 'set_aside', 'unknown', 'resolved')),
    attempts         integer     NOT NULL DEFAULT 0,
    answer_attempts  integer     NOT NULL DEFAULT 0,
    -- When it is due. A claim moves it to the end of its lease, so that nobody else sends meanwhile.
    next_attempt_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Who sends it now. Every claim has its own token, and who records an outcome must still have it.
    claimed_by       text,
    claim_token      bigint      NOT NULL DEFAULT 0,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Committed before the first byte is sent.
    first_sent_at    timestamptz,
    last_sent_at     timestamptz,
    -- From here on the other system may have forgotten the key: it is never sent again.
    key_expires_at   timestamptz,
    answered_at      timestamptz,
    finished_at      timestamptz,
    status           smallint,
    -- A list of pairs of name and value.
    response_headers jsonb,
    response_body    bytea,
    response_cut     boolean     NOT NULL DEFAULT false,
    error            text,
    UNIQUE (consumer, event_id, step)
);
CREATE INDEX outbound_call_due ON outbound_call (service, endpoint, next_attempt_at, id) WHERE state = 'pending';
CREATE INDEX outbound_call_answer ON outbound_call (service, next_attempt_at, id) WHERE state = 'answered';
CREATE INDEX outbound_call_order ON outbound_call (consumer, endpoint, order_key, id)
    WHERE order_key IS NOT NULL AND state IN ('pending', 'answered', 'set_aside', 'unknown');
CREATE INDEX outbound_call_unfinished ON outbound_call (id) WHERE state IN ('pending', 'answered', 'set_aside', 'unknown');
CREATE INDEX outbound_call_doubt ON outbound_call (id) WHERE state IN ('set_aside', 'unknown');
