"""Black boxes from texts to vectors, and the cache that stands before them."""
