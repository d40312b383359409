"""A recorded load: real writes through the poolers, every acknowledged one checked at the end."""
