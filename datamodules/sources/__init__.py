"""Where texts come from: files, sets of the hub, the built-in corpus, token ids."""
