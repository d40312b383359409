"""What operators run over the whole fleet: statements, commands, repacking."""
