"""The arithmetic of a forecast: who sends how many rows of which table to whom; must not know times, or what to advise."""
