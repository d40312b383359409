"""A recorded load: real writes through the poolers; checks every acknowledged one at the end."""
