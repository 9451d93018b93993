"""What a forecast means: loads, crossings, times; must not advise."""
