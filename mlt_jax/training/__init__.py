"""Training on noisy labels: losses, update rules, the step, the loop and what a run leaves on disk."""
