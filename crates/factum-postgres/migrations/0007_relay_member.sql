-- What relays that share the slots say of themselves: that they are there, until when. A relay is as good as gone
-- when its row has expired; its slots in `relay_lease` expire with it.
CREATE TABLE relay_member (
    owner      text        PRIMARY KEY,
    joined_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
);
