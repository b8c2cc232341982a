"""What editors and shells complete and check: the JSON schemas of options, and the words of a command line."""
