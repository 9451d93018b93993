"""What is read from a forecast: loads, crossings, times; must not advise."""
