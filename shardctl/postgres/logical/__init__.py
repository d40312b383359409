"""What a move by logical replication does with PostgreSQL itself; nothing here knows of moves.

Its order, in the modules here and in `postgres.slots`:

- `publication.create`: before the slot, committed
- `slots.make_logical`: gives the snapshot of which the stream is the continuation
- `structure.make_tables`: the tables without indexes, constraints and grants on their schemas
- `closing.withhold`: takes the rights that owners of schemas have by themselves
- `copying.copy`: the rows of that snapshot
- `structure.make_rest`: indexes, constraints, triggers
- `closing.close`: refuses every write but the stream's
- `subscription.make_login`: where the owner of the subscription is not a superuser
- `subscription.create`: the stream
- `closing.opening`: part of the claim
- `subscription.drop`, `slots.drop`, `subscription.drop_login`, `publication.drop`,
  `closing.remove`: afterwards

`slots.end_sessions` ends what a killed shardctl has left running.

Sessions are in autocommit unless a function says otherwise.
"""
