-- name: retired
-- Retired schemas of this database, and the server's clock
SELECT array_agg(nspname::text ORDER BY nspname), clock_timestamp()
FROM pg_catalog.pg_namespace WHERE nspname ~ '__retired_[0-9a-f]{8}$'

-- name: contents
-- How many objects DROP would lock in a schema, and an object outside that CASCADE would drop
WITH RECURSIVE inside AS (
    SELECT d.classid, d.objid
    FROM pg_catalog.pg_namespace AS n
    JOIN pg_catalog.pg_depend AS d
      ON d.refclassid = 'pg_catalog.pg_namespace'::regclass AND d.refobjid = n.oid
    WHERE n.nspname = %(schema)s
    UNION
    SELECT d.classid, d.objid
    FROM inside AS i
    JOIN pg_catalog.pg_depend AS d ON d.refclassid = i.classid AND d.refobjid = i.objid
    WHERE d.deptype <> 'n'
), outside AS (
    -- Objects that only CASCADE would drop, outside the schema.
    (SELECT d.classid, d.objid
     FROM inside AS i
     JOIN pg_catalog.pg_depend AS d ON d.refclassid = i.classid AND d.refobjid = i.objid
     WHERE d.deptype = 'n'
     EXCEPT
     SELECT classid, objid FROM inside)
    UNION
    -- Objects in another schema that DROP removes with one inside: a partition of a table.
    SELECT i.classid, i.objid
    FROM inside AS i
    JOIN pg_catalog.pg_depend AS d ON d.classid = i.classid AND d.objid = i.objid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = d.refobjid
    WHERE d.refclassid = 'pg_catalog.pg_namespace'::regclass AND n.nspname <> %(schema)s
)
SELECT (SELECT count(*) + 1 FROM inside), min(CASE
    WHEN r.oid IS NULL THEN a.type || ' ' || a.identity
    ELSE 'view ' || r.ev_class::regclass END)
FROM outside AS o
LEFT JOIN pg_catalog.pg_rewrite AS r
  ON o.classid = 'pg_catalog.pg_rewrite'::regclass AND r.oid = o.objid
CROSS JOIN LATERAL pg_catalog.pg_identify_object(o.classid, o.objid, 0) AS a

-- name: tables
-- Tables of a schema that LOCK TABLE takes, those without partitions or children first
SELECT c.relname::text
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p')
ORDER BY EXISTS (SELECT FROM pg_catalog.pg_inherits AS h WHERE h.inhparent = c.oid), 1
