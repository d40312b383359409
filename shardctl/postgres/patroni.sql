-- name: signs
-- Whether Patroni has a session here, has started the server, and its files may be read
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name ~ '^Patroni( |$)'
                                              AND backend_type = 'client backend'),
       source = 'command line',
       has_function_privilege('pg_stat_file(text,boolean)', 'EXECUTE')
       AND has_function_privilege('pg_read_binary_file(text)', 'EXECUTE')
FROM pg_settings WHERE name = 'cluster_name'

-- name: settings
-- The copy of its settings that Patroni keeps beside the data; null where there is none
SELECT CASE WHEN (pg_stat_file('patroni.dynamic.json', true)).size IS NOT NULL
            THEN convert_from(pg_read_binary_file('patroni.dynamic.json'), 'UTF8') END
