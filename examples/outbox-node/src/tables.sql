-- The example's own table; the outbox is of `factum migrate up`.
CREATE TABLE customer_order (
    order_ref    text    PRIMARY KEY,
    customer_id  bigint  NOT NULL,
    total_amount numeric NOT NULL,
    currency     text    NOT NULL
);
