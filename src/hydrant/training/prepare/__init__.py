"""What is done before the first update: build the parts of a run, check them and try them."""
