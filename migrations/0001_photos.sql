-- The talk's tables. A shard holds all rows of its users, so every index begins with the user.
-- shardctl: key photos_by_user.user_id

CREATE TABLE photos_by_user (
    id          bigint      PRIMARY KEY DEFAULT next_id(),
    user_id     bigint      NOT NULL,
    caption     text        NOT NULL DEFAULT '',
    image_url   text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- "The newest photos of a user": ids sort by time, so the index needs no created_at.
CREATE INDEX photos_by_user_user_id_idx ON photos_by_user (user_id, id);
