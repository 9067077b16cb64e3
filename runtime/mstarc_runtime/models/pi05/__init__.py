"""pi0.5: a vision tower, a language model that reads cameras and a task, and an action expert that flows over what was read."""
