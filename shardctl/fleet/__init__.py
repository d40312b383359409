"""Work on the whole fleet: balance between nodes."""
