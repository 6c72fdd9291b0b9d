"""What fuzz_stores.py is made of: readers, their inputs, and the process that reads them."""
