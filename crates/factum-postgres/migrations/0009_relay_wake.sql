-- Waking relays up.
SELECT 1;
