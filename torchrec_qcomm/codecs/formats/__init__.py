"""The wire formats, a file each: bytes, bound, bias and source; a format knows rows, and nothing of where they go."""
