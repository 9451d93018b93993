"""The version of the code; ranks that run different ones refuse to exchange."""

__version__ = "0.1.0"
