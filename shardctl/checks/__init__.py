"""`verify`: is everything as the topology says? One file for each check, one registry."""
