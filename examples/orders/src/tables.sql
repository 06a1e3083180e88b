-- The example's own tables. Factum's tables come from its migrations.

-- What customers have ordered. A reference stands for a frame contract: a customer orders under it
-- again and again. It is the aggregate: its orders are confirmed one after the other, in the order
-- of their ids.
CREATE TABLE IF NOT EXISTS orders (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_ref    text        NOT NULL,
    customer_id  bigint      NOT NULL CHECK (customer_id > 0),
    total_amount numeric     NOT NULL CHECK (total_amount > 0),
    currency     text        NOT NULL,
    placed_at    timestamptz NOT NULL DEFAULT now(),
    confirmed_at timestamptz
);

CREATE INDEX IF NOT EXISTS orders_open ON orders (id) WHERE confirmed_at IS NULL;

-- What billing has written. There is no unique key on the order, on purpose: that each order is
-- billed once is Factum's promise, and a second invoice must show, not fail.
CREATE TABLE IF NOT EXISTS invoice (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id     uuid        NOT NULL,
    order_ref    text        NOT NULL,
    order_id     bigint      NOT NULL,
    customer_id  bigint      NOT NULL,
    total_amount numeric     NOT NULL,
    currency     text        NOT NULL,
    issued_at    timestamptz NOT NULL
);

-- What the mailer has written, to be sent. No unique key here either.
CREATE TABLE IF NOT EXISTS mail (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id    uuid   NOT NULL,
    invoice_ref text   NOT NULL,
    invoice_id  bigint NOT NULL,
    customer_id bigint NOT NULL,
    subject     text   NOT NULL
);
