"""What must be true before a move begins: looked at, judged, and told at once."""
