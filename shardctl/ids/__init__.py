"""The 64-bit id: layout, encode, decode, and the SQL that makes ids in the database."""
