"""The backend of shards: Django's for PostgreSQL, over connections that the router lends."""
