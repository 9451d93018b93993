"""What the benchmark of the exchange times: one module a concern."""
