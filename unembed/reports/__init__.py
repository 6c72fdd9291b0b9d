"""Reports: HTML pages, tables and charts made from run directories."""
