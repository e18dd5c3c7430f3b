"""The engine behind every loader: fields, batches, statistics and threads, wired in one place."""
