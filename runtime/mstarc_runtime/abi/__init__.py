"""The contract between compiler and runtime: chunk policies, messages, linked programs. Imports neither torch nor mstarc."""
