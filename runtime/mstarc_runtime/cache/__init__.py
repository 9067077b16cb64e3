"""The paged KV cache: a pool of reference-counted pages per cache geometry, and the contexts of requests over it."""
