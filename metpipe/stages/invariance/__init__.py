"""The same logical row across widths, slots, verify rows, chunks, padding and neighbours."""
