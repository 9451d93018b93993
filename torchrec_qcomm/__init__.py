"""Quantized embedding exchange for TorchRec."""
