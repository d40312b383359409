"""`verify`: does the fleet agree with the topology? One file for each check, one registry."""
