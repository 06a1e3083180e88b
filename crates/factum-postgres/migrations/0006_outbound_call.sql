-- Calls to other systems, decided in a handler's transaction and sent outside of any, with the same key and the
-- same bytes each time.
CREATE TABLE outbound_call (
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
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
    idempotency_key  text        NOT NULL,
    traceparent      text,
    -- Calls of one order key leave one after the other; null for no order.
    order_key        text,
    state            text        NOT NULL DEFAULT 'pending' CHECK (state IN
                     ('pending', 'answered', 'done', 'set_aside', 'unknown', 'resolved')),
    attempts         integer     NOT NULL DEFAULT 0,
    next_attempt_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Who sends it now, and until when nobody else does.
    claimed_by       text,
    claim_token      bigint      NOT NULL DEFAULT 0,
    claimed_until    timestamptz,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    first_sent_at    timestamptz,
    last_sent_at     timestamptz,
    answered_at      timestamptz,
    finished_at      timestamptz,
    status           smallint,
    response_headers jsonb,
    response_body    bytea,
    error            text,
    UNIQUE (consumer, event_id, step)
);
CREATE INDEX outbound_call_due ON outbound_call (next_attempt_at, id) WHERE state IN ('pending', 'answered');
CREATE INDEX outbound_call_order ON outbound_call (endpoint, order_key, id)
    WHERE order_key IS NOT NULL AND state IN ('pending', 'answered', 'set_aside', 'unknown');
CREATE INDEX outbound_call_doubt ON outbound_call (endpoint, id) WHERE state IN ('set_aside', 'unknown');
