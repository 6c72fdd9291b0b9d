"""What fuzz_readers.py is made of: readers, the inputs that they are given, and the process that reads them."""
