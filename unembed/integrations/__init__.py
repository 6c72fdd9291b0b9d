"""unembed in the tools that people use, a file each; docs/integrations.md shows them."""
