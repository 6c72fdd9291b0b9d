"""Pages, tables and charts, read from run directories."""
