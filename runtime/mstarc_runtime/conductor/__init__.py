"""The conductor: admits requests, runs their programs over the ranks, and tells the truth about the workers."""
