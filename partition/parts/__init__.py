"""Parts in our own form: taken from the graph, written, and opened."""
