"""What the benchmark of the exchange times: one module for each concern."""
