"""What exchanges remember from step to step, and how it is saved; must not know TorchRec."""
