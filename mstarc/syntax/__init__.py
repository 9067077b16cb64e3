"""Text of a model to its syntax tree: grammar, tree and parser. Nothing here knows what a name refers to."""
