"""The language server: `server` speaks the protocol; `index`, `describe` and `complete` know the language and no protocol."""
