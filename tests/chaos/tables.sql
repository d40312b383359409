-- What every operation of chaos writes: rows with a serial and a foreign key, partitions, and rows
-- without a key.

CREATE TABLE chaos_rows (
    id          bigint PRIMARY KEY DEFAULT next_id(),
    row         text   NOT NULL UNIQUE,
    version     int    NOT NULL DEFAULT 1,
    serial      bigserial
);

CREATE TABLE chaos_notes (
    row_id      bigint PRIMARY KEY REFERENCES chaos_rows (id),
    version     int    NOT NULL
);

CREATE TABLE chaos_parts (
    row         text   NOT NULL,
    version     int    NOT NULL,
    PRIMARY KEY (row, version)
) PARTITION BY HASH (version);  -- half of the updates are a DELETE and an INSERT
CREATE TABLE chaos_parts_0 PARTITION OF chaos_parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE chaos_parts_1 PARTITION OF chaos_parts FOR VALUES WITH (MODULUS 2, REMAINDER 1);

CREATE TABLE chaos_keyless (
    row         text   NOT NULL,
    version     int    NOT NULL
);
