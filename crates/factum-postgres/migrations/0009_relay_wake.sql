-- Waking relays up. Disabled unless somebody asks for it (`factum migrate up --relay-wake listen`): a COMMIT with a
-- NOTIFY holds a lock of the whole server until it is flushed, so such commits go one after the other.
CREATE FUNCTION outbox_wake() RETURNS trigger LANGUAGE plpgsql AS $wake$
BEGIN
    -- A relay that sleeps holds this lock, shared. Who gets it alone has found no sleeper, and gives it back within the
    -- same expression, where nothing can interrupt it. So a busy relay costs a writer a look and no NOTIFY.
    IF (CASE WHEN pg_try_advisory_lock(1717658484, TG_RELID::integer)
             THEN NOT pg_advisory_unlock(1717658484, TG_RELID::integer)
             ELSE true END)
    THEN
        PERFORM pg_notify('factum_outbox_' || TG_RELID, '');
    END IF;
    RETURN NULL;
END
$wake$;

CREATE TRIGGER outbox_wake AFTER INSERT ON outbox FOR EACH STATEMENT EXECUTE FUNCTION outbox_wake();
ALTER TABLE outbox DISABLE TRIGGER outbox_wake;

-- Rows that were given up are counted every ten seconds, beside a backlog of any length. No other row is in here.
CREATE INDEX outbox_set_aside ON outbox (set_aside_at) WHERE published_at IS NULL AND set_aside_at IS NOT NULL;
