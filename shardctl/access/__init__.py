"""Who may use a shard's schema: the fence of a move."""
