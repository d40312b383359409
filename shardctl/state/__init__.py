"""What is kept in the databases: schema `shardctl`, its reading and writing."""
