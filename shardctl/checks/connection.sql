-- name: public
-- Whether every role may log in to this database
SELECT has_database_privilege('public', current_database(), 'CONNECT')
