-- Which consumer takes which version of an event: who still needs an old one. A row for each type of
-- records that a consumer's code takes, and for each newest version that such code has known.
CREATE TABLE event_reader (
    consumer       text        NOT NULL,
    event_type     text        NOT NULL,
    taken_as       text        NOT NULL,
    newest         text        NOT NULL,
    topic          text        NOT NULL,
    consumer_group text        NOT NULL,
    declared_at    timestamptz NOT NULL DEFAULT now(),
    seen_at        timestamptz NOT NULL DEFAULT now(),
    taken          bigint      NOT NULL DEFAULT 0,
    duplicates     bigint      NOT NULL DEFAULT 0,
    last_taken_at  timestamptz,
    PRIMARY KEY (consumer, event_type, taken_as, newest)
);
