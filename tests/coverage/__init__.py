"""What is exchanged quantized, and how exactly, cell by cell beside TorchRec's own: ``make coverage``."""
