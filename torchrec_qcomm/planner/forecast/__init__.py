"""The arithmetic of a forecast: who sends how many bytes to whom; must not know times, or what to advise."""
