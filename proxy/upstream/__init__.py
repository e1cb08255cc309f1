"""The way to the model server: where it is, how to ask it, what its failures mean."""
