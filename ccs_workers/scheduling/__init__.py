"""What a worker decides for itself: how slots and memory are divided, what jobs took, and who makes way for whom."""
