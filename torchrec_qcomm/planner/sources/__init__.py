"""Where jobs come from: TorchRec's planner, a list of tables, plan files, statistics."""
