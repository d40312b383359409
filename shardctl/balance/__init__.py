"""An even fleet: which shards should go to which node, and the moves that bring them there."""
