"""Components: the nn.Modules of each model family, written for the engines, and the host Python of their specs."""
