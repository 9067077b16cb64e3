"""V-JEPA 2 (video encoder, masked predictor and its rollout) and V-JEPA 2-AC (action-conditioned predictor, rollout, planning)."""
