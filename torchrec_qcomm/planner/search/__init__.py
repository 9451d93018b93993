"""What TorchRec's planner is told before it searches: tables, constraints, topology, costs."""
