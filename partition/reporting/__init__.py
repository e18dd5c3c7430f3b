"""What a partition holds several times, how even it is, what caches would serve on its parts."""
