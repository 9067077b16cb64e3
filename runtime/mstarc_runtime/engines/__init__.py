"""Engines run the ops of a node for a batch of requests: stateless nodes and transformers over a paged KV cache."""
