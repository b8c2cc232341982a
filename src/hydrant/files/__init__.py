"""Read and write files that a kill, a disk or a stranger may have damaged, and the plain values and secrets in them."""
