"""Print to the terminal, a notebook or a log: lines, tables and a progress bar."""
