"""How much at once: everything that bounds concurrency and memory, and gives it back."""
