"""What must be true before a move begins: checked and reported at once."""
