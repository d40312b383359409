-- Likes live with the user who gave them.
-- shardctl: key likes.user_id

CREATE TABLE likes (
    id          bigint      PRIMARY KEY DEFAULT next_id(),
    user_id     bigint      NOT NULL,
    photo_id    bigint      NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    UNIQUE (user_id, photo_id)
);

-- "What did this user like, newest first".
CREATE INDEX likes_user_id_idx ON likes (user_id, id);
