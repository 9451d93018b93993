"""What is checked before a collection is sharded: the plan, the hosts, and that all ranks agree."""
