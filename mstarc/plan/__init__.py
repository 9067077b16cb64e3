"""The plan of a model: what `compile` found out that linking needs. It holds no placement; expressions stay symbolic, as text."""
