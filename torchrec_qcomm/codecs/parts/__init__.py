"""What formats are built from: noise, rounding, packing of bits, scales, memory; must not know any format."""
