-- name: found
-- What sessions left in this database: the code of a rule, the object, the words; never queries
SELECT 'prepared_transaction', gid,
       jsonb_build_object('age_s', extract(epoch FROM clock_timestamp() - prepared)::bigint)
FROM pg_prepared_xacts
WHERE database = current_database()
UNION ALL
SELECT 'idle_in_transaction', nullif(application_name, ''),
       jsonb_build_object('pid', (array_agg(pid ORDER BY state_change))[1],
                          'longest_s', extract(epoch FROM clock_timestamp() - min(state_change))::bigint,
                          'more', CASE WHEN count(*) > 1 THEN ', and ' || count(*) - 1
                                                              || ' more for less time' ELSE '' END,
                          'most_s', %(seconds)s::bigint)
FROM pg_stat_activity
WHERE datname = current_database()
  AND state IN ('idle in transaction', 'idle in transaction (aborted)')
  AND clock_timestamp() - state_change >= make_interval(secs => %(seconds)s)
GROUP BY application_name
