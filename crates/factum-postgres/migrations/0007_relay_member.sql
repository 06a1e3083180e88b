-- What relays that share the slots say of themselves.
SELECT 1;
