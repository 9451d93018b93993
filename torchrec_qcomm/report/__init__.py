"""What the planner layer found, as text, JSON and HTML, and the hook for TorchRec's planner; must not work out forecasts."""
