"""Published results, repeated: their sweeps, results and page. `scripts/reproduce` runs them."""
