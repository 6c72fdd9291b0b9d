"""Sources of texts: files, data sets of the hub, the built-in corpus, token ids."""
