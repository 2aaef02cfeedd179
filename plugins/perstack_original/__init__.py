"""Job format of the original Perstack: import of its directories, and export to them."""
